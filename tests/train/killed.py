"""A stage that is killed with SIGKILL and goes on, beside the same stage unbroken."""

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

from tests.support.killing import start_and_kill
from tests.train.world import metrics
from train.__main__ import main


def copy_of_run(folder: Path, name: str = "whole") -> Path:
    """A folder in `folder` with all that the run has by now, in which it goes on by itself."""
    shutil.copytree(folder / "runs", folder / name / "runs")
    return folder / name


def kill_at(folder: Path, checkpoint: str, stage: str, made: Path) -> None:
    """Start a stage in a process of its own, and kill it when this checkpoint is there, or a later one.

    A stage keeps but two: whoever looks late finds those that came after.
    """

    def is_there(_: int) -> bool:
        pattern = re.sub(r"[0-9]+", "*", checkpoint)
        with contextlib.suppress(FileNotFoundError):  # Checkpoints go while one looks.
            stages = list((folder / "runs/tiny/checkpoints").glob("*"))
            found = [path.relative_to(stage) for stage in stages for path in stage.glob(pattern)]
            return any(_number(path) >= _number(Path(checkpoint)) for path in found)
        return False

    said = start_and_kill(folder, "train", [stage, str(made)], is_there)
    assert said is None, said
    assert not (folder / "runs/tiny" / stage).exists(), "a half-trained adapter looks finished"


def _number(checkpoint: Path) -> int:
    """The step or update that a checkpoint's name tells."""
    return int("".join(re.findall("[0-9]+", str(checkpoint))))


def train_in(folder: Path, stage: str, made: Path) -> dict[str, Any]:
    """Run a stage to its end in `folder`, from where it is."""
    with contextlib.chdir(folder):
        main([stage, str(made)])
    return metrics(folder, stage)


def require_alike(broken: dict[str, Any], unbroken: dict[str, Any], resumed_from: int) -> None:
    """Two runs of a stage, by what they say; the broken one went on from this step or update, or from a later one."""
    done = "steps" if "steps" in unbroken else "updates"
    curve = "losses" if "losses" in unbroken else "history"
    assert resumed_from <= broken[f"resumed_from_{done.removesuffix('s')}"] <= broken[done]
    assert broken[done] == unbroken[done]
    assert broken["adapter_sha256"] == unbroken["adapter_sha256"], f"{unbroken['stage']} resumed differently"
    assert broken[curve] == unbroken[curve]
