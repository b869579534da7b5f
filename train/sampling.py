"""The policy answers prompts: which prompts an update takes, and its responses as padded tensors."""

import random
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from train import processes
from train.shared_base import SharedBase


class Responses(NamedTuple):
    """Prompts, padded at the left to P, and responses, padded at the right to T; L = P + T."""

    ids_BL: Tensor
    attention_BL: Tensor
    mask_BT: Tensor
    """1.0 at the tokens of the response, the one that ends its turn included."""
    ended_B: Tensor
    """True where the response ended by itself, False where it ran into the limit."""
    facts: Mapping[str, float] = MappingProxyType({})
    """What is known of their drawing."""

    @property
    def length(self) -> int:
        """T."""
        return self.mask_BT.shape[1]

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each response, the one that ends its turn included, without padding."""
        response_BT = self.ids_BL[:, -self.length :]
        return [ids_T[mask_T > 0].tolist() for ids_T, mask_T in zip(response_BT, self.mask_BT, strict=True)]


class Respond(Protocol):
    """Draws from the policy, as `respond` does in this process and `train.remote_sampling` by a server."""

    def __call__(
        self,
        model: SharedBase,
        prompts: Sequence[list[int]],
        max_new_tokens: int,
        at_once: int,
        pad_id: int,
        eos_id: int,
    ) -> Responses:
        """One response of the policy, as it is now, to each prompt; `at_once` of them are in memory at once."""
        ...


class Block(NamedTuple):
    """A micro-batch: some rows, without the padding that all of them have."""

    rows: slice
    ids_BL: Tensor
    attention_BL: Tensor


def prompts_of_update(prompts: Sequence[list[int]], update: int, batch_size: int, seed: int) -> list[list[int]]:
    """The prompts of an update, shortest first: passes through all of them, each pass in an order of its own.

    A function of its arguments alone, so that a resumed run takes the prompts that the killed one would have taken.
    """
    chosen = []
    for position in range(update * batch_size, (update + 1) * batch_size):
        turn, place = divmod(position, len(prompts))
        order = random.Random(f"prompts {seed} {turn}").sample(range(len(prompts)), len(prompts))
        chosen.append(prompts[order[place]])
    return sorted(chosen, key=len)


def respond(
    model: SharedBase, prompts: Sequence[list[int]], max_new_tokens: int, at_once: int, pad_id: int, eos_id: int
) -> Responses:
    """One response of the policy to each prompt, `at_once` prompts at a time."""
    model.eval()
    longest = max(map(len, prompts))

    def draw(first: int) -> Tensor:
        some = prompts[first : first + at_once]
        width = max(map(len, some))
        ids_BP = torch.tensor([[pad_id] * (width - len(ids)) + ids for ids in some], device=model.device)
        attention_BP = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in some], device=model.device)
        return model.generate(ids_BP, attention_BP, max_new_tokens, pad_id, eos_id)[:, width:]

    drawn = processes.each(range(0, len(prompts), at_once), draw)
    length = max(part.shape[1] for part in drawn)
    response_BT = torch.cat([pad(part, (0, length - part.shape[1]), value=pad_id) for part in drawn])
    return padded_responses(prompts, response_BT, longest, pad_id, eos_id)


def padded_responses(
    prompts: Sequence[list[int]], response_BT: Tensor, width: int, pad_id: int, eos_id: int
) -> Responses:
    """Prompts and drawn tokens in one tensor, with what follows the end of a turn turned into padding."""
    device = response_BT.device
    is_end_BT = response_BT == eos_id
    mask_BT = (is_end_BT.cumsum(dim=1) - is_end_BT.long()) == 0
    ended_B = is_end_BT.any(dim=1)
    prompt_BP = torch.tensor([[pad_id] * (width - len(ids)) + ids for ids in prompts], device=device)
    attention_BP = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids in prompts], device=device)
    return Responses(
        torch.cat([prompt_BP, response_BT.where(mask_BT, pad_id)], dim=1),
        torch.cat([attention_BP, mask_BT.long()], dim=1),
        mask_BT.float(),
        ended_B,
    )


def blocks(responses: Responses, size: int) -> Iterator[Block]:
    """The responses in micro-batches, the same ones every time.

    Old and new log-probabilities must come from tensors of one shape: bf16 kernels round by the number of rows, and
    the ratio would be off by 0.1 to 0.5 before the first update.
    """
    for first in range(0, len(responses.ids_BL), size):
        rows = slice(first, first + size)
        attention_BL = responses.attention_BL[rows]
        padding = int((attention_BL.cumsum(dim=1) == 0).sum(dim=1).min())
        yield Block(rows, responses.ids_BL[rows, padding:], attention_BL[:, padding:])
