"""Writes training curves to tensorboard files in runs/NAME/logs, or to wandb or trackio."""

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

from retroformer.errors import MissingInput

from . import processes
from .stage import Stage


class Tracker(Protocol):
    """Records the values of one step."""

    def __call__(self, step: int, values: Mapping[str, float]) -> None: ...


@contextmanager
def tracker(stage: Stage) -> Iterator[Tracker]:
    """Open the tracker that `train.report_to` names, for one stage; processes other than the main one track nothing."""
    name = stage.experiment.train.report_to
    if name == "none" or not processes.is_main():
        yield lambda step, values: None
        return
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer: Any
        with SummaryWriter(str(stage.logs)) as writer:

            def log(step: int, values: Mapping[str, float]) -> None:
                for value_name, value in values.items():
                    writer.add_scalar(value_name, value, step)
                # So that a killed run keeps its curve.
                writer.flush()

            yield log
        return
    service: Any = importlib.import_module(name)  # wandb and trackio share an interface.
    service.init(project="retroformer", name=f"{stage.experiment.run}-{stage.name}", config=stage.experiment.as_file())
    try:
        yield lambda step, values: service.log(dict(values), step=step)
    finally:
        service.finish()


def require_tracker(name: str) -> None:
    """Raise MissingInput if the package of the tracker `name` is not installed."""
    if name in ("wandb", "trackio") and find_spec(name) is None:
        raise MissingInput(f"No package {name}: install it, or set train.report_to to tensorboard or none.")
