"""Refuses numbers that are not finite before they reach a weight: after one step with NaN every weight is NaN."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from retroformer.errors import NotFinite

LOWER_THE_RATE = (
    "no checkpoint holds it; lower the stage's learning_rate, or see that the data and the adapters before it are "
    "sound, and run the command again."
)


def require_finite(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raises NotFinite, which names the first tensor with infinite numbers or NaN; `where` ends the sentence."""
    for name, tensor in named:
        if tensor.is_floating_point() and not is_finite(tensor):
            raise NotFinite(f"{name} holds infinite numbers or NaN {where}")


def require_finite_gradients(named: Iterable[tuple[str, nn.Parameter]], when: str) -> None:
    """Raises NotFinite, which names the first parameter whose gradient holds infinite numbers or NaN."""
    gradients = ((name, parameter.grad) for name, parameter in named)
    known = ((f"The gradient of {name}", gradient) for name, gradient in gradients if gradient is not None)
    require_finite(known, f"{when}: {LOWER_THE_RATE}")


def require_finite_scores(scores_B: Tensor) -> None:
    """Raises NotFinite where a score of the reward model is infinite or not a number."""
    require_finite([("The reward model's score", scores_B)], "on a response: train the reward model again.")


def is_finite(tensor: Tensor) -> bool:
    """Whether every number of a tensor is finite. Its extremes tell, without a copy of it in memory."""
    if not tensor.numel():
        return True
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(tensor.detach()))
