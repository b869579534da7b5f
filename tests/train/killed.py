"""Kills a stage with SIGKILL, resumes it, and compares it with the same stage unbroken."""

import contextlib
import re
import shutil
from pathlib import Path
from typing import Any

from tests.support.killing import start_and_kill
from tests.train.world import metrics
from train.__main__ import main


def copy_of_run(folder: Path, name: str = "whole") -> Path:
    """Copy the run in `folder` to a subfolder, in which it can continue independently."""
    shutil.copytree(folder / "runs", folder / name / "runs")
    return folder / name


def kill_at(folder: Path, checkpoint: str, stage: str, config: Path) -> None:
    """Start a stage in a process, and kill it when this checkpoint or a later one exists.

    A stage keeps only two checkpoints, so the given one may be gone already.
    """

    def is_there(_: int) -> bool:
        pattern = re.sub(r"[0-9]+", "*", checkpoint)
        with contextlib.suppress(FileNotFoundError):  # Checkpoints are deleted meanwhile.
            stages = list((folder / "runs/tiny/checkpoints").glob("*"))
            existing = [path.relative_to(stage) for stage in stages for path in stage.glob(pattern)]
            return any(_number(path) >= _number(Path(checkpoint)) for path in existing)
        return False

    said = start_and_kill(folder, "train", [stage, str(config)], is_there)
    assert said is None, said
    assert not (folder / "runs/tiny" / stage).exists(), "a half-trained adapter looks finished"


def _number(checkpoint: Path) -> int:
    """Return the step or update in a checkpoint's name."""
    return int("".join(re.findall("[0-9]+", str(checkpoint))))


def train_in(folder: Path, stage: str, config: Path) -> dict[str, Any]:
    """Run or resume a stage in `folder`, and return its metrics."""
    with contextlib.chdir(folder):
        main([stage, str(config)])
    return metrics(folder, stage)


def require_alike(broken: dict[str, Any], unbroken: dict[str, Any], resumed_from: int) -> None:
    """Check that two runs of a stage have equal results, and that the broken one resumed from this step or later."""
    done = "steps" if "steps" in unbroken else "updates"
    curve = "losses" if "losses" in unbroken else "history"
    assert resumed_from <= broken[f"resumed_from_{done.removesuffix('s')}"] <= broken[done]
    assert broken[done] == unbroken[done]
    assert broken["adapter_sha256"] == unbroken["adapter_sha256"], f"{unbroken['stage']} resumed differently"
    assert broken[curve] == unbroken[curve]
