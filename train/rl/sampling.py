"""Chooses the prompts of an update, and generates the policy's responses as padded tensors."""

import random
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.train import Grpo, Ppo

from .. import processes
from ..data.samples import Prompt, prompt_ids, require_length
from .shared_base import SharedBase


class Responses(NamedTuple):
    """Prompts, padded on the left to P, and responses, padded on the right to T; L = P + T."""

    ids_BL: Tensor
    attention_BL: Tensor
    mask_BT: Tensor
    """1.0 at the tokens of the response, including its end-of-turn token."""
    ended_B: Tensor
    """True if the response ended by itself, False if it was cut at the token limit."""
    facts: Mapping[str, float] = MappingProxyType({})
    """Measurements of the sampling, for the facts of the update."""

    @property
    def length(self) -> int:
        """T."""
        return self.mask_BT.shape[1]

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each response, including its end-of-turn token, without padding."""
        response_BT = self.ids_BL[:, -self.length :]
        return [ids_T[mask_T > 0].tolist() for ids_T, mask_T in zip(response_BT, self.mask_BT, strict=True)]


class Draw(NamedTuple):
    """Settings of sampling."""

    max_new_tokens: int
    at_once: int
    """Responses generated in one batch."""
    pad_id: int
    eos_id: int
    """The token that ends a turn."""
    seed: int
    """Seed of the choice of prompts and of the sampling."""


class Respond(Protocol):
    """Samples from the policy: `respond` in this process, or `train.rl.remote_sampling` by a server."""

    def __call__(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
        """Sample one response of the current policy to each prompt."""
        ...


class Block(NamedTuple):
    """A micro-batch: some rows, without the padding that all of them share."""

    rows: slice
    ids_BL: Tensor
    attention_BL: Tensor


def draw_of(experiment: Experiment, settings: Ppo | Grpo, tokenizer: Any) -> Draw:
    """Return the sampling settings of a config."""
    return Draw(
        experiment.reflector.max_new_tokens,
        settings.draw_batch_size or settings.micro_batch_size,
        tokenizer.pad_token_id,
        tokenizer.eos_token_id,
        experiment.seed,
    )


def tokenised_prompts(experiment: Experiment, tokenizer: Any, prompts: Sequence[Prompt]) -> list[list[int]]:
    """Tokenise prompts. Raises ConfigError if a prompt with the longest response exceeds train.max_length."""
    ids = [prompt_ids(tokenizer, prompt) for prompt in prompts]
    lengths = [len(row) + experiment.reflector.max_new_tokens for row in ids]
    require_length(lengths, experiment.train.max_length, "prompts with their response")
    return ids


def prompts_of_update(prompts: Sequence[list[int]], update: int, batch_size: int, seed: int) -> list[list[int]]:
    """Return the prompts of an update, shortest first: each pass over all prompts has an order of its own.

    The result depends on the arguments only, so a resumed run takes the same prompts as an unbroken one.
    """
    chosen = numbers_of_update("prompts", len(prompts), update, batch_size, seed)
    return sorted((prompts[number] for number in chosen), key=len)


def numbers_of_update(name: str, count: int, update: int, batch_size: int, seed: int) -> list[int]:
    """Return the numbers below `count` that an update takes: each pass over all has an order of its own."""
    positions = range(update * batch_size, (update + 1) * batch_size)
    places = (divmod(position, count) for position in positions)
    return [_order_of_pass(f"{name} {seed} {turn}", count)[place] for turn, place in places]


@lru_cache(maxsize=2)
def _order_of_pass(name: str, count: int) -> "array[int]":
    """Return a permutation of the numbers below `count`, seeded by `name`; cached, since 10^6 take half a second."""
    return array("q", random.Random(name).sample(range(count), count))


def respond(model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
    """Sample one response of the policy to each prompt."""
    model.eval()

    def sample_batch(first: int) -> Tensor:
        ids_BP, attention_BP = _padded(prompts[first : first + draw.at_once], draw.pad_id, model.device)
        drawn_BL = model.generate(ids_BP, attention_BP, draw.max_new_tokens, draw.pad_id, draw.eos_id)
        return drawn_BL[:, ids_BP.shape[1] :]

    batches = processes.each(range(0, len(prompts), draw.at_once), sample_batch)
    length = max(batch.shape[1] for batch in batches)
    response_BT = torch.cat([pad(batch, (0, length - batch.shape[1]), value=draw.pad_id) for batch in batches])
    return padded_responses(prompts, response_BT, draw)


def padded_responses(prompts: Sequence[list[int]], response_BT: Tensor, draw: Draw) -> Responses:
    """Join prompts and responses in one tensor, and replace what follows the end of a turn by padding."""
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
    """Yield the responses in micro-batches, the same ones in every pass.

    Old and new log-probabilities must come from tensors of the same shape: rounding in bf16 kernels depends on the
    number of rows, and would change the ratio by 0.1 to 0.5 before the first update.
    """
    for first in range(0, len(responses.ids_BL), size):
        rows = slice(first, first + size)
        attention_BL = responses.attention_BL[rows]
        padding = int((attention_BL.cumsum(dim=1) == 0).sum(dim=1).min())
        yield Block(rows, responses.ids_BL[rows, padding:], attention_BL[:, padding:])


def _padded(prompts: Sequence[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad prompts on the left; return ids and attention mask, both (B, P)."""
    width = max(map(len, prompts))
    ids = [[pad_id] * (width - len(prompt)) + prompt for prompt in prompts]
    attention = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return torch.tensor(ids, device=device), torch.tensor(attention, device=device)
