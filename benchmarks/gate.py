"""Replay stored outcomes through the gate and the monitor, and count wrong and right decisions.

    python -m benchmarks.gate PATH/reflexion_logs.jsonl.xz > docs/results/gate.md

The outcomes are those of Reflexion's ALFWorld runs, which share their first attempts: 50 games failed, and each was
retried once without advice and once with it. A replay draws games with replacement. The adapters:

- null: the two retries of a game are given to the adapter and to its opponent by a fair coin, so neither is better;
- better: the adapter has the retry with advice, its opponent the one without;
- sabotaged: the adapter's advice makes every retry fail, and its opponent is the recorded advice.
"""

import argparse
import json
import lzma
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.gate.monitor import watch
from eval.measure.betting import Conclusion, sequential_test
from retroformer.markdown import table
from retroformer.store.rows import LiveRetry

REPLAYS = 200
PAIRS = 500
"""Largest number of failed tasks in a replay of the gate."""
RETRIES = 5_000
"""Largest number of live retries in a replay of the monitor."""
UNADVISED, LEVEL = 0.1, 0.05
RUNS = "alfworld_runs/root/{}_run_logs/env_results_trial_{}.json"

Floats = NDArray[np.float64]


class Outcomes(NamedTuple):
    """Success of the first retry of each failed game."""

    without: Floats
    with_advice: Floats


def read(path: Path) -> Outcomes:
    """Return the outcomes of the games that failed at first. Both runs have the same first attempts."""
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        logs = {row["path"]: row["text"] for row in map(json.loads, lines)}

    def solved(run: str, trial: int) -> list[bool]:
        return [game["is_success"] for game in json.loads(logs[RUNS.format(run, trial)])]

    first = solved("base", 0)
    assert first == solved("reflexion", 0), "the two runs do not share their first attempts"
    failed = np.flatnonzero(~np.array(first))
    return Outcomes(*(np.array(solved(run, 1), dtype=np.float64)[failed] for run in ("base", "reflexion")))


def gate(outcomes: Outcomes, kind: str, seed: int) -> tuple[str, int]:
    """Return the conclusion of one replay of the gate, and the number of pairs that it took."""
    generator = np.random.default_rng([seed, 1])
    games = generator.integers(len(outcomes.without), size=PAIRS)
    plain, helped = outcomes.without[games], outcomes.with_advice[games]
    differences = {
        "null": (helped - plain) * generator.choice((-1.0, 1.0), size=PAIRS),
        "better": helped - plain,
        "sabotaged": -helped,
    }[kind]
    test = sequential_test(list(differences), LEVEL)
    return test.conclusion, test.observations


def monitor(outcomes: Outcomes, kind: str, seed: int) -> tuple[str, int]:
    """Return whether one replay of the monitor rolled back, and the number of live retries that it took."""
    generator = np.random.default_rng([seed, 2])
    games = generator.integers(len(outcomes.without), size=RETRIES)
    is_advised = generator.random(RETRIES) >= UNADVISED
    own = {
        "null": outcomes.without[games],
        "better": outcomes.with_advice[games],
        "sabotaged": np.zeros(RETRIES),
    }[kind]
    returned = np.where(is_advised, own, outcomes.without[games])
    start = datetime(2026, 1, 1, tzinfo=UTC)
    retries = [
        LiveRetry(str(number), bool(advised), float(score), start + timedelta(seconds=number + 1), "a" * 64)
        for number, (advised, score) in enumerate(zip(is_advised, returned, strict=True))
    ]
    seen = watch(retries, "a" * 64, start, LEVEL)
    return ("rolled back" if seen.worse else "stays"), seen.retries


def replays(
    play: Callable[[Outcomes, str, int], tuple[str, int]], outcomes: Outcomes, kind: str
) -> list[tuple[str, int]]:
    return [play(outcomes, kind, seed) for seed in range(REPLAYS)]


def taken(results: Sequence[tuple[str, int]], conclusion: str) -> str:
    """Return how many replays ended so, and after how many tasks: the median and the longest."""
    numbers = [number for ending, number in results if ending == conclusion]
    return f"{len(numbers)} ({median(numbers):.0f}; {max(numbers)})" if numbers else "0"


def report(outcomes: Outcomes) -> str:
    """Return the page."""
    plain, advised = outcomes.without.mean(), outcomes.with_advice.mean()
    gates = [
        [kind, *(taken(results, ending) for ending in (Conclusion.BETTER, Conclusion.WORSE, Conclusion.OPEN))]
        for kind in ("null", "better", "sabotaged")
        for results in [replays(gate, outcomes, kind)]
    ]
    monitors = [
        [kind, *(taken(results, ending) for ending in ("rolled back", "stays"))]
        for kind in ("null", "better", "sabotaged")
        for results in [replays(monitor, outcomes, kind)]
    ]
    facts = f"Of {len(outcomes.without)} failed games, {plain:.0%} were solved without advice, {advised:.0%} with it."
    return "\n".join(
        [
            HEAD,
            f"{facts}\n",
            f"## The gate: {REPLAYS} replays of at most {PAIRS} failed tasks\n",
            table(["adapter", "promoted", "shown worse", "not decided"], gates),
            f"\n## The monitor: {REPLAYS} replays of at most {RETRIES:,} live retries\n",
            table(["adapter", "rolled back", "stays"], monitors),
            TAIL,
        ]
    )


HEAD = """# How often the gate and the monitor are wrong

The [gate](../promotion.md) and the monitor are replayed on stored outcomes: the first retries of Reflexion's ALFWorld
runs, whose first attempts are the same with advice and without. Each replay draws games with replacement. Numbers in
brackets are the median and the largest number of failed tasks, or of live retries, until the decision. The level is
.05, and one live story in ten is retried without advice.

The page is the output of

    python -m benchmarks.gate PATH/reflexion_logs.jsonl.xz
"""
TAIL = """
- *null* (gate): a fair coin gives the two retries of each game to the adapter and its opponent. In the monitor, the
  adapter's retries are those without advice. A promotion or a rollback is an error.
- *better*: the adapter has the recorded retries with advice, its opponent those without.
- *sabotaged*: every retry with the adapter's advice fails. In the gate its opponent is the recorded advice."""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", type=Path)
    print(report(read(parser.parse_args().logs)))
