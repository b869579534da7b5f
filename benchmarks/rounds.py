"""Idle time of collecting and training in rounds, one step after the other and at once, and what comes of both.

    python -m benchmarks.rounds [--rounds 3] [--folder FOLDER]

Three rounds of SFT on hindsight on the demo's games, with a language model as actor, so that collecting takes a good
part of the time. Every process has one thread, so that two cores stand for two machines. `at once` has
rounds.staleness=1: a round is collected while the one before it trains. The best reflectors of both are then compared
on games that neither has seen, with the interval of the report. A killed run goes on in its folder.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "configs" / "demo.yaml"
ACTOR = "actor={kind: household, endpoint: {model: actor, api: completions}, max_new_tokens: 20}"
ADAPTERS = {"actor": "household"}
SMALL = (
    ACTOR,
    f"serve.adapters={json.dumps(ADAPTERS)}",
    "loop.trials=2",
    "collect.tasks=12",
    "collect.candidates=2",
    "train.sft.texts=hindsight",
    "rounds.split=held_out",
    "rounds.tasks=16",
)
MODES = {"one after the other": 0, "at once": 1}
_TIMES = re.compile(r"(\d+) s, of which (\d+) s collecting and (\d+) s training")
_BEST = re.compile(r"best reflector: (\S+), which solves ([\d.]+)")


class Rounds(NamedTuple):
    """What several rounds took, in seconds, and the best reflector that they made."""

    total: float
    collecting: float
    training: float
    best: str


def run(folder: Path, *words: str) -> str:
    """Run a command of Retroformer in the folder and return its output. Exits if it fails."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)}:\n{done.stdout[-500:]}{done.stderr[-1500:]}")
    return done.stdout


def rounds(folder: Path, staleness: int, count: int) -> Rounds:
    """Warm a reflector up, and run the rounds."""
    name = [f"run=rounds-{staleness}"]
    run(folder, "collect", "warm", str(CONFIG), *SMALL, *name)
    run(folder, "train", "warm", str(CONFIG), *SMALL, *name)
    words = [*SMALL, *name, f"rounds.staleness={staleness}", f"rounds.count={count}"]
    said = run(folder, "retroformer", "rounds", str(CONFIG), *words)
    total, collecting, training = map(float, _TIMES.findall(said)[0])
    best = _BEST.findall(said)[0][0]
    return Rounds(total, collecting, training, best)


def compared(folder: Path, results: dict[str, Rounds]) -> Sequence[str]:
    """Compare the best reflectors on other games; return the report's lines about their difference."""
    adapters = {f"best-{MODES[name]}": f"runs/rounds-{MODES[name]}/{one.best}" for name, one in results.items()}
    arms = {name: {"kind": "model", "model": f"best-{staleness}"} for name, staleness in MODES.items()}
    words = [
        ACTOR,
        "run=compared",
        "seed=99",
        "loop.trials=2",
        "eval.tasks=60",
        f"eval.arms={json.dumps(arms)}",
        "eval.reference=one after the other",
        f"serve.adapters={json.dumps(ADAPTERS | adapters)}",
    ]
    run(folder, "eval", str(CONFIG), *words)
    report = (folder / "runs/compared/eval/report.md").read_text()
    return [line for line in report.splitlines() if all(name in line for name in MODES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep the runs here, and go on with them")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (chosen.folder or Path(scratch)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        print("| | s | idle collector | idle trainer | best reflector |\n|---|---|---|---|---|", flush=True)
        results = dict[str, Rounds]()
        for name, staleness in MODES.items():
            one = results[name] = rounds(folder, staleness, chosen.rounds)
            idle = [f"{1 - busy / one.total:.0%}" for busy in (one.collecting, one.training)]
            print(f"| {name} | {one.total:.0f} | {' | '.join(idle)} | {one.best} |", flush=True)
        first, second = results.values()
        print(f"\ntimes as fast: {first.total / second.total:.2f}\n")
        print(*compared(folder, results), sep="\n")


if __name__ == "__main__":
    main()
