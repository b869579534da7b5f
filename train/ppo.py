"""Proximal policy optimisation of the reflector against the reward model (Retroformer, eq. 5 and appendix C).

Reads prompts of collected reflections and the adapters of sft and reward; writes the policy's adapter to runs/NAME/ppo.

Where this is more than the paper says:

1. Scores are shifted and scaled by their mean and standard deviation over the texts that the reward model was
   trained on, so that a score of 1 and the weight of the divergence mean the same in every run.
2. A response that runs into the limit of tokens loses one such standard deviation: advice without an end is cut.
3. Advantages are whitened over the tokens of a batch, unless the page says `whiten_advantages: false`.
4. The value head has a learning rate of its own, since it starts from zero where the policy is fine-tuned.
5. A page may ask for more, and none of it is on by itself: a weight of the divergence that is steered to a target
   (`kl_target`), an early end of the passes over a batch (`kl_stop`), whitened rewards (`whiten_rewards`), and another
   estimate of the divergence in the reward than log(pi / pi_SFT) (`kl_estimator`).

Truncation, at the left or at the right: none. An over-long trajectory was shortened, and says so, where it became a
prompt (`retroformer.prompts`); a prompt that does not fit into train.max_length together with the longest response
stops the stage before its first update. A response ends by itself or at reflector.max_new_tokens, and the very tokens
that were drawn are scored and trained on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from retroformer.train_sections import Grpo, Ppo
from train import processes
from train.divergence_control import kl_weight_after, next_kl_weight
from train.finite import LOWER_THE_RATE, require_finite, require_finite_gradients, require_finite_scores
from train.losses import (
    ESTIMATORS,
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    generalized_advantages,
    k1,
    k3,
    masked_mean,
    token_rewards,
    whitened,
    whitened_around_mean,
)
from train.repetition import Describe
from train.sampling import Block, Draw, Respond, Responses, blocks, prompts_of_update, respond
from train.score_scale import UNSCALED, ScoreScale
from train.shared_base import SharedBase

VALUE_LEARNING_RATE = 1e-3
MAX_GRADIENT_NORM = 1.0
WARMUP_SHARE = 0.05
"""Of all optimiser steps, in which the learning rates rise to their peak."""


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
    draw: Draw,
    scale: ScoreScale = UNSCALED,
    done: Sequence[dict[str, float]] = (),
    describe: Describe = lambda prompts, responses: {},
    answer: Respond = respond,
) -> Iterator[dict[str, float]]:
    """Improve the policy update by update; yields the facts of each when it is done.

    `done` has the facts of the updates that a checkpoint holds. Every update draws from its own seed, and the weight of
    the divergence follows from the last facts, so a resumed run repeats an unbroken one.
    """
    kl_weight = kl_weight_after(done, page)
    for update in range(len(done), page.updates):
        torch.manual_seed(draw.seed * 1_000_003 + update)
        # Step 1. The policy answers a batch of prompts.
        batch = prompts_of_update(prompts, update, page.batch_size, draw.seed)
        responses = answer(model, batch, draw)
        # Step 2. The policy, the SFT policy and the reward model read the answers; rewards become advantages.
        rollouts = evaluate(model, responses, page, scale, kl_weight)
        # Step 3. A few passes over the batch with the clipped losses, one optimiser step each.
        facts, steps = rollouts.facts | describe(batch, responses.tokens), 0
        for epoch in range(page.epochs):
            set_learning_rates(optimizer, page, update * page.epochs + epoch)
            facts |= accumulate_gradients(model, optimizer, rollouts, page)
            if page.kl_stop is not None and facts["kl_from_writer"] > page.kl_stop:
                break
            optimizer.step()
            steps += 1
        yield facts | {"kl_weight": kl_weight, "steps": steps}
        # Step 4. The weight of the divergence follows its target, where the page has one.
        kl_weight = next_kl_weight(kl_weight, facts["kl"], page)


@torch.no_grad()
def evaluate(model: SharedBase, responses: Responses, page: Ppo, scale: ScoreScale, kl_weight: float) -> Rollouts:
    """What the models say about the responses, and the advantages that follow.

    Raises:
        NotFinite: a score is infinite or not a number.
    """
    model.train()
    micro_batches = blocks(responses, page.micro_batch_size)
    parts = processes.each(micro_batches, lambda block: _read(model, block, responses.length))
    log_probs_BT, values_BT, entropies_BT, reference_BT, raw_scores_B = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    require_finite_scores(raw_scores_B)
    mask_BT = responses.mask_BT
    scores_B = scale(raw_scores_B, responses.ended_B)
    # Masked before, since k3 of what policies think of padding may be infinite.
    pair = log_probs_BT * mask_BT, reference_BT * mask_BT
    rewards_BT = token_rewards(scores_B, ESTIMATORS[page.kl_estimator](*pair), mask_BT, kl_weight)
    if page.whiten_rewards:
        rewards_BT = whitened_around_mean(rewards_BT, mask_BT)
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, page.gamma, page.lam)
    facts = {
        "reward_model_score": float(raw_scores_B.mean()),
        "score": float(scores_B.mean()),
        "kl": float(k1(*pair).sum(dim=1).mean()),
        "kl_k3": float(k3(*pair).sum(dim=1).mean()),
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
        "explained_variance": float(explained_variance(values_BT, returns_BT, mask_BT)),
        "response_tokens": float(mask_BT.sum(dim=1).mean()),
        "ended": float(responses.ended_B.float().mean()),
        "tokens": float(responses.attention_BL.sum()),
        **responses.facts,
    }
    if page.whiten_advantages:
        advantages_BT = whitened(advantages_BT, mask_BT)
    return Rollouts(responses, log_probs_BT, values_BT, advantages_BT, returns_BT, facts)


def accumulate_gradients(
    model: SharedBase, optimizer: torch.optim.Optimizer, rollouts: Rollouts, page: Ppo
) -> dict[str, float]:
    """One pass over the batch for one step; the gradient is the mean over all tokens of all responses.

    Raises:
        NotFinite: the gradient of a parameter is infinite or not a number.
    """
    model.train()
    optimizer.zero_grad()
    micro_batches = blocks(rollouts.responses, page.micro_batch_size)
    parts = processes.each(micro_batches, lambda block: _add_gradients(model, block, rollouts, page))
    facts: dict[str, float] = {}
    for part in parts:
        furthest = max(part["ratio_furthest_from_1"], facts.get("ratio_furthest_from_1", 0.0))
        facts = {name: facts.get(name, 0.0) + share for name, share in part.items()}
        facts["ratio_furthest_from_1"] = furthest
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    processes.sum_gradients(trained)
    require_finite_gradients(model.named_parameters(), "in a pass over the batch")
    norm = torch.nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
    require_finite([("The norm of the gradients", norm)], f"in a pass over the batch: {LOWER_THE_RATE}")
    facts["gradient_norm"] = float(norm)
    return facts


def _add_gradients(model: SharedBase, block: Block, rollouts: Rollouts, page: Ppo) -> dict[str, float]:
    """The losses of a micro-batch, and their gradients: its share of the mean over all tokens."""
    rows, mask_BT, total = block.rows, rollouts.responses.mask_BT[block.rows], rollouts.responses.mask_BT.sum()
    new = model.opinions(block.ids_BL, block.attention_BL, rollouts.responses.length)
    old_BT = rollouts.log_probs_BT[rows]
    policy_BT = clipped_policy_loss(new.log_probs_BT, old_BT, rollouts.advantages_BT[rows], page.clip)
    value_BT = clipped_value_loss(new.values_BT, rollouts.values_BT[rows], rollouts.returns_BT[rows], page.clip)
    (((policy_BT + page.value_weight * value_BT) * mask_BT).sum() / total).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        off_BT = torch.exp(new.log_probs_BT - old_BT) - 1
        shares = {
            "policy_loss": policy_BT,
            "value_loss": value_BT,
            "ratio": off_BT + 1,
            "clip_fraction": (off_BT.abs() > page.clip).float(),
            "kl_from_writer": k3(old_BT, new.log_probs_BT),
        }
        facts = {name: float((values_BT * mask_BT).sum() / total) for name, values_BT in shares.items()}
        return facts | {"ratio_furthest_from_1": float((off_BT.abs() * mask_BT).max())}


def make_optimizer(model: SharedBase, page: Ppo) -> torch.optim.AdamW:
    """Adam over the policy's adapter and the value head; `peak` keeps each group's learning rate."""
    groups: list[dict[str, Any]] = [
        {"params": model.adapter_parameters(), "peak": page.learning_rate},
        {"params": list(model.value_head.parameters()), "peak": VALUE_LEARNING_RATE},
    ]
    return torch.optim.AdamW(groups, lr=page.learning_rate, weight_decay=0.0)


def set_learning_rates(optimizer: torch.optim.Optimizer, page: Ppo | Grpo, step: int) -> None:
    """Rising in the first steps, constant after; a function of the step, so there is nothing to resume."""
    warmup = max(1.0, WARMUP_SHARE * page.updates * page.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1.0, (step + 1) / warmup)


def _read(model: SharedBase, block: Block, length: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    mine = model.opinions(block.ids_BL, block.attention_BL, length)
    reference_BT = model.reference_log_probs(block.ids_BL, block.attention_BL, length)
    scores_B = model.scores(block.ids_BL, block.attention_BL)
    return mine.log_probs_BT, mine.values_BT, mine.entropies_BT, reference_BT, scores_B
