"""Proximal policy optimisation of the reflector against the reward model (Retroformer, eq. 5 and appendix C).

Reads prompts of collected reflections and the adapters of sft and reward; writes the policy's adapter to runs/NAME/ppo.

Additions to the paper:

1. Scores are shifted and scaled by their mean and standard deviation over the reward model's held-out texts, so that
   a score of 1 and the KL coefficient mean the same in every run.
2. A response that is cut at the token limit loses one such standard deviation.
3. Advantages are whitened over the tokens of a batch.
4. The value head has its own learning rate, since it starts from zero while the policy is fine-tuned.
5. Prompts are read once for all that follows them: `responses_per_prompt` may be above the papers' 1.

Nothing is truncated here. An over-long trajectory was shortened, with a note, when it became a prompt
(`retroformer.method.prompts`). A prompt that exceeds train.max_length together with the longest response stops the
stage before its first update. A response ends by itself or at reflector.max_new_tokens, and exactly the sampled tokens
are scored and trained on.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.config.sections.train import Ppo

from .. import processes
from ..integrity import require_finite_scores
from ..loop import accumulate, set_learning_rates
from ..losses import (
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    generalized_advantages,
    k1,
    k3,
    masked_mean,
    token_rewards,
    whitened,
)
from .alarms import Describe
from .policy import SharedBase
from .rewards import UNSCALED, ScoreScale
from .sampling import Block, Respond, Responses, SamplingSettings, blocks, prompt_indices, respond

CLIP = 0.2
"""Clipping range of the probability ratio, and of the value update."""
GAMMA, LAMBDA = 1.0, 0.95
"""Discount factor between tokens, and lambda of generalized advantage estimation."""
VALUE_WEIGHT = 0.1
"""Weight of the value loss, as in TRL's PPO. It needs no key, as the value head has a learning rate of its own."""


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
    ppo: Ppo,
    draw: SamplingSettings,
    scale: ScoreScale = UNSCALED,
    first_update: int = 0,
    describe: Describe = lambda prompts, responses: {},
    answer: Respond = respond,
) -> Iterator[dict[str, float]]:
    """Train the policy update by update; yield the facts of each update.

    Every update sets its own seed, so a run resumed at `first_update` repeats an unbroken one on a CPU.
    """
    lengths, per_prompt = [len(ids) for ids in prompts], ppo.responses_per_prompt
    for update in range(first_update, ppo.updates):
        torch.manual_seed(draw.seed * 1_000_003 + update)
        # Step 1. The policy responds to a batch of prompts.
        indices = prompt_indices(lengths, update, ppo.batch_size // per_prompt, per_prompt, draw.seed)
        batch_prompts = [prompts[number] for number in indices]
        responses = answer(model, batch_prompts, draw)
        if update == first_update:
            model.choose_attention(responses.groups)
        # Step 2. The policy, the SFT policy and the reward model read the responses; rewards become advantages.
        batch = evaluate(model, responses, ppo, draw, scale)
        # Step 3. A few passes over the batch with the clipped losses, one optimiser step each.
        facts = batch.facts | describe(batch_prompts, responses.tokens)
        for epoch in range(ppo.epochs):
            set_learning_rates(optimizer, ppo, update * ppo.epochs + epoch)
            facts |= accumulate_gradients(model, optimizer, batch)
            optimizer.step()
        yield facts


@torch.no_grad()
def evaluate(model: SharedBase, responses: Responses, ppo: Ppo, draw: SamplingSettings, scale: ScoreScale) -> PpoBatch:
    """Read the responses with all models, and compute rewards, advantages and returns.

    Raises:
        NotFinite: a score is infinite or not a number.
    """
    model.train()
    micro_batches = blocks(responses, draw.micro_batch_tokens)
    # Without a KL penalty there is nothing to compare the policy with.
    compares = ppo.kl > 0

    def read(block: Block) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        policy = model.read(block.packed, responses.length)
        log_probs_RT = policy.log_probs_RT
        reference_RT = model.reference_log_probs(block.packed, responses.length) if compares else log_probs_RT
        return log_probs_RT, policy.values_RT, policy.entropies_RT, reference_RT, model.scores(block.packed)

    parts = processes.each(micro_batches, read)
    log_probs_BT, values_BT, entropies_BT, reference_BT, raw_scores_B = (
        torch.cat(column) for column in zip(*parts, strict=True)
    )
    require_finite_scores(raw_scores_B)
    mask_BT = responses.mask_BT
    scores_B = scale(raw_scores_B, responses.ended_B)
    divergences_BT = k1(log_probs_BT, reference_BT)
    rewards_BT = token_rewards(scores_B, divergences_BT, mask_BT, ppo.kl)
    advantages_BT, returns_BT = generalized_advantages(rewards_BT, values_BT, mask_BT, GAMMA, LAMBDA)
    facts = {
        "reward_model_score": float(raw_scores_B.mean()),
        "score": float(scores_B.mean()),
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
        "explained_variance": float(explained_variance(values_BT, returns_BT, mask_BT)),
        **responses.measures,
    }
    if compares:
        k3_BT = k3(log_probs_BT, reference_BT)
        facts |= {"kl": float(divergences_BT.sum(dim=1).mean()), "kl_k3": float(k3_BT.sum(dim=1).mean())}
    advantages_BT = whitened(advantages_BT, mask_BT)
    return PpoBatch(responses, micro_batches, log_probs_BT, values_BT, advantages_BT, returns_BT, facts)


def accumulate_gradients(model: SharedBase, optimizer: torch.optim.Optimizer, batch: PpoBatch) -> dict[str, float]:
    """Compute the gradient of the mean loss over all tokens of the batch; return the facts of this pass."""
    return accumulate(model, optimizer, batch.blocks, lambda block: _add_gradients(model, block, batch))


def _add_gradients(model: SharedBase, block: Block, batch: PpoBatch) -> dict[str, float]:
    """Add the gradients of a micro-batch; return its share of the means over all tokens."""
    rows, mask_BT, total = block.rows, batch.responses.mask_BT[block.rows], batch.responses.mask_BT.sum()
    new = model.read(block.packed, batch.responses.length)
    old_BT = batch.log_probs_BT[rows]
    policy_BT = clipped_policy_loss(new.log_probs_RT, old_BT, batch.advantages_BT[rows], CLIP)
    policy_BT = policy_BT * batch.responses.importance(rows)
    value_BT = clipped_value_loss(new.values_RT, batch.values_BT[rows], batch.returns_BT[rows], CLIP)
    loss = ((policy_BT + VALUE_WEIGHT * value_BT) * mask_BT).sum() / total
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        off_BT = torch.exp(new.log_probs_RT - old_BT) - 1
        shares = {
            "policy_loss": policy_BT,
            "value_loss": value_BT,
            "ratio": off_BT + 1,
            "clip_fraction": (off_BT.abs() > CLIP).float(),
            "kl_from_writer": k3(old_BT, new.log_probs_RT),
        }
        facts = {name: float((values_BT * mask_BT).sum() / total) for name, values_BT in shares.items()}
        return facts | {"ratio_furthest_from_1": float((off_BT.abs() * mask_BT).max())}
