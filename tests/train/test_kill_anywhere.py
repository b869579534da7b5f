"""Stages killed with SIGKILL at random moments, from the first import to the published adapter.

The moments follow from a seed, which is printed; RETROFORMER_KILL_SEED repeats it. They are in CPU seconds of the
process, so they do not depend on how busy the machine is.
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

from retroformer.run.provenance import folder_sha256
from tests.support.killing import after_cpu_seconds, cpu_seconds, start_and_kill
from tests.train.killed import copy_of_run, require_alike, train_in
from tests.train.world import collect, config_file, metrics
from train.trainer import complete_checkpoints

MOST_KILLS_OF_A_RUN = 3
PARTS = {"adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
"""Files that a trainer needs to resume exactly."""

pytestmark = pytest.mark.slow


class Unbroken(NamedTuple):
    """An unbroken stage, and a copy of the run from before it."""

    stage: str
    config: Path
    before: Path
    metrics: dict[str, Any]
    cpu_seconds: float


@pytest.mark.parametrize(
    ("base", "kills", "epochs", "updates"), [("tiny", (7, 7, 6), 40, 30), ("embedded", (2, 2, 2), 4, 6)]
)
def test_stages_killed_at_any_time_end_with_the_weights_of_unbroken_ones(
    base: str,
    kills: tuple[int, ...],
    epochs: int,
    updates: int,
    tiny_base: Path,
    workplace: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The stages save a checkpoint after every step."""
    many = {"learning_rate": 1e-3, "epochs": epochs}
    ppo = {**many, "batch_size": 4, "epochs": 2, "updates": updates}
    model = tiny_base if base == "tiny" else Path(base)
    config = config_file(workplace, model, sft=many, reward=many, ppo=ppo, weak_reward_model="allow")
    collect(config)
    seed = int(os.environ.get("RETROFORMER_KILL_SEED") or random.SystemRandom().randrange(10**6))
    chance, began = random.Random(f"{base} {seed}"), time.monotonic()

    def tell(what: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{time.monotonic() - began:5.0f} s  {what}")
            sys.stdout.flush()

    tell(f"{base} base, RETROFORMER_KILL_SEED={seed}")
    for stage, number in zip(("sft", "reward", "ppo"), kills, strict=True):
        unbroken = run_unbroken(workplace, stage, config)
        tell(f"{stage} unbroken: {unbroken.cpu_seconds:.1f} CPU seconds")
        for line in kill_runs(unbroken, number, chance):
            tell(f"{stage} {line}")


def run_unbroken(folder: Path, stage: str, config: Path) -> Unbroken:
    """Run the stage to its end in a separate process."""
    before, spent = copy_of_run(folder, f"before-{stage}"), 0.0

    def look(pid: int) -> bool:
        nonlocal spent
        spent = max(spent, cpu_seconds(pid))
        return False

    said = start_and_kill(folder, "train", [stage, str(config)], look)
    assert said is not None
    assert f"trained {stage}: runs/tiny/{stage} (" in said, said
    return Unbroken(stage, config, before, metrics(folder, stage), spent)


def kill_runs(unbroken: Unbroken, number: int, chance: random.Random) -> Iterator[str]:
    """Kill runs of a stage, some of them several times, then let each end; yield a line about each kill."""
    stage, config, killed, runs = unbroken.stage, unbroken.config, 0, 0
    while killed < number:
        runs += 1
        folder = copy_of_run(unbroken.before, f"run-{runs}")
        for _ in range(chance.randint(1, min(MOST_KILLS_OF_A_RUN, number - killed))):
            moment, was = chance.uniform(0, unbroken.cpu_seconds), state(folder, stage)
            said = start_and_kill(folder, "train", [stage, str(config)], after_cpu_seconds(moment))
            if said is not None:
                assert f": runs/tiny/{stage} (" in said, said
                yield f"run {runs}: ended by itself before {moment:.1f} s"
                break
            killed += 1
            reached = state(folder, stage)
            yield f"run {runs}: killed at {moment:.1f} s, {'before it wrote anything' if reached == was else reached}"
            require_nothing_half_written(folder, unbroken)
        ended = train_in(folder, stage, config)
        require_alike(ended, unbroken.metrics, 0)
        assert not list((folder / "runs/tiny").glob(f".{stage}.*"))
        from_step = ended.get("resumed_from_step", ended.get("resumed_from_update"))
        yield f"run {runs}: went on from step {from_step}, and ended alike"


def checkpoints(folder: Path, stage: str) -> tuple[list[Path], set[Path]]:
    """Return the complete checkpoints, the oldest first, and the incomplete ones."""
    there = list((folder / "runs/tiny/checkpoints").glob(f"{stage}-*/*"))
    whole = sorted(path for path in there if path.suffix == ".pt")
    for parent in {path.parent for path in there}:
        whole += complete_checkpoints(parent)
    return whole, {path for path in there if path.is_dir() or path.name == "unfinished"} - set(whole)


def state(folder: Path, stage: str) -> str:
    """Describe the progress of a stage by its files."""
    whole, partial = checkpoints(folder, stage)
    if (folder / "runs/tiny" / stage).exists():
        return "published"
    if (folder / f"runs/tiny/.{stage}.unfinished").exists():
        return "publishing"
    after = f"after {whole[-1].name}" if whole else "at the start"
    return " with ".join([after, *(f"half of {path.name}" for path in sorted(partial))])


def require_nothing_half_written(folder: Path, unbroken: Unbroken) -> None:
    """Check that everything that looks finished to a restart is complete."""
    published = folder / "runs/tiny" / unbroken.stage
    if published.exists():
        recorded = metrics(folder, unbroken.stage)["adapter_sha256"]
        assert folder_sha256(published) == recorded == unbroken.metrics["adapter_sha256"]
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
