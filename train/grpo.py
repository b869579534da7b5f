"""Group relative policy optimisation of the reflector (DeepSeekMath, eq. 3 and 4): there is no value function; a
reflection is as good as it is better than others on the same failure.

Reads prompts of collected reflections, or the failures themselves, and the SFT adapter, which is where the policy
starts and what it is held to; writes a LoRA adapter to runs/NAME/grpo. A reward is the reward model's score, or *live*:
how much the frozen actor's return changes when it retries with the reflection (Reflect, Retry, Reward: Bensal et al.
2025; there 1 for a retry that succeeds and 0 otherwise).

The loop is our own, with PPO's sampling and PPO's one base for all adapters. trl's trainer (1.16) would cost here:

1. It keeps a batch of responses in memory alone. Killed between two passes over one, it draws others from a policy that
   has moved: the weights end up elsewhere, and rollouts that were paid for are paid for again.
2. With a 4-bit base it rounds the policy to bf16, but not the reference: they differ before the first step.
3. The reward model would be a second base in memory, or a function that switches the trained model's adapters unseen.

In the rest it is as good: it takes a reward that is missing, trains on the tokens it has drawn, and its advantages,
loss and estimator of the divergence are those below.

Where this is more than DeepSeekMath says:

1. A response without a reward, because the infrastructure failed again and again, is left out of its group; it is
   never one of reward 0. A group that is left with one response, or whose rewards are all equal, moves the policy
   nowhere but towards the SFT policy.
2. `variant: dr_grpo` (Liu et al. 2025) divides neither by the deviation of a group nor by the length of a response.
3. The reward model's score is shifted, scaled and docked for a missing end as in PPO. A live return is not: the actor
   has read the cut text.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from retroformer.train_sections import Grpo
from train import processes
from train.finite import LOWER_THE_RATE, require_finite, require_finite_gradients
from train.group_relative import centred, differing, group_loss, shares, standardised
from train.losses import k1, k3, masked_mean
from train.ppo import MAX_GRADIENT_NORM, set_learning_rates
from train.repetition import Describe
from train.sampling import Block, Draw, Respond, Responses, blocks, numbers_of_update, respond
from train.shared_base import SharedBase


class Rewards(Protocol):
    """Says what responses are worth."""

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """One reward for each of B responses, (B,), `nan` where there is none; `asked` are their prompts' numbers."""
        ...


class Rollouts(NamedTuple):
    """Responses, and what each of them is worth within its group."""

    responses: Responses
    log_probs_BT: Tensor
    reference_BT: Tensor
    advantages_B: Tensor
    weights_BT: Tensor
    """Of each token's loss; 0 at the padding and for responses that are left out."""
    facts: dict[str, float]


def grpo(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    prompts: Sequence[list[int]],
    rewards: Rewards,
    page: Grpo,
    draw: Draw,
    first_update: int = 0,
    describe: Describe = lambda prompts, responses: {},
    answer: Respond = respond,
) -> Iterator[dict[str, float]]:
    """Improve the policy update by update; yields the facts of each when it is done.

    Every update draws from its own seed, so a run resumed at `first_update` repeats an unbroken one.
    """
    lengths = [len(ids) for ids in prompts]
    for update in range(first_update, page.updates):
        torch.manual_seed(draw.seed * 1_000_003 + update)
        # Step 1. The policy answers some prompts, each with a group of responses.
        asked = asked_in_update(lengths, update, page.batch_size // page.group, page.group, draw.seed)
        batch = [prompts[number] for number in asked]
        responses = answer(model, batch, draw)
        # Step 2. Each response is rewarded, and compared with the others of its group.
        rollouts = compare(model, responses, rewards(update, asked, responses), page, draw)
        # Step 3. A few passes over the batch with the clipped loss, one optimiser step each.
        facts = rollouts.facts | describe(batch, responses.tokens)
        for epoch in range(page.epochs):
            set_learning_rates(optimizer, page, update * page.epochs + epoch)
            facts |= accumulate_gradients(model, optimizer, rollouts, page)
            optimizer.step()
        yield facts


def asked_in_update(lengths: Sequence[int], update: int, groups: int, group: int, seed: int) -> list[int]:
    """The numbers of the prompts of an update, each `group` times in a row, the shortest first.

    Passes through all prompts, each pass in an order of its own. A function of its arguments alone, so that a resumed
    run takes the prompts that the killed one would have taken.
    """
    chosen = numbers_of_update("groups", len(lengths), update, groups, seed)
    return [number for number in sorted(chosen, key=lengths.__getitem__) for _ in range(group)]


@torch.no_grad()
def compare(model: SharedBase, responses: Responses, rewards_B: Tensor, page: Grpo, draw: Draw) -> Rollouts:
    """What the policy and the SFT policy say about the responses, and the advantages that follow from the rewards."""
    model.train()
    mask_BT = responses.mask_BT
    micro_batches = blocks(responses, page.micro_batch_size)
    parts = processes.each(micro_batches, lambda block: _read(model, block, responses.length))
    # Masked at once: what policies think of padding may be so far apart that k3 is infinite.
    log_probs_BT, reference_BT, entropies_BT = (torch.cat(column) * mask_BT for column in zip(*parts, strict=True))
    rewards_NG = rewards_B.to(model.device).view(-1, page.group)
    if page.variant == "grpo":
        advantages_NG, lengths_B = standardised(rewards_NG), mask_BT.sum(dim=1)
    else:
        advantages_NG, lengths_B = centred(rewards_NG), torch.full_like(mask_BT[:, 0], draw.max_new_tokens)
    weights_BT = mask_BT * (shares(rewards_NG).flatten() / lengths_B)[:, None]
    facts = {
        **_facts_of(rewards_NG, responses),
        **responses.facts,
        "kl": float(k1(log_probs_BT, reference_BT).sum(dim=1).mean()),
        "entropy": float(masked_mean(entropies_BT, mask_BT)),
    }
    return Rollouts(responses, log_probs_BT, reference_BT, advantages_NG.flatten(), weights_BT, facts)


def accumulate_gradients(
    model: SharedBase, optimizer: torch.optim.Optimizer, rollouts: Rollouts, page: Grpo
) -> dict[str, float]:
    """One pass over the batch for one step; it does not matter how many responses are in memory at once.

    Raises:
        NotFinite: the gradient of a parameter is infinite or not a number.
    """
    model.train()
    optimizer.zero_grad()
    micro_batches = blocks(rollouts.responses, page.micro_batch_size)
    parts = processes.each(micro_batches, lambda block: _add_gradients(model, block, rollouts, page))
    facts: dict[str, float] = {name: sum(part[name] for part in parts) for name in parts[0]}
    facts["ratio_furthest_from_1"] = max(part["ratio_furthest_from_1"] for part in parts)
    processes.sum_gradients(model.adapter_parameters())
    require_finite_gradients(model.named_parameters(), "in a pass over the batch")
    norm = torch.nn.utils.clip_grad_norm_(model.adapter_parameters(), MAX_GRADIENT_NORM)
    require_finite([("The norm of the gradients", norm)], f"in a pass over the batch: {LOWER_THE_RATE}")
    facts["gradient_norm"] = float(norm)
    return facts


def _add_gradients(model: SharedBase, block: Block, rollouts: Rollouts, page: Grpo) -> dict[str, float]:
    """The loss of a micro-batch, and its gradients: its share of the mean over groups."""
    rows, mask_BT, total = block.rows, rollouts.responses.mask_BT[block.rows], rollouts.responses.mask_BT.sum()
    new = model.opinions(block.ids_BL, block.attention_BL, rollouts.responses.length)
    new_BT, weights_BT = new.log_probs_BT * mask_BT, rollouts.weights_BT[rows]
    old_BT, reference_BT = rollouts.log_probs_BT[rows], rollouts.reference_BT[rows]
    loss_BT = group_loss(new_BT, old_BT, reference_BT, rollouts.advantages_B[rows], page.clip, page.kl)
    (loss_BT * weights_BT).sum().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        kl_BT = page.kl * k3(new_BT, reference_BT)
        off_BT = torch.exp(new_BT - old_BT) - 1
        return {
            "kl_loss": float((kl_BT * weights_BT).sum()),
            "policy_loss": float(((loss_BT - kl_BT) * weights_BT).sum()),
            "ratio": float((mask_BT + off_BT).sum() / total),
            "clip_fraction": float((off_BT.abs() > page.clip).sum() / total),
            "ratio_furthest_from_1": float(off_BT.abs().max()),
        }


def make_optimizer(model: SharedBase, page: Grpo) -> torch.optim.AdamW:
    """Adam over the policy's adapter; `peak` keeps its learning rate."""
    groups: list[dict[str, Any]] = [{"params": model.adapter_parameters(), "peak": page.learning_rate}]
    return torch.optim.AdamW(groups, lr=page.learning_rate, weight_decay=0.0)


def _read(model: SharedBase, block: Block, length: int) -> tuple[Tensor, Tensor, Tensor]:
    mine = model.opinions(block.ids_BL, block.attention_BL, length)
    return mine.log_probs_BT, model.reference_log_probs(block.ids_BL, block.attention_BL, length), mine.entropies_BT


def _facts_of(rewards_NG: Tensor, responses: Responses) -> dict[str, float]:
    mask_BT, size, said = responses.mask_BT, rewards_NG.shape[1], responses.tokens
    different = [len(set(map(tuple, said[first : first + size]))) for first in range(0, len(said), size)]
    return {
        "score": float(rewards_NG.nanmean()),
        "score_deviation": float(centred(rewards_NG).square().mean().sqrt()),
        "equal_groups": float((~differing(rewards_NG)).sum()),
        "left_out": float(rewards_NG.isnan().sum()),
        "different_in_group": fmean(different),
        "response_tokens": float(mask_BT.sum(dim=1).mean()),
        "ended": float(responses.ended_B.float().mean()),
        "tokens": float(responses.attention_BL.sum()),
    }
