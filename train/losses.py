"""The mathematics of training, pure. Shapes are in the names: B responses, T token positions of a response.

GAE: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation (2016).
PPO: Schulman et al., Proximal Policy Optimization Algorithms (2017).
IPPO: Ouyang et al., Training language models to follow instructions with human feedback (2022).
DPO: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023).
KL: Schulman, Approximating KL Divergence (2020).
Retroformer: Yao et al. (2024), section 4.3 and appendix C.

`mask_BT` is 1 at the tokens of a response, its end-of-turn token included, and 0 at the padding after it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def k1(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """log(pi / pi_ref) of drawn tokens, (B, T): its mean is KL(pi || pi_ref), single values are of either sign (KL).

    As a penalty in the reward it is the only one of the three by which the policy gradient is that of the divergence.
    """
    return log_probs_BT - reference_log_probs_BT


def k2(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """Half the squared log ratio, (B, T): never negative, and near the divergence where that is small (KL)."""
    return 0.5 * (log_probs_BT - reference_log_probs_BT).square()


def k3(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """With r = pi_ref / pi: r - 1 - log r, (B, T). Its mean is KL(pi || pi_ref), and it is never negative (KL)."""
    log_ratios_BT = reference_log_probs_BT - log_probs_BT
    return torch.expm1(log_ratios_BT) - log_ratios_BT


ESTIMATORS: Mapping[Literal["k1", "k2", "k3"], Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3}
)
"""Of the divergence at a drawn token, by the names that a page gives them."""


def token_rewards(scores_B: Tensor, divergences_BT: Tensor, mask_BT: Tensor, kl_weight: float) -> Tensor:
    """What each token earns: the score at the last one, minus the divergence from the SFT policy at every one.

    With k1 the sum over a response is IPPO eq. 2 without its pre-training term, (score - kl_weight * log(pi / pi_SFT)),
    as Retroformer eq. 5 uses it.
    """
    rewards_BT = -kl_weight * divergences_BT * mask_BT
    last_B1 = mask_BT.sum(dim=1, keepdim=True).long() - 1
    return rewards_BT.scatter_add(1, last_B1, scores_B[:, None])


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Advantages (GAE eq. 16) and returns, both (B, T); advantages are not whitened.

    The value after the last token is zero: a response always ends its episode. A return is advantage + value, the
    target of the value function.
    """
    values_BT = values_BT * mask_BT
    advantages_BT = torch.zeros_like(values_BT)
    following_B = torch.zeros_like(values_BT[:, 0])
    next_values_B = torch.zeros_like(following_B)
    for position in reversed(range(values_BT.shape[1])):
        deltas_B = rewards_BT[:, position] + gamma * next_values_B - values_BT[:, position]
        following_B = (deltas_B + gamma * lam * following_B) * mask_BT[:, position]
        advantages_BT[:, position] = following_B
        next_values_B = values_BT[:, position]
    return advantages_BT, advantages_BT + values_BT


def whitened(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Shifted and scaled to mean 0 and variance 1 over the tokens of all responses; 0 at the padding."""
    mean = masked_mean(values_BT, mask_BT)
    variance = masked_mean((values_BT - mean).square(), mask_BT)
    return (values_BT - mean) * torch.rsqrt(variance + 1e-8) * mask_BT


def whitened_around_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Scaled to variance 1 like `whitened`, but the mean stays: for rewards, whose sign says good or bad."""
    return whitened(values_BT, mask_BT) + masked_mean(values_BT, mask_BT) * mask_BT


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """1 - Var(return - value) / Var(return) over the tokens of all responses; 0 where all returns are equal.

    1 is a perfect value function, 0 is worth as much as a constant, and less than 0 is worse than one.
    """
    errors_BT = returns_BT - values_BT
    unexplained = masked_mean((errors_BT - masked_mean(errors_BT, mask_BT)).square(), mask_BT)
    variance = masked_mean((returns_BT - masked_mean(returns_BT, mask_BT)).square(), mask_BT)
    return torch.where(variance > 0, 1 - unexplained / variance, 0.0)


def clipped_policy_loss(log_probs_BT: Tensor, old_log_probs_BT: Tensor, advantages_BT: Tensor, clip: float) -> Tensor:
    """The negative of the clipped surrogate objective (PPO eq. 7), a token at a time, (B, T)."""
    ratio_BT = torch.exp(log_probs_BT - old_log_probs_BT)
    clipped_BT = ratio_BT.clamp(1 - clip, 1 + clip)
    return torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * clipped_BT)


def clipped_value_loss(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, clip: float) -> Tensor:
    """Half the squared error (PPO eq. 9), a token at a time, (B, T); the value may move by `clip` for credit.

    The larger of both errors counts, so a value that moved too far is not rewarded for it.
    """
    clipped_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
    return 0.5 * torch.maximum((values_BT - returns_BT).square(), (clipped_BT - returns_BT).square())


def preference_loss(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
    """-log sigmoid of the difference of two scores, the Bradley-Terry model (IPPO eq. 1, Retroformer eq. 4), (B,).

    For the reward model trl's trainer computes it in training; this one states it, and measures it on held-out pairs.
    Of implicit rewards it is the loss of DPO (eq. 7).
    """
    return -logsigmoid(chosen_B - rejected_B)


def implicit_rewards(log_probs_B: Tensor, reference_log_probs_B: Tensor, beta: float) -> Tensor:
    """Scaled log ratios, beta * log(pi / pi_SFT), of whole responses (DPO, below eq. 7), (B,).

    The reward for which the policy would be the best answer at this weight of divergence, up to a term of the prompt
    that cancels within a pair.
    """
    return beta * (log_probs_B - reference_log_probs_B)


def divergence(log_probs_NV: Tensor, reference_log_probs_NV: Tensor) -> Tensor:
    """KL(pi || pi_SFT) at each of N tokens, exact over the vocabulary V, (N,)."""
    return (log_probs_NV.exp() * (log_probs_NV - reference_log_probs_NV)).sum(dim=-1)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Over the tokens of all responses."""
    return (values_BT * mask_BT).sum() / mask_BT.sum()
