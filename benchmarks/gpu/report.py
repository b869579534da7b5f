"""Results of the kit's pieces, and the report of all that are there."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

Row = dict[str, str | int | float]
NO_CARD = "No card: a CPU with tiny shapes"
TOKENS_A_SECOND, PPO_GIB = 6200, 20
"""Goals: packed tokens per second of a step at 4B on an H100, which is what prime-rl publishes for LoRA; and memory of
PPO on an 8B in NF4."""


class Result(NamedTuple):
    """What a piece measured, on a device. With a fault, these are the rows before it."""

    name: str
    device: str
    seconds: float
    rows: Sequence[Row]
    fault: str


@cache
def device_name() -> str:
    """Return the card's name, memory, driver and compute capability, without torch, which would take a part of it."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader"]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" or not shutil.which(query[0]):
        return NO_CARD
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]


def write_report(out: Path, results: Sequence[Result], pieces: int) -> None:
    """Write report.json and report.md: the goals and faults, then a table for each section."""
    rows_of: dict[str, list[Row]] = {}
    for result in results:
        rows_of.setdefault(result.name.partition("/")[0], []).extend(result.rows)
    goals = list(_goals(rows_of.get("step", [])))
    report = {"device": device_name(), "pieces": pieces, "goals": goals}
    report["results"] = [result._asdict() for result in results]
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    seconds = sum(result.seconds for result in results)
    lines = [
        "# What runs on a GPU\n",
        f"{device_name()}.",
        f"{len(results)} of {pieces} pieces ran, in {seconds:.0f} s.",
    ]
    lines += ["", *(f"- {goal}" for goal in goals)]
    lines += [f"- **{result.name}: {result.fault}**" for result in results if result.fault]
    for section, rows in rows_of.items():
        lines += [f"\n## {section.capitalize()}\n", *_table(rows)]
    (out / "report.md").write_text("\n".join([*lines, ""]))


def _table(rows: Sequence[Row]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in rows for column in row))
    yield f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    yield from (f"| {' | '.join(str(row.get(column, '')) for column in columns)} |" for row in rows)


def _goals(steps: Sequence[Row]) -> Iterator[str]:
    """Say which goals are reached; tiny shapes of a CPU reach none."""
    tried = [row for row in steps if device_name() != NO_CARD and not row["note"]]
    fast = [float(row["packed tokens/s"]) for row in tried if row["model"] == "Qwen3-4B none" and row["stage"] == "sft"]
    used = [float(row["measured GiB"]) for row in tried if row["model"] == "Llama-3.1-8B nf4" and row["stage"] == "ppo"]
    yield _goal(
        f"at least {TOKENS_A_SECOND} packed tokens/s at 4B on an H100", fast, max(fast, default=0) >= TOKENS_A_SECOND
    )
    yield _goal(f"PPO of an 8B in NF4 under {PPO_GIB} GiB", used, max(used, default=0) < PPO_GIB)


def _goal(goal: str, measured: Sequence[float], reached: bool) -> str:
    if not measured:
        return f"Not measured: {goal}."
    return f"{'Reached' if reached else 'Not reached'}: {goal} ({max(measured):g} on {device_name()})."
