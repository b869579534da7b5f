"""Truncated importance weights, for tokens that another policy has sampled than the one that trains.

Ionides, Truncated Importance Sampling (2008). The weight of a token is min(pi_policy / pi_sampler, `MAX_WEIGHT`);
without the bound, a few tokens that the sampler found unlikely would decide an update.
"""

import torch
from torch import Tensor

MAX_WEIGHT = 2.0
"""Largest importance weight of a token."""
_ROUNDING = 1e-3
"""Log-probabilities closer than this, in nats, count as equal: they differ by rounding with the server's other work,
and a resumed run should repeat an unbroken one."""


def truncated_weights(policy_BT: Tensor, sampler_BT: Tensor) -> Tensor:
    """Return the importance weight of each token, (B, T), from the log-probabilities of policy and sampler."""
    differences_BT = policy_BT - sampler_BT
    return torch.exp(differences_BT.where(differences_BT.abs() > _ROUNDING, 0.0)).clamp(max=MAX_WEIGHT)
