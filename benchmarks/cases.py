"""Measure reading, import and export of cases: CPU seconds, and the largest memory of the process.

    python benchmarks/cases.py --cases 100000

Each step is a process of its own. A case has an attempt of five messages with a tool call, advice, and a retry of two
steps, about 1.5 kB of JSON. CPU seconds hardly depend on what else the machine does.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from retroformer import Case, read_cases, write_cases

CONFIG = "run: cases\nstore: sqlite:///cases.db\nenvironment: {name: agent}\n"
WORDS = "The customer asks for the refund of an order that was paid by card and never arrived at the address. "


def made(count: int) -> Iterator[Case]:
    """Yield cases that differ in their ids, texts and scores."""
    for number in range(count):
        call = {"id": "c1", "function": {"name": "find_order", "arguments": f'{{"order": {number}}}'}}
        messages = [
            {"role": "system", "content": "You handle refunds. " + WORDS},
            {"role": "user", "content": f"Refund order {number}. {WORDS}"},
            {"role": "assistant", "content": "I look it up.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "No such order."},
            {"role": "assistant", "content": f"I cannot find order {number}. {WORDS}"},
        ]
        steps = [
            {"thought": WORDS, "action": f'find_customer({{"order": {number}}})', "observation": WORDS},
            {"action": f"Refunded order {number}.", "observation": ""},
        ]
        yield Case.model_validate(
            {
                "task": {"id": f"refund-{number}", "input": f"Refund order {number}. {WORDS}"},
                "attempt": {"score": 0.25 * (number % 3), "messages": messages},
                "advice": {"text": f"Search by customer first. {WORDS}", "model": "sft"},
                "retry": {"score": 1.0, "steps": steps},
            }
        )


def step(name: str, count: int) -> None:
    """Do one step in this process."""
    from retroformer.cases.commands import export_cases, import_cases
    from retroformer.experiment.file import load

    if name == "write":
        write_cases("cases.jsonl", made(count))
        write_cases("cases.parquet", read_cases("cases.jsonl"))
        return
    began = time.process_time()
    if name == "json.loads":
        with Path("cases.jsonl").open() as file:
            done: object = sum(1 for line in file if json.loads(line))
    elif name.startswith("read"):
        done = sum(1 for _ in read_cases(name.split()[1]))
    else:
        work = import_cases if "import" in name else export_cases
        done = work(load(Path("cases.yaml"), ()), Path(name.split()[-1]))
    seconds = time.process_time() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{name:24} {seconds:7.1f} CPU-s  {memory:5.0f} MiB  {done}", flush=True)


STEPS = (
    "write",
    "json.loads",
    "read cases.jsonl",
    "read cases.parquet",
    "import cases.jsonl",
    "import again cases.jsonl",
    "export again.jsonl",
    "export again.parquet",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments.step, arguments.cases)
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "cases.yaml").write_text(CONFIG)
        for name in STEPS:
            command = [sys.executable, str(Path(__file__).resolve()), "--cases", str(arguments.cases), "--step", name]
            subprocess.run(command, cwd=folder, check=True)
        for file in sorted(Path(folder).glob("cases.*")):
            print(f"{file.name:24} {file.stat().st_size / 1e6:7.1f} MB")


if __name__ == "__main__":
    main()
