"""The losses and estimators of training, as pure functions. B: responses, T: token positions of a response.

For SAC, B: states, A: actions, C: critics.

GAE: Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation (2016).
PPO: Schulman et al., Proximal Policy Optimization Algorithms (2017).
InstructGPT: Ouyang et al., Training language models to follow instructions with human feedback (2022).
DPO: Rafailov et al., Direct Preference Optimization: Your Language Model is Secretly a Reward Model (2023).
KL: Schulman, Approximating KL Divergence (2020).
RLOO: Ahmadian et al., Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs
(2024).
SAC: Christodoulou, Soft Actor-Critic for Discrete Action Settings (2019).
Retroformer: Yao et al. (2024), section 4.2 and appendix C.

`mask_BT` is 1 at the tokens of a response, including its end-of-turn token, and 0 at the padding after it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

CENTRING = 0.01
"""Weight of the squared sum of a pair's scores in the reward model's loss. Bradley-Terry fixes only differences; this
keeps scores around zero."""

BETA = 0.1
"""KL coefficient of DPO: the smaller, the further a pair may move the policy from the SFT policy."""


def k1(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """Return log(pi / pi_ref) of drawn tokens, (B, T). Its mean is KL(pi || pi_ref); single values have either sign.

    As a penalty in the reward, only this one gives the policy gradient of the KL divergence.
    """
    return log_probs_BT - reference_log_probs_BT


def k3(log_probs_BT: Tensor, reference_log_probs_BT: Tensor) -> Tensor:
    """Return r - 1 - log r with r = pi_ref / pi, (B, T). Its mean is KL(pi || pi_ref), and it is never negative."""
    log_ratios_BT = reference_log_probs_BT - log_probs_BT
    return torch.expm1(log_ratios_BT) - log_ratios_BT


def token_rewards(scores_B: Tensor, divergences_BT: Tensor, mask_BT: Tensor, kl_weight: float) -> Tensor:
    """Return the reward of each token: the weighted KL penalty, plus the score at the last token.

    With k1, the sum over a response is InstructGPT eq. 2 without its pre-training term, and Retroformer eq. 5:
    score - kl_weight * log(pi / pi_SFT).
    """
    rewards_BT = -kl_weight * divergences_BT * mask_BT
    last_B1 = mask_BT.sum(dim=1, keepdim=True).long() - 1
    return rewards_BT.scatter_add(1, last_B1, scores_B[:, None])


def generalized_advantages(
    rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return advantages (GAE eq. 16), not whitened, and returns, both (B, T).

    The value after the last token is zero, since a response always ends its episode. A return is advantage + value,
    the target of the value function.
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
    """Shift and scale to mean 0 and variance 1 over the tokens of all responses; padding becomes 0."""
    mean = masked_mean(values_BT, mask_BT)
    variance = masked_mean((values_BT - mean).square(), mask_BT)
    return (values_BT - mean) * torch.rsqrt(variance + 1e-8) * mask_BT


def explained_variance(values_BT: Tensor, returns_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return 1 - Var(return - value) / Var(return) over the tokens of all responses; 0 if all returns are equal.

    1 is a perfect value function, 0 is as good as a constant, and below 0 is worse than a constant.
    """
    errors_BT = returns_BT - values_BT
    unexplained = masked_mean((errors_BT - masked_mean(errors_BT, mask_BT)).square(), mask_BT)
    variance = masked_mean((returns_BT - masked_mean(returns_BT, mask_BT)).square(), mask_BT)
    return torch.where(variance > 0, 1 - unexplained / variance, 0.0)


def clipped_policy_loss(
    log_probs_BT: Tensor,
    old_log_probs_BT: Tensor,
    advantages_BT: Tensor,
    clip: float,
    clip_high: float | None = None,
) -> Tensor:
    """Return the negative of the clipped surrogate objective (PPO eq. 7) for each token, (B, T).

    The ratio is clipped at 1 - clip and at 1 + clip_high, which is `clip` if None.
    """
    ratio_BT = torch.exp(log_probs_BT - old_log_probs_BT)
    clipped_BT = ratio_BT.clamp(1 - clip, 1 + (clip if clip_high is None else clip_high))
    return torch.maximum(-advantages_BT * ratio_BT, -advantages_BT * clipped_BT)


def clipped_value_loss(values_BT: Tensor, old_values_BT: Tensor, returns_BT: Tensor, clip: float) -> Tensor:
    """Return half the squared error of the values (PPO eq. 9) for each token, (B, T), with clipping.

    It is the larger of the errors of the value and of the value clipped to `clip` around the old one, so moving further
    than `clip` earns nothing.
    """
    clipped_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
    return 0.5 * torch.maximum((values_BT - returns_BT).square(), (clipped_BT - returns_BT).square())


def preference_loss(chosen_B: Tensor, rejected_B: Tensor) -> Tensor:
    """Return -log sigmoid(chosen - rejected), the Bradley-Terry loss (InstructGPT eq. 1, Retroformer eq. 4), (B,).

    `train.reward` trains on it and measures held-out pairs with it. On implicit rewards it is the loss of DPO (eq. 7).
    """
    return -logsigmoid(chosen_B - rejected_B)


def implicit_rewards(log_probs_B: Tensor, reference_log_probs_B: Tensor, beta: float) -> Tensor:
    """Return beta * log(pi / pi_SFT) of whole responses (DPO, below eq. 7), (B,).

    The policy is optimal for this reward at KL coefficient `beta`, up to a term of the prompt that cancels in a pair.
    """
    return beta * (log_probs_B - reference_log_probs_B)


def soft_values(q_BA: Tensor, log_policy_BA: Tensor, alpha: float) -> Tensor:
    """Return V(s) = sum_a pi(a|s) (Q(s,a) - alpha log pi(a|s)) (SAC eq. 10), (B,).

    An action that a state does not admit has the log-probability -inf and any finite value; it counts nothing.
    """
    terms_BA = q_BA - alpha * log_policy_BA.masked_fill(log_policy_BA == -torch.inf, 0.0)
    return (log_policy_BA.exp() * terms_BA).sum(dim=1)


def soft_targets(rewards_B: Tensor, next_values_B: Tensor, over_B: Tensor, gamma: float) -> Tensor:
    """Return r + gamma V(s'), or r where the attempt is over: what both critics should predict (SAC eq. 4), (B,)."""
    return rewards_B + gamma * torch.where(over_B, 0.0, next_values_B)


def soft_critic_loss(q_CB: Tensor, targets_B: Tensor) -> Tensor:
    """Return half the squared error of the chosen actions' values (SAC eq. 4), summed over the critics, (B,)."""
    return 0.5 * (q_CB - targets_B).square().sum(dim=0)


def soft_policy_loss(q_BA: Tensor, log_policy_BA: Tensor, alpha: float) -> Tensor:
    """Return sum_a pi(a|s) (alpha log pi(a|s) - Q(s,a)) (SAC eq. 12), (B,): the negative of the soft value.

    Its gradient is exact: the sum runs over all actions, so no action is sampled.
    """
    return -soft_values(q_BA, log_policy_BA, alpha)


def masked_mean(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean over the tokens of all responses."""
    return (values_BT * mask_BT).sum() / mask_BT.sum()


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
    """Return rewards minus the mean of the others of their group (RLOO), (N, G), in units of the reward."""
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

    `average` is `response`: the mean over the tokens of a response, then over responses (DeepSeekMath eq. 3);
    `constant`: the sum over its tokens divided by `longest` (Dr. GRPO); or `token`: the mean over the tokens of all
    responses (DAPO, section 3.3).
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
