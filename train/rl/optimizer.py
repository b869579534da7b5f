"""The optimiser that PPO and GRPO share: its learning rates, and the gradient over all micro-batches and processes."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from retroformer.experiment.sections.train import Grpo, Ppo

from .. import processes
from ..integrity.finite import LOWER_THE_RATE, require_finite, require_finite_gradients
from .sampling import Block
from .shared_base import SharedBase

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
