"""Stops training at infinite numbers or NaN before they reach a weight: one step with NaN makes every weight NaN."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from retroformer.errors import NotFinite

LOWER_THE_RATE = (
    "no checkpoint contains it; lower the stage's learning_rate, or check the data and the adapters of earlier stages, "
    "and run the command again."
)


def require_finite(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise NotFinite for the first tensor with infinite numbers or NaN; `where` ends the message."""
    for name, tensor in named:
        if tensor.is_floating_point() and not is_finite(tensor):
            raise NotFinite(f"{name} holds infinite numbers or NaN {where}")


def require_finite_gradients(named: Iterable[tuple[str, nn.Parameter]], when: str) -> None:
    """Raise NotFinite for the first parameter whose gradient holds infinite numbers or NaN."""
    gradients = ((f"The gradient of {name}", parameter.grad) for name, parameter in named if parameter.grad is not None)
    require_finite(gradients, f"{when}: {LOWER_THE_RATE}")


def require_finite_scores(scores_B: Tensor) -> None:
    """Raise NotFinite if a score of the reward model is infinite or not a number."""
    require_finite([("The reward model's score", scores_B)], "on a response: train the reward model again.")


def is_finite(tensor: Tensor) -> bool:
    """Return True if every number of a tensor is finite. Checking the extremes needs no copy of the tensor."""
    if not tensor.numel():
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor.detach()))
