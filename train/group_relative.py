"""The mathematics of GRPO, pure. Shapes are in the names: N groups of G responses to one prompt, B = N * G responses,
T token positions of a response.

GRPO: Shao et al., DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (2024).
Dr. GRPO: Liu et al., Understanding R1-Zero-Like Training: A Critical Perspective (2025).

A response that could not be rewarded is `nan` in `rewards_NG`: it is no part of its group.
"""

import torch
from torch import Tensor

from train.losses import clipped_policy_loss, k3

_SMALLEST_DEVIATION = 1e-4
"""Added to the deviation of a group, so that rewards which differ by nothing but rounding do not become large."""


def centred(rewards_NG: Tensor) -> Tensor:
    """How much better each response is than the mean of its group (Dr. GRPO), (N, G), in units of the reward.

    Exactly 0 where all rewards of a group are equal, and for what has none: there is nothing to learn from either.
    """
    means_N1 = rewards_NG.nanmean(dim=1, keepdim=True)
    return (rewards_NG - means_N1).where(differing(rewards_NG)[:, None] & ~rewards_NG.isnan(), 0.0)


def standardised(rewards_NG: Tensor) -> Tensor:
    """The advantages of GRPO (DeepSeekMath, section 4.1.2): `centred`, in standard deviations of the group, (N, G)."""
    centred_NG = centred(rewards_NG)
    counts_N1 = (~rewards_NG.isnan()).sum(dim=1, keepdim=True).clamp(min=1)
    deviations_N1 = (centred_NG.square().sum(dim=1, keepdim=True) / counts_N1).sqrt()
    return centred_NG / (deviations_N1 + _SMALLEST_DEVIATION)


def differing(rewards_NG: Tensor) -> Tensor:
    """Which groups hold two different rewards, (N,): the others move the policy nowhere."""
    nowhere_NG = rewards_NG.isnan()
    highest_N = rewards_NG.masked_fill(nowhere_NG, -torch.inf).amax(dim=1)
    lowest_N = rewards_NG.masked_fill(nowhere_NG, torch.inf).amin(dim=1)
    return highest_N > lowest_N


def shares(rewards_NG: Tensor) -> Tensor:
    """Of each response in the mean over groups of the mean over the group (DeepSeekMath eq. 3), (N, G).

    They sum to 1; a response without a reward has none, and a group without any has none.
    """
    known_NG = (~rewards_NG.isnan()).float()
    counts_N1 = known_NG.sum(dim=1, keepdim=True)
    groups = (counts_N1 > 0).sum().clamp(min=1)
    return known_NG / counts_N1.clamp(min=1) / groups


def group_loss(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor,
    advantages_B: Tensor,
    clip: float,
    kl_weight: float,
) -> Tensor:
    """The negative of what DeepSeekMath eq. 3 sums over tokens, (B, T): every token has its response's advantage.

    The divergence from the SFT policy is in the loss, not in the reward, by the estimator of eq. 4 (k3).
    """
    surrogate_BT = clipped_policy_loss(log_probs_BT, old_log_probs_BT, advantages_B[:, None], clip)
    return surrogate_BT + kl_weight * k3(log_probs_BT, reference_log_probs_BT)
