"""The policy answers prompts: which prompts an update takes, and its responses as padded tensors."""

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from retroformer.config import Experiment
from retroformer.train_sections import Grpo, Ppo
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


class Draw(NamedTuple):
    """How responses are drawn."""

    max_new_tokens: int
    at_once: int
    """Responses that are in memory at once."""
    pad_id: int
    eos_id: int
    """The token that ends a turn."""
    seed: int
    """Of the prompts of each update and of what is drawn."""


class Respond(Protocol):
    """Draws from the policy, as `respond` does in this process and `train.remote_sampling` by a server."""

    def __call__(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
        """One response of the policy, as it is now, to each prompt."""
        ...


class Block(NamedTuple):
    """A micro-batch: some rows, without the padding that all of them have."""

    rows: slice
    ids_BL: Tensor
    attention_BL: Tensor


def draw_of(experiment: Experiment, settings: Ppo | Grpo, tokenizer: Any) -> Draw:
    """What a page says of drawing."""
    return Draw(
        experiment.reflector.max_new_tokens,
        settings.draw_batch_size or settings.micro_batch_size,
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        experiment.seed,
    )


def prompts_of_update(prompts: Sequence[list[int]], update: int, batch_size: int, seed: int) -> list[list[int]]:
    """The prompts of an update, shortest first: passes through all of them, each pass in an order of its own.

    A function of its arguments alone, so that a resumed run takes the prompts that the killed one would have taken.
    """
    chosen = numbers_of_update("prompts", len(prompts), update, batch_size, seed)
    return sorted((prompts[number] for number in chosen), key=len)


def numbers_of_update(name: str, count: int, update: int, batch_size: int, seed: int) -> list[int]:
    """The numbers, of 0 to `count`, that an update takes: passes through all, each pass in an order of its own."""
    positions = range(update * batch_size, (update + 1) * batch_size)
    places = (divmod(position, count) for position in positions)
    return [_order_of_pass(f"{name} {seed} {turn}", count)[place] for turn, place in places]


@lru_cache(maxsize=2)
def _order_of_pass(name: str, count: int) -> "array[int]":
    """A permutation of 0 to `count`, by its name. Drawing one of 10^6 takes half a second: it is kept for its pass."""
    return array("q", random.Random(name).sample(range(count), count))


def respond(model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
    """One response of the policy to each prompt."""
    model.eval()

    def drawn_for(first: int) -> Tensor:
        ids_BP, attention_BP = _padded(prompts[first : first + draw.at_once], draw.pad_id, model.device)
        drawn_BL = model.generate(ids_BP, attention_BP, draw.max_new_tokens, draw.pad_id, draw.eos_id)
        return drawn_BL[:, ids_BP.shape[1] :]

    drawn = processes.each(range(0, len(prompts), draw.at_once), drawn_for)
    length = max(part.shape[1] for part in drawn)
    response_BT = torch.cat([pad(part, (0, length - part.shape[1]), value=draw.pad_id) for part in drawn])
    return padded_responses(prompts, response_BT, draw)


def padded_responses(prompts: Sequence[list[int]], response_BT: Tensor, draw: Draw) -> Responses:
    """Prompts and drawn tokens in one tensor, with what follows the end of a turn turned into padding."""
    is_end_BT = response_BT == draw.eos_id
    mask_BT = (is_end_BT.cumsum(dim=1) - is_end_BT.long()) == 0
    ids_BP, attention_BP = _padded(prompts, draw.pad_id, response_BT.device)
    return Responses(
        torch.cat([ids_BP, response_BT.where(mask_BT, draw.pad_id)], dim=1),
        torch.cat([attention_BP, mask_BT.long()], dim=1),
        mask_BT.float(),
        ended_B=is_end_BT.any(dim=1),
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


def _padded(prompts: Sequence[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts, padded at the left, and 1 where they are not padding: (B, P) both."""
    width = max(map(len, prompts))
    ids = [[pad_id] * (width - len(one)) + one for one in prompts]
    attention = [[0] * (width - len(one)) + [1] * len(one) for one in prompts]
    return torch.tensor(ids, device=device), torch.tensor(attention, device=device)
