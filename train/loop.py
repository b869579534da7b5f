"""The optimiser steps and the loop of PPO, GRPO and SAC, and what all loops share: curves, and the end by SIGTERM.

Curves go to tensorboard files in runs/NAME/logs, or to wandb or trackio.

If SIGTERM asks for it, as schedulers do before they take a machine away, a stage ends after the step in progress. The
checkpoint of that step is then saved whatever `train.checkpoint_steps` is, so that a preempted job repeats nothing. A
scheduler must leave enough time for one step; if it kills earlier, the last checkpoint counts.
"""

import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import nn

from retroformer.config.sections.train import Grpo, Ppo
from retroformer.errors import STOPPED_STATUS, MissingInput, NotFinite, RetroformerError, ServiceError
from retroformer.run.progress import line

from . import processes
from .integrity import LOWER_THE_RATE, require_finite, require_finite_gradients
from .stage import Stage

Facts = dict[str, float]
"""Measurements of an update, by name."""
Item = TypeVar("Item")

MAX_GRADIENT_NORM = 1.0
WARMUP_SHARE = 0.05
"""Share of the optimiser steps in which the learning rates rise to their peak."""


class Stopped(RetroformerError):
    """The stage was asked to end and has saved its work."""

    exit_status = STOPPED_STATUS

    def __init__(self, stage: str, done: int, most: int, unit: str) -> None:
        super().__init__(
            f"Stopped by SIGTERM after {unit} {done} of {most} of {stage}, which is saved: run the same command again "
            "to go on."
        )


_asked = threading.Event()


@contextmanager
def on_sigterm() -> Iterator[None]:
    """Note SIGTERM instead of dying of it, for the duration of the block; only the main thread can do so."""
    _asked.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _note_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _note_sigterm(number: int, frame: FrameType | None) -> None:
    _asked.set()
    if processes.is_main():
        sys.stderr.write("SIGTERM: training ends after the step in progress.\n")


def stop_requested() -> bool:
    """Return True in all processes if one of them was asked to end.

    Every process must call this after the same step, since it waits for the others.
    """
    return processes.total(float(_asked.is_set())) > 0


Tracker = Callable[[int, Mapping[str, float]], None]
"""Records the values of the step with a number."""


@contextmanager
def tracker(stage: Stage, resumed_from: int) -> Iterator[Tracker]:
    """Open the tracker that `train.report_to` names, for one stage; processes other than the main one track nothing."""
    name = stage.experiment.train.report_to
    if name == "none" or not processes.is_main():
        yield lambda step, values: None
        return
    if name == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        writer: Any
        # Later steps that were tracked before a kill, or by a run with other inputs, are not shown any more.
        with SummaryWriter(str(stage.logs), purge_step=resumed_from + 1) as writer:

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


def take(
    stage: Stage,
    unit: str,
    most: int,
    updates: Iterator[Facts],
    history: list[Facts],
    save: Callable[[list[Facts]], None],
    status: Callable[[], str],
) -> None:
    """Take the `updates` that follow `history` until there are `most`, and append the facts of each to it.

    `unit` is what the stage counts: an update, or an episode of SAC. `save` writes a checkpoint after the last of
    the history, and `status` is the text of the progress line.

    Raises:
        ServiceError: another process has ended; the checkpoints are those that a kill would have left.
        NotFinite: the update has infinite numbers or NaN; the checkpoints are those that a kill would have left.
        Stopped: SIGTERM has asked for it; a checkpoint is saved.
        RetroformerError: the next update cannot be computed; a checkpoint of the previous ones is saved.
    """
    resumed_from = len(history)
    progress_line = line(f"train {stage.name}", most, resumed_from, console=processes.screen())
    with tracker(stage, resumed_from) as track, progress_line as progress:
        try:
            for facts in updates:
                history.append(facts)
                track(len(history), facts)
                progress.show(len(history), status())
                stop = len(history) < most and stop_requested()
                if stop or len(history) % stage.experiment.train.checkpoint_steps == 0:
                    save(history)
                if stop:
                    raise Stopped(stage.name, len(history), most, unit)
        except (Stopped, ServiceError):
            # Another process has ended, perhaps between two passes over a batch, so this policy is half-updated.
            raise
        except NotFinite as error:
            # The policy may be half-updated here, too.
            raise NotFinite(
                f"{unit.capitalize()} {len(history) + 1} of {stage.name} cannot be taken. {error}"
            ) from None
        except RetroformerError:
            # The next update lacks a server, an environment or budget. The previous ones need not be repeated.
            if len(history) > resumed_from:
                save(history)
            raise


def warm_up(step: int, steps: float) -> float:
    """Return the share of its peak to which the learning rate of a step rises; the first step is 0 and teaches, too."""
    return min(1.0, (step + 1) / steps)


def set_learning_rates(optimizer: torch.optim.Optimizer, settings: Ppo | Grpo, step: int) -> None:
    """Set the learning rates of a step: rising in the warm-up, then constant. There is no state to resume."""
    warmup = max(1.0, WARMUP_SHARE * settings.updates * settings.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * warm_up(step, warmup)


def accumulate(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Item],
    add_gradients: Callable[[Item], Facts],
) -> Facts:
    """Sum the gradients that `add_gradients` adds for each micro-batch, over all processes, and clip them.

    Returns:
        The sums of the facts that `add_gradients` returns; of `ratio_furthest_from_1` the maximum. `gradient_norm` is
        the norm before clipping.
    """
    model.train()
    optimizer.zero_grad()
    parts = processes.each(micro_batches, add_gradients)
    facts: Facts = {name: sum(part[name] for part in parts) for name in parts[0]}
    facts["ratio_furthest_from_1"] = max(part["ratio_furthest_from_1"] for part in parts)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    processes.sum_gradients(parameters)
    return facts | {"gradient_norm": clip_gradients(model, parameters, "in a pass over the batch")}


def clip_gradients(module: nn.Module, parameters: Iterable[nn.Parameter], when: str) -> float:
    """Clip the gradients of `parameters` of a module; return their norm before. `when` is part of the error message.

    Raises:
        NotFinite: a gradient, or their norm, is infinite or not a number.
    """
    require_finite_gradients(module.named_parameters(), when)
    norm = nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
    require_finite([("The norm of the gradients", norm)], f"{when}: {LOWER_THE_RATE}")
    return float(norm)
