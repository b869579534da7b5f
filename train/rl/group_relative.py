"""Advantages and loss of GRPO, as pure functions. N: groups of G responses to one prompt, B: all N * G responses, T:
token positions of a response.

GRPO: Shao et al., DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models (2024).
Dr. GRPO: Liu et al., Understanding R1-Zero-Like Training: A Critical Perspective (2025).
RLOO: Ahmadian et al., Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback (2024).
DAPO: Yu et al., DAPO: An Open-Source LLM Reinforcement Learning System at Scale (2025).

A missing reward is `nan` in `rewards_NG`; the response is left out of its group.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from ..losses import clipped_policy_loss, k3

_SMALLEST_DEVIATION = 1e-4
"""Added to the deviation of a group, so that differences from rounding do not give large advantages."""


def centred(rewards_NG: Tensor) -> Tensor:
    """Return rewards minus the mean of their group (Dr. GRPO), (N, G), in units of the reward.

    Exactly 0 if all rewards of a group are equal, and for a missing reward.
    """
    means_N1 = rewards_NG.nanmean(dim=1, keepdim=True)
    return (rewards_NG - means_N1).where(differing(rewards_NG)[:, None] & ~rewards_NG.isnan(), 0.0)


def standardised(rewards_NG: Tensor) -> Tensor:
    """Return `centred` in standard deviations of the group, the advantages of DeepSeekMath, section 4.1.2, (N, G)."""
    centred_NG = centred(rewards_NG)
    counts_N1 = (~rewards_NG.isnan()).sum(dim=1, keepdim=True).clamp(min=1)
    deviations_N1 = (centred_NG.square().sum(dim=1, keepdim=True) / counts_N1).sqrt()
    return centred_NG / (deviations_N1 + _SMALLEST_DEVIATION)


def against_others(rewards_NG: Tensor) -> Tensor:
    """Return rewards minus the mean of the others of their group (RLOO, eq. 6), (N, G), in units of the reward."""
    counts_N1 = (~rewards_NG.isnan()).sum(dim=1, keepdim=True)
    return centred(rewards_NG) * counts_N1 / (counts_N1 - 1).clamp(min=1)


ADVANTAGES: Mapping[Literal["grpo", "rloo"], Callable[[Tensor], Tensor]] = MappingProxyType(
    {"grpo": standardised, "rloo": against_others}
)
"""Advantages by the name of their variant in a config."""
Average = Literal["response", "constant", "token"]


def differing(rewards_NG: Tensor) -> Tensor:
    """Return True for groups whose rewards differ, (N,); other groups have no advantages."""
    missing_NG = rewards_NG.isnan()
    highest_N = rewards_NG.masked_fill(missing_NG, -torch.inf).amax(dim=1)
    lowest_N = rewards_NG.masked_fill(missing_NG, torch.inf).amin(dim=1)
    return highest_N > lowest_N


def shares(rewards_NG: Tensor) -> Tensor:
    """Return the weight of each response in the mean over groups of group means (DeepSeekMath eq. 3), (N, G).

    The weights sum to 1. A response without a reward has weight 0, and so has a group with equal rewards: it says
    nothing, and would dilute the others.
    """
    rewarded_NG = (~rewards_NG.isnan() & differing(rewards_NG)[:, None]).float()
    counts_N1 = rewarded_NG.sum(dim=1, keepdim=True)
    groups = (counts_N1 > 0).sum().clamp(min=1)
    return rewarded_NG / counts_N1.clamp(min=1) / groups


def token_weights(rewards_NG: Tensor, mask_BT: Tensor, average: Average, longest: int) -> Tensor:
    """Return the weight of each token's loss, (B, T); 0 at padding and where `shares` is 0.

    Args:
        rewards_NG: the rewards.
        mask_BT: 1 at tokens of responses.
        average: `response`: the mean over the tokens of a response, then over responses (DeepSeekMath eq. 3);
            `constant`: the sum over its tokens divided by `longest` (Dr. GRPO); `token`: the mean over the tokens of
            all responses (DAPO, section 3.3).
        longest: most tokens of a response.
    """
    shares_B1 = shares(rewards_NG).view(-1, 1)
    if average == "token":
        counted_BT = mask_BT * (shares_B1 > 0)
        return counted_BT / counted_BT.sum().clamp(min=1)
    lengths_B1 = mask_BT.sum(dim=1, keepdim=True) if average == "response" else longest
    return mask_BT * shares_B1 / lengths_B1


def group_loss(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    reference_log_probs_BT: Tensor,
    advantages_B: Tensor,
    clip: float,
    kl_weight: float,
    clip_high: float,
    importance_BT: Tensor | float = 1.0,
) -> Tensor:
    """Return the loss of each token, (B, T): the negative summand of DeepSeekMath eq. 3.

    Every token has its response's advantage. The divergence from the SFT policy is estimated by eq. 4 (k3). Ratios are
    clipped at 1 - clip and at 1 + clip_high (DAPO, section 3.1).
    `importance_BT` weighs the surrogate of tokens that another process sampled.
    """
    surrogate_BT = clipped_policy_loss(log_probs_BT, old_log_probs_BT, advantages_B[:, None], clip, clip_high)
    return importance_BT * surrogate_BT + kl_weight * k3(log_probs_BT, reference_log_probs_BT)
