"""Group relative policy optimisation of the reflector (DeepSeekMath, eq. 3 and 4). There is no value function: the
advantage of a reflection is its reward relative to other reflections on the same failure.

Reads prompts of collected reflections, or the failures themselves, and the SFT adapter, which is both the policy's
start and the reference; writes a LoRA adapter to runs/NAME/grpo. A reward is the reward model's score, or *live*: the
change of the frozen actor's return when it retries with the reflection (Reflect, Retry, Reward: Bensal et al. 2025;
there 1 for a retry that succeeds and 0 otherwise). Or the reflections and their ratings are *stored* ones.

The loop is our own and shares sampling and the base model with PPO (departure 45). TRL's trainer keeps a batch in
memory only, so a killed run would pay for live rollouts twice; with a 4-bit base it rounds the policy to bf16 but not
the reference, so they differ before the first step.

Additions to DeepSeekMath:

1. A response without a reward, because the infrastructure failed repeatedly, is left out of its group; its reward is
   not 0. A group with a single response left, or with equal rewards, does not count at all.
2. `variant: rloo` (Ahmadian et al. 2024) compares each reward with the mean of the others, and divides neither by the
   deviation of a group nor, like Dr. GRPO (Liu et al. 2025), by the length of a response.
3. `dapo` has the changes of DAPO (Yu et al. 2025): groups with equal rewards are replaced, the clipping range is wider
   above, and every token weighs the same.
4. `kl_estimator: k1` puts the divergence into the reward.
5. The reward model's score is shifted, scaled and reduced for a missing end as in PPO. A live return is not, since the
   actor has read the cut text.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from retroformer.config.sections.train import Grpo

from .. import processes
from ..loop import accumulate, set_learning_rates
from ..losses import ADVANTAGES, Average, centred, differing, group_loss, k1, k3, masked_mean, token_weights
from .alarms import Describe
from .policy import SharedBase
from .sampling import Block, Respond, Responses, SamplingSettings, blocks, prompt_indices, refill_indices, respond

CLIP, CLIP_HIGH = 0.2, 0.28
"""Clipping range of the probability ratio, and with `dapo` that above 1."""

Rewards = Callable[[int, Sequence[int], Responses], Tensor]
"""Returns a reward for each of B responses, (B,), `nan` if missing, from the number of the update, the numbers of the
responses' prompts, and the responses."""


class GrpoBatch(NamedTuple):
    """Responses, with their advantages within their groups."""

    responses: Responses
    blocks: list[Block]
    """The micro-batches, the same in every pass."""
    log_probs_BT: Tensor
    reference_BT: Tensor
    advantages_B: Tensor
    weights_BT: Tensor
    """Weight of each token's loss; 0 at padding, in responses without a reward and in groups with equal rewards."""
    facts: dict[str, float]


def grpo(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[list[int]],
    rewards: Rewards,
    grpo: Grpo,
    draw: SamplingSettings,
    first_update: int = 0,
    describe: Describe = lambda prompts, responses: {},
    answer: Respond = respond,
) -> Iterator[dict[str, float]]:
    """Train the policy update by update; yield the facts of each update.

    Every update sets its own seed, so a run resumed at `first_update` repeats an unbroken one on a CPU.
    """
    lengths, size = [len(ids) for ids in prompts], grpo.group

    def rewarded(update: int, indices: Sequence[int]) -> _Groups:
        responses = answer(model, [prompts[number] for number in indices], draw)
        return _Groups(indices, responses, rewards(update, indices, responses))

    for update in range(first_update, grpo.updates):
        torch.manual_seed(draw.seed * 1_000_003 + update)
        # Step 1. The policy responds to some prompts, with a group of responses to each, and each is rewarded.
        groups = rewarded(update, prompt_indices(lengths, update, grpo.batch_size // size, size, draw.seed))
        if update == first_update:
            model.choose_attention(groups.responses.groups)
        score = float(groups.rewards_B.nanmean())
        # Step 2. With `dapo`, groups with equal rewards are replaced.
        equal_N = ~differing(groups.rewards_B.view(-1, size))
        refilled = int(equal_N.sum()) if grpo.dapo else 0
        if refilled:
            kept, seed = groups.where(~equal_N), f"prompts of turn 1 {draw.seed} {update}"
            indices = refill_indices(lengths, seed, refilled, size, Counter(groups.indices), set(kept.indices))
            groups = kept.followed_by(rewarded(update, indices), draw.pad_id)
        # Step 3. Each response is compared with the others of its group.
        batch = compare(model, groups.responses, groups.rewards_B, grpo, draw)
        facts = batch.facts | {"score": score} | describe(groups.responses.prompts, groups.responses.tokens)
        facts |= {"refilled": float(refilled)} if grpo.dapo else {}
        # Step 4. A few passes over the batch with the clipped loss, one optimiser step each.
        for epoch in range(grpo.epochs):
            set_learning_rates(optimizer, grpo, update * grpo.epochs + epoch)
            facts |= accumulate_gradients(model, optimizer, batch, grpo)
            optimizer.step()
        yield facts


class _Groups(NamedTuple):
    """Rewarded groups of responses."""

    indices: Sequence[int]
    """Number of each response's prompt."""
    responses: Responses
    rewards_B: Tensor

    def where(self, kept_N: Tensor) -> "_Groups":
        """Return the marked groups."""
        kept_B = kept_N.repeat_interleave(len(self.rewards_B) // len(kept_N))
        indices = [number for number, kept in zip(self.indices, kept_B.tolist(), strict=True) if kept]
        return _Groups(indices, self.responses.where(kept_B), self.rewards_B[kept_B])

    def followed_by(self, others: "_Groups", pad_id: int) -> "_Groups":
        """Return these groups and others."""
        responses = self.responses.followed_by(others.responses, pad_id)
        return _Groups([*self.indices, *others.indices], responses, torch.cat([self.rewards_B, others.rewards_B]))


@torch.no_grad()
def compare(
    model: SharedBase, responses: Responses, rewards_B: Tensor, grpo: Grpo, draw: SamplingSettings
) -> GrpoBatch:
    """Read the responses with policy and SFT policy, and compute advantages within the groups."""
    model.train()
    mask_BT = responses.mask_BT
    micro_batches = blocks(responses, draw.micro_batch_tokens)
    # Without a KL term there is nothing to compare the policy with.
    compares = grpo.kl > 0

    def read(block: Block) -> tuple[Tensor, Tensor, Tensor]:
        policy = model.read(block.packed, responses.length)
        log_probs_RT = policy.log_probs_RT
        reference_RT = model.reference_log_probs(block.packed, responses.length) if compares else log_probs_RT
        return log_probs_RT, reference_RT, policy.entropies_RT

    parts = processes.each(micro_batches, read)
    log_probs_BT, reference_BT, entropies_BT = (torch.cat(column) for column in zip(*parts, strict=True))
    divergences_B = (k1(log_probs_BT, reference_BT) * mask_BT).sum(dim=1)
    rewards_NG = rewards_B.to(model.device).view(-1, grpo.group)
    penalties_NG = divergences_B.view_as(rewards_NG) * (grpo.kl if grpo.kl_estimator == "k1" else 0.0)
    advantages_NG = ADVANTAGES[grpo.variant](rewards_NG - penalties_NG)
    # A penalty must not make a group of equal rewards count.
    advantages_NG = advantages_NG.where(differing(rewards_NG)[:, None], 0.0)
    size, texts = grpo.group, responses.tokens
    average: Average = "token" if grpo.dapo else "response" if grpo.variant == "grpo" else "constant"
    weights_BT = token_weights(rewards_NG, mask_BT, average, draw.max_new_tokens)
    facts = {
        "score": float(rewards_NG.nanmean()),
        "score_deviation": float(centred(rewards_NG)[~rewards_NG.isnan()].square().mean().sqrt()),
        "equal_groups": float((~differing(rewards_NG)).sum()),
        "left_out": float(rewards_NG.isnan().sum()),
        "different_in_group": fmean(len(set(map(tuple, texts[at : at + size]))) for at in range(0, len(texts), size)),
        **responses.measures,
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
    }
    if compares:
        facts["kl"] = float(divergences_B.mean())
    return GrpoBatch(responses, micro_batches, log_probs_BT, reference_BT, advantages_NG.flatten(), weights_BT, facts)


def accumulate_gradients(
    model: SharedBase, optimizer: torch.optim.Optimizer, batch: GrpoBatch, grpo: Grpo
) -> dict[str, float]:
    """Compute the gradient of the weighted loss of the batch; return the facts of this pass.

    The result does not depend on the size of the micro-batches, up to rounding.
    """
    return accumulate(model, optimizer, batch.blocks, lambda block: _add_gradients(model, block, batch, grpo))


def _add_gradients(model: SharedBase, block: Block, batch: GrpoBatch, grpo: Grpo) -> dict[str, float]:
    """Add the gradients of a micro-batch; return its share of the facts."""
    rows, mask_BT, total = block.rows, batch.responses.mask_BT[block.rows], batch.responses.mask_BT.sum()
    new_BT, weights_BT = model.read(block.packed, batch.responses.length).log_probs_RT, batch.weights_BT[rows]
    old_BT, reference_BT = batch.log_probs_BT[rows], batch.reference_BT[rows]
    kl_weight = grpo.kl if grpo.kl_estimator == "k3" else 0.0
    upper = CLIP_HIGH if grpo.dapo else CLIP
    importance_BT = batch.responses.importance(rows)
    loss_BT = group_loss(new_BT, old_BT, reference_BT, batch.advantages_B[rows], CLIP, kl_weight, upper, importance_BT)
    (loss_BT * weights_BT).sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        kl_BT = kl_weight * k3(new_BT, reference_BT)
        off_BT = torch.exp(new_BT - old_BT) - 1
        return {
            "kl_loss": float((kl_BT * weights_BT).sum()),
            "policy_loss": float(((loss_BT - kl_BT) * weights_BT).sum()),
            "ratio": float((mask_BT + off_BT).sum() / total),
            "clip_fraction": float(((off_BT < -CLIP) | (off_BT > upper)).sum() / total),
            "ratio_furthest_from_1": float(off_BT.abs().max()),
        }
