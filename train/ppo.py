"""Proximal policy optimisation of the reflector against the reward model (Retroformer, eq. 5 and appendix C).

Reads prompts of collected reflections and the adapters of sft and reward; writes the policy's adapter to runs/NAME/ppo.

Where this is more than the paper says:

1. Scores are shifted and scaled by their mean and standard deviation over the texts that the reward model was
   trained on, so that a score of 1 and the weight of the divergence mean the same in every run.
2. A response that runs into the limit of tokens loses one such standard deviation: advice without an end is cut.
3. Advantages are whitened over the tokens of a batch.
4. The value head has a learning rate of its own, since it starts from zero where the policy is fine-tuned.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from retroformer.config import Ppo
from train.losses import (
    clipped_policy_loss,
    clipped_value_loss,
    generalized_advantages,
    masked_mean,
    token_rewards,
    whitened,
)
from train.sampling import Block, Responses, blocks, prompts_of_update, respond
from train.shared_base import SharedBase

MISSING_END_PENALTY = 1.0
"""Taken from the score of a response that did not end, in standard deviations of the score."""
VALUE_LEARNING_RATE = 1e-3
MAX_GRADIENT_NORM = 1.0
WARMUP_SHARE = 0.05
"""Of all optimiser steps, in which the learning rates rise to their peak."""


class Sampling(NamedTuple):
    """How responses are drawn, and what is known about the tokens and scores."""

    max_new_tokens: int
    pad_id: int
    eos_id: int
    seed: int
    score_mean: float = 0.0
    score_deviation: float = 1.0


class Rollouts(NamedTuple):
    """Responses, and what each of their tokens was worth to the policy that wrote them."""

    responses: Responses
    log_probs_BT: Tensor
    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    facts: dict[str, float]


def ppo(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[list[int]],
    page: Ppo,
    sampling: Sampling,
    first_update: int = 0,
) -> Iterator[dict[str, float]]:
    """Improve the policy update by update; yields the facts of each when it is done.

    Every update draws from its own seed, so a run resumed at `first_update` repeats an unbroken one.
    """
    for update in range(first_update, page.updates):
        torch.manual_seed(sampling.seed * 1_000_003 + update)
        # Step 1. The policy answers a batch of prompts.
        batch = prompts_of_update(prompts, update, page.batch_size, sampling.seed)
        responses = respond(
            model, batch, sampling.max_new_tokens, page.micro_batch_size, sampling.pad_id, sampling.eos_id
        )
        # Step 2. The policy, the SFT policy and the reward model read the answers; rewards become advantages.
        rollouts = evaluate(model, responses, page, sampling)
        # Step 3. A few passes over the batch with the clipped losses, one optimiser step each.
        facts: dict[str, float] = {}
        for epoch in range(page.epochs):
            set_learning_rates(optimizer, page, update * page.epochs + epoch)
            facts = optimize(model, optimizer, rollouts, page)
        yield rollouts.facts | facts


@torch.no_grad()
def evaluate(model: SharedBase, responses: Responses, page: Ppo, sampling: Sampling) -> Rollouts:
    """What the models say about the responses, and the advantages that follow."""
    model.train()
    parts = [_read(model, block, responses.length) for block in blocks(responses, page.micro_batch_size)]
    log_probs_BT, values_BT, entropies_BT, reference_BT, raw_scores_B = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    mask_BT = responses.mask_BT
    scores_B = (raw_scores_B - sampling.score_mean) / sampling.score_deviation
    scores_B = scores_B - MISSING_END_PENALTY * (~responses.ended_B).float()
    rewards_BT = token_rewards(scores_B, log_probs_BT, reference_BT, mask_BT, page.kl)
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, page.gamma, page.lam)
    facts = {
        "reward_model_score": float(raw_scores_B.mean()),
        "score": float(scores_B.mean()),
        "kl": float(((log_probs_BT - reference_BT) * mask_BT).sum(dim=1).mean()),
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
        "response_tokens": float(mask_BT.sum(dim=1).mean()),
        "ended": float(responses.ended_B.float().mean()),
        "tokens": float(responses.attention_BL.sum()),
    }
    return Rollouts(responses, log_probs_BT, values_BT, whitened(advantages_BT, mask_BT), returns_BT, facts)


def optimize(model: SharedBase, optimizer: torch.optim.Optimizer, rollouts: Rollouts, page: Ppo) -> dict[str, float]:
    """One pass over the batch, one step; the gradient is the mean over all tokens of all responses."""
    model.train()
    optimizer.zero_grad()
    total = rollouts.responses.mask_BT.sum()
    facts: dict[str, float] = {}
    for block in blocks(rollouts.responses, page.micro_batch_size):
        rows, mask_BT = block.rows, rollouts.responses.mask_BT[block.rows]
        new = model.opinions(block.ids_BL, block.attention_BL, rollouts.responses.length)
        old_BT = rollouts.log_probs_BT[rows]
        policy_BT = clipped_policy_loss(new.log_probs_BT, old_BT, rollouts.advantages_BT[rows], page.clip)
        value_BT = clipped_value_loss(new.values_BT, rollouts.values_BT[rows], rollouts.returns_BT[rows], page.clip)
        (((policy_BT + page.value_weight * value_BT) * mask_BT).sum() / total).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            off_BT = torch.exp(new.log_probs_BT - old_BT) - 1
            for name, values_BT in {
                "policy_loss": policy_BT,
                "value_loss": value_BT,
                "ratio": off_BT + 1,
                "clip_fraction": (off_BT.abs() > page.clip).float(),
            }.items():
                facts[name] = facts.get(name, 0.0) + float((values_BT * mask_BT).sum() / total)
            furthest = float((off_BT.abs() * mask_BT).max())
            facts["ratio_furthest_from_1"] = max(furthest, facts.get("ratio_furthest_from_1", 0.0))
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    facts["gradient_norm"] = float(torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM))
    optimizer.step()
    return facts


def make_optimizer(model: SharedBase, page: Ppo) -> torch.optim.AdamW:
    """Adam over the policy's adapter and the value head; `peak` keeps each group's learning rate."""
    groups: list[dict[str, Any]] = [
        {"params": model.adapter_parameters(), "peak": page.learning_rate},
        {"params": list(model.value_head.parameters()), "peak": VALUE_LEARNING_RATE},
    ]
    return torch.optim.AdamW(groups, lr=page.learning_rate, weight_decay=0.0)


def set_learning_rates(optimizer: torch.optim.Optimizer, page: Ppo, step: int) -> None:
    """Rising in the first steps, constant after; a function of the step, so there is nothing to resume."""
    warmup = max(1.0, WARMUP_SHARE * page.updates * page.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1.0, (step + 1) / warmup)


def _read(model: SharedBase, block: Block, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    mine = model.opinions(block.ids_BL, block.attention_BL, length)
    reference_BT = model.reference_log_probs(block.ids_BL, block.attention_BL, length)
    scores_B = model.scores(block.ids_BL, block.attention_BL)
    return mine.log_probs_BT, mine.values_BT, mine.entropies_BT, reference_BT, scores_B
