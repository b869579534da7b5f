"""Proximal policy optimisation of the reflector against the reward model (Retroformer, eq. 5 and appendix C).

Reads prompts of collected reflections and the adapters of sft and reward; writes the policy's adapter to runs/NAME/ppo.

Additions to the paper:

1. Scores are shifted and scaled by their mean and standard deviation over the reward model's training texts, so that
   a score of 1 and the KL coefficient mean the same in every run.
2. A response that is cut at the token limit loses one such standard deviation.
3. Advantages are whitened over the tokens of a batch, unless `whiten_advantages: false` is set.
4. The value head has its own learning rate, since it starts from zero while the policy is fine-tuned.
5. Prompts are read once for all that follows them: `responses_per_prompt` may be above the papers' 1.
6. Options that are off by default: a KL coefficient adapted to a target (`kl_target`), an early end of the passes over
   a batch (`kl_stop`), whitened rewards (`whiten_rewards`), and another estimator of the divergence in the reward than
   log(pi / pi_SFT) (`kl_estimator`).

Nothing is truncated here. An over-long trajectory was shortened, with a note, when it became a prompt
(`retroformer.prompts`). A prompt that exceeds train.max_length together with the longest response stops the stage
before its first update. A response ends by itself or at reflector.max_new_tokens, and exactly the sampled tokens are
scored and trained on.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.experiment.sections.train import Ppo

from .. import processes
from ..integrity.finite import require_finite_scores
from ..losses import (
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
from ..stage_kinds import VALUE_WEIGHT
from .kl_weight import kl_weight_after, next_kl_weight
from .optimizer import accumulate, set_learning_rates
from .repetition import Describe
from .reward_scores import UNSCALED, ScoreScale
from .sampling import Block, Draw, Respond, Responses, asked_in_update, blocks, respond
from .shared_base import SharedBase


class PpoBatch(NamedTuple):
    """Responses, with log-probabilities, values, advantages and returns under the policy that generated them."""

    responses: Responses
    blocks: list[Block]
    """The micro-batches, the same in every pass."""
    log_probs_BT: Tensor
    values_BT: Tensor
    advantages_BT: Tensor
    returns_BT: Tensor
    facts: dict[str, float]


def ppo(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[list[int]],
    settings: Ppo,
    draw: Draw,
    scale: ScoreScale = UNSCALED,
    done: Sequence[dict[str, float]] = (),
    describe: Describe = lambda prompts, responses: {},
    answer: Respond = respond,
) -> Iterator[dict[str, float]]:
    """Train the policy update by update; yield the facts of each update.

    `done` has the facts of the updates before a checkpoint. Every update sets its own seed, and the KL coefficient
    follows from the last facts, so a resumed run repeats an unbroken one.
    """
    kl_weight = kl_weight_after(done, settings)
    lengths, each = [len(ids) for ids in prompts], settings.responses_per_prompt
    for update in range(len(done), settings.updates):
        torch.manual_seed(draw.seed * 1_000_003 + update)
        # Step 1. The policy responds to a batch of prompts.
        asked = asked_in_update(lengths, update, settings.batch_size // each, each, draw.seed)
        batch_prompts = [prompts[number] for number in asked]
        responses = answer(model, batch_prompts, draw)
        if update == len(done):
            model.settle_attention(responses.groups)
        # Step 2. The policy, the SFT policy and the reward model read the responses; rewards become advantages.
        batch = evaluate(model, responses, settings, scale, kl_weight)
        # Step 3. A few passes over the batch with the clipped losses, one optimiser step each.
        facts, steps = batch.facts | describe(batch_prompts, responses.tokens), 0
        for epoch in range(settings.epochs):
            set_learning_rates(optimizer, settings, update * settings.epochs + epoch)
            facts |= accumulate_gradients(model, optimizer, batch, settings)
            if settings.kl_stop is not None and facts["kl_from_writer"] > settings.kl_stop:
                break
            optimizer.step()
            steps += 1
        yield facts | {"kl_weight": kl_weight, "steps": steps}
        # Step 4. The KL coefficient adapts to the target, if there is one.
        kl_weight = next_kl_weight(kl_weight, facts.get("kl", 0.0), settings)


@torch.no_grad()
def evaluate(model: SharedBase, responses: Responses, settings: Ppo, scale: ScoreScale, kl_weight: float) -> PpoBatch:
    """Read the responses with all models, and compute rewards, advantages and returns.

    Raises:
        NotFinite: a score is infinite or not a number.
    """
    model.train()
    micro_batches = blocks(responses, settings.micro_batch_tokens)
    # Without a KL penalty there is nothing to compare the policy with.
    compares = bool(kl_weight or settings.kl_target)
    parts = processes.each(micro_batches, lambda block: _read(model, block, responses.length, compares))
    log_probs_BT, values_BT, entropies_BT, reference_BT, raw_scores_B = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    require_finite_scores(raw_scores_B)
    mask_BT = responses.mask_BT
    scores_B = scale(raw_scores_B, responses.ended_B)
    pair = log_probs_BT, reference_BT
    rewards_BT = token_rewards(scores_B, ESTIMATORS[settings.kl_estimator](*pair), mask_BT, kl_weight)
    if settings.whiten_rewards:
        rewards_BT = whitened_around_mean(rewards_BT, mask_BT)
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, settings.gamma, settings.lam)
    facts = {
        "reward_model_score": float(raw_scores_B.mean()),
        "score": float(scores_B.mean()),
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
        "explained_variance": float(explained_variance(values_BT, returns_BT, mask_BT)),
        "response_tokens": float(mask_BT.sum(dim=1).mean()),
        "ended": float(responses.ended_B.float().mean()),
        "tokens": float(sum(group.length for group in responses.groups)),
        **responses.facts,
    }
    if compares:
        facts |= {"kl": float(k1(*pair).sum(dim=1).mean()), "kl_k3": float(k3(*pair).sum(dim=1).mean())}
    if settings.whiten_advantages:
        advantages_BT = whitened(advantages_BT, mask_BT)
    return PpoBatch(responses, micro_batches, log_probs_BT, values_BT, advantages_BT, returns_BT, facts)


def accumulate_gradients(
    model: SharedBase, optimizer: torch.optim.Optimizer, batch: PpoBatch, settings: Ppo
) -> dict[str, float]:
    """Compute the gradient of the mean loss over all tokens of the batch; return the facts of this pass.

    Raises:
        NotFinite: the gradient of a parameter is infinite or not a number.
    """
    return accumulate(model, optimizer, batch.blocks, lambda block: _add_gradients(model, block, batch, settings))


def _add_gradients(model: SharedBase, block: Block, batch: PpoBatch, settings: Ppo) -> dict[str, float]:
    """Add the gradients of a micro-batch; return its share of the means over all tokens."""
    rows, mask_BT, total = block.rows, batch.responses.mask_BT[block.rows], batch.responses.mask_BT.sum()
    new = model.read(block.packed, batch.responses.length)
    old_BT = batch.log_probs_BT[rows]
    policy_BT = clipped_policy_loss(new.log_probs_RT, old_BT, batch.advantages_BT[rows], settings.clip)
    policy_BT = policy_BT * batch.responses.importance(rows)
    value_BT = clipped_value_loss(new.values_RT, batch.values_BT[rows], batch.returns_BT[rows], settings.clip)
    loss = ((policy_BT + VALUE_WEIGHT * value_BT) * mask_BT).sum() / total
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        off_BT = torch.exp(new.log_probs_RT - old_BT) - 1
        shares = {
            "policy_loss": policy_BT,
            "value_loss": value_BT,
            "ratio": off_BT + 1,
            "clip_fraction": (off_BT.abs() > settings.clip).float(),
            "kl_from_writer": k3(old_BT, new.log_probs_RT),
        }
        facts = {name: float((values_BT * mask_BT).sum() / total) for name, values_BT in shares.items()}
        return facts | {"ratio_furthest_from_1": float((off_BT.abs() * mask_BT).max())}


def _read(
    model: SharedBase, block: Block, length: int, compares: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    policy = model.read(block.packed, length)
    reference_RT = model.reference_log_probs(block.packed, length) if compares else policy.log_probs_RT
    return policy.log_probs_RT, policy.values_RT, policy.entropies_RT, reference_RT, model.scores(block.packed)
