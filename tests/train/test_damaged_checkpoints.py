"""Damaged checkpoints: the stage resumes from the previous one, or one sentence says what to do."""

import contextlib
import logging
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retroformer.errors import DamagedFile
from tests.support.killing import refused
from tests.train.killed import copy_of_run, require_alike, train_in
from tests.train.world import collect, config_file
from train.__main__ import main

MANY: dict[str, Any] = {"learning_rate": 3e-3, "epochs": 3}
FEW_UPDATES = {**MANY, "batch_size": 4, "epochs": 2, "updates": 5}
SETTINGS: dict[str, Any] = {
    "sft": MANY,
    "reward": MANY,
    "dpo": MANY,
    "ppo": FEW_UPDATES,
    "grpo": {**FEW_UPDATES, "group": 4},
    "weak_reward_model": "allow",
}


class Stopped(NamedTuple):
    """A run whose stage stopped with two checkpoints, and the metrics of the same stage unbroken."""

    folder: Path
    config: Path
    unbroken: dict[str, Any]


STOPPING_TRACKER = """
def init(**settings): pass
def finish(): pass
def log(values, step):
    if step == 4:
        raise KeyboardInterrupt
"""
"""A tracker that raises KeyboardInterrupt at the fourth step, when checkpoints 2 and 3 exist."""


class Intrusion:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def half(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff garbage" * 200)


def missing(path: Path) -> None:
    path.unlink()


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pickled(path: Path) -> None:
    path.write_bytes(pickle.dumps(Intrusion(path.with_name("intrusion"))))


Damage = Callable[[Path], None]
WHOLE_FILES = (half, empty, garbage, pickled, one_bit)


@pytest.fixture(scope="module")
def stopped(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stopped]]:
    """Return a function that gives the stopped run of a stage, which is trained once."""
    folder = tmp_path_factory.mktemp("damage")
    config = config_file(folder, tiny_base, **SETTINGS)
    with contextlib.chdir(folder):
        collect(config, tasks=8)
    (folder / "wandb.py").write_text(STOPPING_TRACKER)
    runs: dict[str, Stopped] = {}

    def stop(stage: str) -> Stopped:
        if stage not in runs:
            for needed in {"dpo": ("sft",), "ppo": ("sft", "reward"), "grpo": ("sft", "reward")}.get(stage, ()):
                if not (folder / "runs/tiny" / needed).exists():
                    train_in(folder, needed, config)
            killed, whole = (copy_of_run(folder, f"{name}-{stage}") for name in ("killed", "whole"))
            for copy in (killed, whole):
                shutil.rmtree(copy / "runs/tiny" / stage, ignore_errors=True)
            with pytest.raises(KeyboardInterrupt), contextlib.chdir(killed):
                main([stage, str(config), "train.report_to=wandb"])
            runs[stage] = Stopped(killed, config, train_in(whole, stage, config))
        return runs[stage]

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield stop
    sys.modules.pop("wandb", None)


def checkpoints(folder: Path, stage: str) -> list[Path]:
    """Return the complete checkpoints of a stage, the newest last."""
    (of_stage,) = (folder / "runs/tiny/checkpoints").glob(f"{stage}-*")
    files = sorted(of_stage.glob("update-*.pt"))
    folders = [path.parent for path in of_stage.glob("checkpoint-*/complete")]
    return files or sorted(folders, key=lambda path: int(path.name.partition("-")[2]))


def require_fall_back(
    run: Stopped, folder: Path, stage: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Damage the newest checkpoint of a copy of the run; the stage must warn, use the previous one and end alike."""
    shutil.copytree(run.folder / "runs", folder / "runs")
    *_, older, newest = checkpoints(folder, stage)
    damage(newest)
    caplog.set_level(logging.WARNING)
    ended = train_in(folder, stage, run.config)
    (warning,) = [record.getMessage() for record in caplog.records if older.name in record.getMessage()]
    assert newest.name in warning
    assert warning.endswith(".")
    assert "\n" not in warning
    number = int("".join(filter(str.isdigit, older.name)))
    assert ended.get("resumed_from_step", ended.get("resumed_from_update")) == number
    assert ended["tokens"] == run.unbroken["tokens"]
    assert ("tokens_per_cpu_second" in ended, "tokens_per_cpu_second" in run.unbroken) == (False, True)
    require_alike(ended, run.unbroken, number)
    assert not list(folder.rglob("intrusion"))


@pytest.mark.parametrize("damage", WHOLE_FILES)
def test_a_damaged_checkpoint_of_ppo_costs_only_one_update(
    damage: Damage, stopped: Callable[[str], Stopped], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_fall_back(stopped("ppo"), tmp_path, "ppo", damage, caplog)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        pytest.param("adapter_model.safetensors", half, marks=pytest.mark.slow),
        ("adapter_model.safetensors", one_bit),
        ("adapter_config.json", missing),
        pytest.param("adapter_config.json", garbage, marks=pytest.mark.slow),
        pytest.param("optimizer.pt", half, marks=pytest.mark.slow),
        ("optimizer.pt", pickled),
        pytest.param("scheduler.pt", missing, marks=pytest.mark.slow),
        pytest.param("rng_state.pth", missing, marks=pytest.mark.slow),
        pytest.param("rng_state.pth", pickled, marks=pytest.mark.slow),
        ("trainer_state.json", garbage),
        pytest.param("complete", garbage, marks=pytest.mark.slow),
        ("complete", missing),
    ],
)
def test_a_damaged_checkpoint_of_sft_costs_only_one_step(
    name: str, damage: Damage, stopped: Callable[[str], Stopped], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    require_fall_back(stopped("sft"), tmp_path, "sft", lambda newest: damage(newest / name), caplog)


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        pytest.param("warm", "optimizer.pt", marks=pytest.mark.slow),
        pytest.param("reward", "optimizer.pt", marks=pytest.mark.slow),
        pytest.param("dpo", "ref", marks=pytest.mark.slow),
        ("grpo", ""),
    ],
)
def test_every_stage_falls_back_to_the_previous_checkpoint(
    stage: str, name: str, stopped: Callable[[str], Stopped], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inside = Path(name) / "adapter_model.safetensors" if name == "ref" else Path(name)
    require_fall_back(stopped(stage), tmp_path, stage, lambda newest: half(newest / inside), caplog)


@pytest.mark.parametrize(("stage", "name"), [("sft", "trainer_state.json"), ("ppo", "")])
@pytest.mark.parametrize(
    "damage", [pytest.param(empty, marks=pytest.mark.slow), garbage, pytest.param(pickled, marks=pytest.mark.slow)]
)
def test_if_every_checkpoint_is_damaged_one_sentence_says_how_to_begin_again(
    stage: str, name: str, damage: Damage, stopped: Callable[[str], Stopped], workplace: Path
) -> None:
    run = stopped(stage)
    shutil.copytree(run.folder / "runs", workplace / "runs")
    damaged = checkpoints(workplace, stage)
    for checkpoint in damaged:
        damage(checkpoint / name)
    folder = damaged[0].parent.relative_to(workplace)
    with pytest.raises(DamagedFile) as refusal:
        main([stage, str(run.config)])
    said = str(refusal.value)
    assert all(checkpoint.name in said for checkpoint in damaged)
    assert f"delete the folder {folder} to begin again" in said
    assert "\n" not in said
    assert not list(workplace.rglob("intrusion"))
    assert checkpoints(workplace, stage) == damaged, "what may be repaired was deleted"
    shutil.rmtree(folder)
    require_alike(train_in(workplace, stage, run.config), run.unbroken, 0)


@pytest.mark.slow
def test_a_command_prints_the_error_in_one_line_and_exits_with_status_1(
    stopped: Callable[[str], Stopped], workplace: Path
) -> None:
    run = stopped("ppo")
    shutil.copytree(run.folder / "runs", workplace / "runs")
    for checkpoint in checkpoints(workplace, "ppo"):
        half(checkpoint)
    said = [line for line in refused(workplace, "train", ["ppo", str(run.config)]).splitlines() if line.strip()]
    assert "to begin again" in said[-1]
    assert not any("Traceback" in line for line in said)
