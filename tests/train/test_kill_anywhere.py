"""Stages killed with SIGKILL at random moments, from the first import to the published adapter.

The moments follow from a seed, which is printed; RETROFORMER_KILL_SEED repeats it. They are CPU seconds of the process,
which tell how far it is, however busy the machine.
"""

import json
import os
import random
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from safetensors.torch import load_file

from retroformer.provenance import folder_sha256
from tests.support.killing import after_cpu_seconds, cpu_seconds, start_and_kill
from tests.train.killed import copy_of_run, require_alike, train_in
from tests.train.world import collect, metrics, page
from train.supervised import complete_checkpoints

MOST_KILLS_OF_A_RUN = 3
PARTS = {"adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
"""What a trainer needs to go on as if nothing had been."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning"),
]


class Unbroken(NamedTuple):
    """A stage that nobody killed, and the run as it was before."""

    stage: str
    made: Path
    before: Path
    metrics: dict[str, Any]
    cpu_seconds: float


@pytest.mark.parametrize(
    ("base", "kills", "epochs", "updates"), [("tiny", (7, 7, 6), 40, 30), ("embedded", (2, 2, 2), 4, 6)]
)
def test_whenever_stages_are_killed_they_end_with_the_weights_of_unbroken_ones(
    base: str,
    kills: tuple[int, ...],
    epochs: int,
    updates: int,
    tiny_base: Path,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a checkpoint after every step."""
    many = {"learning_rate": 1e-3, "batch_size": 4, "micro_batch_size": 4, "epochs": epochs}
    ppo = {**many, "epochs": 2, "updates": updates}
    model = tiny_base if base == "tiny" else Path(base)
    made = page(workplace, model, sft=many, reward=many, ppo=ppo, weak_reward_model="allow")
    collect(made)
    seed = int(os.environ.get("RETROFORMER_KILL_SEED") or random.SystemRandom().randrange(10**6))
    chance, began = random.Random(f"{base} {seed}"), time.monotonic()

    def tell(what: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{time.monotonic() - began:5.0f} s  {what}")
            sys.stdout.flush()

    tell(f"{base} base, RETROFORMER_KILL_SEED={seed}")
    for stage, number in zip(("sft", "reward", "ppo"), kills, strict=True):
        unbroken = run_unbroken(workplace, stage, made)
        tell(f"{stage} unbroken: {unbroken.cpu_seconds:.1f} CPU seconds")
        for told in kill_runs(unbroken, number, chance):
            tell(f"{stage} {told}")


def run_unbroken(folder: Path, stage: str, made: Path) -> Unbroken:
    """Run the stage to its end in a process of its own."""
    before, spent = copy_of_run(folder, f"before-{stage}"), 0.0

    def look(pid: int) -> bool:
        nonlocal spent
        spent = max(spent, cpu_seconds(pid))
        return False

    said = start_and_kill(folder, "train", [stage, str(made)], look)
    assert said is not None
    assert f"trained {stage}: runs/tiny/{stage} (" in said, said
    return Unbroken(stage, made, before, metrics(folder, stage), spent)


def kill_runs(unbroken: Unbroken, number: int, chance: random.Random) -> Iterator[str]:
    """Kill runs of a stage, some of them several times, and let each end after that; tells what came of each kill."""
    stage, made, killed, runs = unbroken.stage, unbroken.made, 0, 0
    while killed < number:
        runs += 1
        folder = copy_of_run(unbroken.before, f"run-{runs}")
        for _ in range(chance.randint(1, min(MOST_KILLS_OF_A_RUN, number - killed))):
            moment, was = chance.uniform(0, unbroken.cpu_seconds), state(folder, stage)
            said = start_and_kill(folder, "train", [stage, str(made)], after_cpu_seconds(moment))
            if said is not None:
                assert f": runs/tiny/{stage} (" in said, said
                yield f"run {runs}: ended by itself before {moment:.1f} s"
                break
            killed += 1
            found = state(folder, stage)
            yield f"run {runs}: killed at {moment:.1f} s, {'before it wrote anything' if found == was else found}"
            require_nothing_half_written(folder, unbroken)
        ended = train_in(folder, stage, made)
        require_alike(ended, unbroken.metrics, 0)
        assert not list((folder / "runs/tiny").glob(f".{stage}.*"))
        from_step = ended.get("resumed_from_step", ended.get("resumed_from_update"))
        yield f"run {runs}: went on from step {from_step}, and ended alike"


def checkpoints(folder: Path, stage: str) -> tuple[list[Path], set[Path]]:
    """Those that a run would go on from, the oldest first, and those that are half there."""
    there = list((folder / "runs/tiny/checkpoints").glob(f"{stage}-*/*"))
    whole = sorted(path for path in there if path.suffix == ".pt")
    for parent in {path.parent for path in there}:
        whole += complete_checkpoints(parent)
    return whole, {path for path in there if path.is_dir() or path.name == "unfinished"} - set(whole)


def state(folder: Path, stage: str) -> str:
    """How far a stage is, by what lies there."""
    whole, partial = checkpoints(folder, stage)
    if (folder / "runs/tiny" / stage).exists():
        return "published"
    if (folder / f"runs/tiny/.{stage}.unfinished").exists():
        return "publishing"
    after = f"after {whole[-1].name}" if whole else "at the start"
    return " with ".join([after, *(f"half of {path.name}" for path in sorted(partial))])


def require_nothing_half_written(folder: Path, unbroken: Unbroken) -> None:
    """Whatever a restart would take as finished is so."""
    published = folder / "runs/tiny" / unbroken.stage
    if published.exists():
        told = metrics(folder, unbroken.stage)["adapter_sha256"]
        assert folder_sha256(published) == told == unbroken.metrics["adapter_sha256"]
    for checkpoint in checkpoints(folder, unbroken.stage)[0]:
        files = [checkpoint] if checkpoint.is_file() else list(checkpoint.iterdir())
        assert checkpoint.is_file() or {path.name for path in files} >= PARTS, f"{checkpoint} is not complete"
        for path in files:
            if path.suffix in (".pt", ".pth"):
                with zipfile.ZipFile(path) as archive:
                    assert archive.testzip() is None
            elif path.suffix == ".safetensors":
                assert load_file(path)
            elif path.suffix == ".json":
                assert json.loads(path.read_text())
