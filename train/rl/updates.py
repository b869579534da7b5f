"""The optimiser of PPO and GRPO, and their outer loop, which takes updates with curves, alarms and checkpoints."""

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from retroformer.errors import NotFinite, RetroformerError, ServiceError
from retroformer.experiment.sections.train import Grpo, Ppo
from retroformer.progress import line

from .. import preemption, processes
from ..integrity.finite import LOWER_THE_RATE, require_finite, require_finite_gradients
from ..stage import Stage
from ..tracking import tracker
from . import checkpoint
from .alarms import Facts, first_rings, ringing
from .policy import SharedBase
from .sampling import Block

VALUE_LEARNING_RATE = 1e-3
MAX_GRADIENT_NORM = 1.0
WARMUP_SHARE = 0.05
"""Share of the optimiser steps in which the learning rates rise to their peak."""


def make_optimizer(model: SharedBase, settings: Ppo | Grpo) -> torch.optim.AdamW:
    """Return Adam over the policy's adapter and, for PPO, the value head; `peak` keeps each group's learning rate."""
    groups: list[dict[str, Any]] = [{"params": model.adapter_parameters(), "peak": settings.learning_rate}]
    if isinstance(settings, Ppo):
        groups.append({"params": list(model.value_head.parameters()), "peak": VALUE_LEARNING_RATE})
    return torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=0.0)


def set_learning_rates(optimizer: torch.optim.Optimizer, settings: Ppo | Grpo, step: int) -> None:
    """Set the learning rates of a step: rising in the warm-up, then constant. There is no state to resume."""
    warmup = max(1.0, WARMUP_SHARE * settings.updates * settings.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1.0, (step + 1) / warmup)


def accumulate(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Block],
    add_gradients: Callable[[Block], dict[str, float]],
) -> dict[str, float]:
    """Sum the gradients that `add_gradients` adds for each micro-batch, over all processes, and clip them.

    Returns:
        The sums of the facts that `add_gradients` returns; of `ratio_furthest_from_1` the maximum. `gradient_norm` is
        the norm before clipping.

    Raises:
        NotFinite: the gradient of a parameter is infinite or not a number.
    """
    model.train()
    optimizer.zero_grad()
    parts = processes.each(micro_batches, add_gradients)
    facts: dict[str, float] = {name: sum(part[name] for part in parts) for name in parts[0]}
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


logger = logging.getLogger(__name__)


def take_updates(
    stage: Stage,
    settings: Ppo | Grpo,
    updates: Iterator[Facts],
    history: list[Facts],
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
) -> dict[str, Any]:
    """Take the `updates` that follow `history`, append their facts to it, and return entries for metrics.json.

    Raises:
        ServiceError: another process has ended; the checkpoints are those that a kill would have left.
        NotFinite: the update has infinite numbers or NaN; the checkpoints are those that a kill would have left.
        Stopped: SIGTERM has asked for it; a checkpoint is saved.
        RetroformerError: the next update cannot be computed; a checkpoint of the previous ones is saved.
    """
    steps, resumed_from, rung = stage.experiment.train.checkpoint_steps, len(history), len(first_rings(history))
    progress_line = line(f"train {stage.name}", settings.updates, resumed_from, console=processes.screen())
    with tracker(stage) as track, progress_line as progress:
        try:
            for facts in updates:
                history.append(facts | ringing(history, facts))
                track(len(history), history[-1])
                divergence = f"  kl {facts['kl']:.2f}" if "kl" in facts else ""
                progress.show(len(history), f"score {facts['score']:+.2f}{divergence}")
                for alarm in first_rings(history)[rung:]:
                    logger.warning(alarm)
                    rung += 1
                asked = len(history) < settings.updates and preemption.stop_requested()
                if asked or len(history) % steps == 0:
                    checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
                if asked:
                    raise preemption.stopped(stage.name, len(history), settings.updates, "update")
        except preemption.Stopped:
            raise
        except ServiceError:
            # Another process has ended, perhaps between two passes over a batch, so this policy is half-updated.
            raise
        except NotFinite as error:
            # The policy may be half-updated here, too.
            raise NotFinite(f"Update {len(history) + 1} of {stage.name} cannot be taken. {error}") from None
        except RetroformerError:
            # The next update lacks a server, an endpoint or budget. The previous ones need not be repeated.
            if len(history) > resumed_from:
                checkpoint.save(stage.checkpoints, len(history), model, optimizer, history)
            raise
    counts = {"updates": len(history), "resumed_from_update": resumed_from}
    return counts | {"alarms": first_rings(history), "history": history}
