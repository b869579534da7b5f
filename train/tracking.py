"""Where curves go: tensorboard files in runs/NAME/logs, or a tracker by name."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from retroformer.errors import MissingInput
from train import processes
from train.stage import Stage


class Tracker(Protocol):
    """Takes the numbers of a step."""

    def __call__(self, step: int, values: Mapping[str, float]) -> None: ...


@contextmanager
def tracker(stage: Stage) -> Iterator[Tracker]:
    """What `train.report_to` names, open for one stage, in the main process."""
    name = stage.experiment.train.report_to
    if name == "none" or not processes.is_main():
        yield lambda step, values: None
    elif name == "tensorboard":
        yield from _tensorboard(stage)
    else:
        yield from _service(name, stage)


def _tensorboard(stage: Stage) -> Iterator[Tracker]:
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(str(stage.logs))

    def log(step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        # A killed run keeps its curve.
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


def _service(name: str, stage: Stage) -> Iterator[Tracker]:
    """Both wandb and trackio have this interface."""
    try:
        service: Any = importlib.import_module(name)
    except ModuleNotFoundError:
        raise MissingInput(f"No package {name}: install it, or set train.report_to to tensorboard or none.") from None
    service.init(
        project="retroformer",
        name=f"{stage.experiment.run}-{stage.name}",
        config=stage.experiment.model_dump(mode="json"),
    )
    try:
        yield lambda step, values: service.log(dict(values), step=step)
    finally:
        service.finish()
