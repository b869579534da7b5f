"""Chooses the prompts of an update, and generates the policy's responses as padded tensors."""

import random
from array import array
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from itertools import cycle, islice
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from retroformer.config.experiment import Experiment
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import end_tokens

from .. import processes
from ..shared_prompt.packed import Group, Packed, consecutive, divided, micro_batches, pack
from .policy import SharedBase, is_end

NO_TOKEN = -1
"""What follows a response that another process sampled. It is no token: such a response may be short without an end."""


class Responses(NamedTuple):
    """Responses to B prompts, padded on the right to T."""

    prompts: Sequence[list[int]]
    response_BT: Tensor
    mask_BT: Tensor
    """1.0 at the tokens of the response, including its end-of-turn token."""
    ended_B: Tensor
    """True if the response ended by itself, False if it was cut at the token limit."""
    facts: Mapping[str, float] = MappingProxyType({})
    """Measurements of the sampling, for the facts of the update."""
    importance_BT: Tensor | None = None
    """Weight of each token in the loss, if another process sampled it than the one that trains; None: 1."""

    def importance(self, rows: slice) -> Tensor | float:
        """Return the importance weights of some responses."""
        return 1.0 if self.importance_BT is None else self.importance_BT[rows]

    def where(self, kept_B: Tensor) -> "Responses":
        """Return the marked responses."""
        prompts = [prompt for prompt, kept in zip(self.prompts, kept_B.tolist(), strict=True) if kept]
        return self._replace(
            prompts=prompts,
            response_BT=self.response_BT[kept_B],
            mask_BT=self.mask_BT[kept_B],
            ended_B=self.ended_B[kept_B],
            importance_BT=None if self.importance_BT is None else self.importance_BT[kept_B],
        )

    def followed_by(self, others: "Responses", pad_id: int) -> "Responses":
        """Return these responses and others."""
        length = max(self.length, others.length)
        rows_BT = [pad(part.response_BT, (0, length - part.length), value=pad_id) for part in (self, others)]
        masks_BT = [pad(part.mask_BT, (0, length - part.length)) for part in (self, others)]
        weights = [part.importance_BT for part in (self, others) if part.importance_BT is not None]
        weights_BT = [pad(part_BT, (0, length - part_BT.shape[1]), value=1.0) for part_BT in weights]
        return self._replace(
            prompts=[*self.prompts, *others.prompts],
            response_BT=torch.cat(rows_BT),
            mask_BT=torch.cat(masks_BT),
            ended_B=torch.cat([self.ended_B, others.ended_B]),
            importance_BT=torch.cat(weights_BT) if weights_BT else None,
        )

    @property
    def length(self) -> int:
        """T."""
        return self.mask_BT.shape[1]

    @property
    def tokens(self) -> list[list[int]]:
        """The tokens of each response, including its end-of-turn token, without padding."""
        return [ids_T[mask_T > 0].tolist() for ids_T, mask_T in zip(self.response_BT, self.mask_BT, strict=True)]

    @property
    def measures(self) -> dict[str, float]:
        """Facts of the update: mean length, share that ended by itself, tokens read in a pass, and `facts`."""
        return {
            "response_tokens": float(self.mask_BT.sum(dim=1).mean()),
            "ended": float(self.ended_B.float().mean()),
            "tokens": float(sum(group.length for group in self.groups)),
            **self.facts,
        }

    @property
    def groups(self) -> list[Group]:
        """Responses that follow each other on one prompt, as groups."""
        return consecutive(self.prompts, self.tokens)


class SamplingSettings(NamedTuple):
    """Settings of sampling, and of reading what was sampled."""

    max_new_tokens: int
    at_once: int
    """Responses generated in one batch."""
    pad_id: int
    ends: tuple[int, ...]
    """The tokens that end a turn."""
    seed: int
    """Seed of the choice of prompts and of the sampling."""
    micro_batch_tokens: int = 4096
    """Tokens of responses and their prompts that are read at once."""


Respond = Callable[[SharedBase, Sequence[list[int]], SamplingSettings], Responses]
"""Samples one response of the current policy to each prompt: `respond` in this process, or `train.rl.remote` by a
server."""


class Block(NamedTuple):
    """A micro-batch of responses, packed, and their rows in the update."""

    rows: slice
    packed: Packed


def sampling_settings(experiment: Experiment, tokenizer: Any, at_once: int) -> SamplingSettings:
    """Return the sampling settings of a config, with `at_once` responses in a batch."""
    return SamplingSettings(
        experiment.reflector.max_new_tokens,
        at_once,
        tokenizer.pad_token_id,
        end_tokens(base_model_folder(experiment.train.base_model), tokenizer),
        experiment.seed,
        experiment.train.micro_batch_tokens,
    )


def prompt_indices(lengths: Sequence[int], update: int, prompts: int, responses: int, seed: int) -> list[int]:
    """Return the numbers of the prompts of an update, the shortest first, each as often as it gets responses.

    Each pass over all prompts has an order of its own. The result depends on the arguments only, so a resumed run takes
    the same prompts as an unbroken one.
    """
    chosen = numbers_of_update("prompts", len(lengths), update, prompts, seed)
    return [number for number in sorted(chosen, key=lengths.__getitem__) for _ in range(responses)]


def refill_indices(
    lengths: Sequence[int], seed: str, prompts: int, responses: int, drawn: Mapping[int, int], kept: Container[int]
) -> list[int]:
    """Return the numbers of further prompts of an update, in the form of `prompt_indices`.

    They are drawn at random, by `seed`, from the prompts that the update has drawn least often so far; those in
    `kept`, which are in its batch, come last.
    """
    order = random.Random(seed).sample(range(len(lengths)), len(lengths))
    order.sort(key=lambda number: (number in kept, drawn[number]))
    chosen = islice(cycle(order), prompts)
    return [number for number in sorted(chosen, key=lengths.__getitem__) for _ in range(responses)]


def numbers_of_update(name: str, count: int, update: int, batch_size: int, seed: int) -> list[int]:
    """Return the numbers below `count` that an update takes: each pass over all has an order of its own."""
    positions = range(update * batch_size, (update + 1) * batch_size)
    places = (divmod(position, count) for position in positions)
    return [_order_of_pass(f"{name} {seed} {turn}", count)[place] for turn, place in places]


@lru_cache(maxsize=2)
def _order_of_pass(name: str, count: int) -> "array[int]":
    """Return a permutation of the numbers below `count`, seeded by `name`; cached, since 10^6 take half a second."""
    return array("q", random.Random(name).sample(range(count), count))


def respond(model: SharedBase, prompts: Sequence[list[int]], draw: SamplingSettings) -> Responses:
    """Sample one response of the policy to each prompt; equal prompts that follow each other are read once."""
    model.eval()

    def sample_batch(first: int) -> Tensor:
        return model.generate(prompts[first : first + draw.at_once], draw.max_new_tokens, draw.pad_id, draw.ends)

    firsts = range(0, len(prompts), draw.at_once)
    batches = processes.each(firsts, sample_batch)
    length = max(batch.shape[1] for batch in batches)
    response_BT = torch.cat([pad(batch, (0, length - batch.shape[1]), value=draw.pad_id) for batch in batches])
    return ended_responses(prompts, response_BT, draw)


def ended_responses(prompts: Sequence[list[int]], response_BT: Tensor, draw: SamplingSettings) -> Responses:
    """Replace what follows the end of a turn, and every NO_TOKEN, by padding."""
    is_end_BT = is_end(response_BT, draw.ends)
    mask_BT = ((is_end_BT.cumsum(dim=1) - is_end_BT.long()) == 0) & (response_BT != NO_TOKEN)
    return Responses(prompts, response_BT.where(mask_BT, draw.pad_id), mask_BT.float(), ended_B=is_end_BT.any(dim=1))


def blocks(responses: Responses, most_tokens: int) -> list[Block]:
    """Return the responses in micro-batches of at most `most_tokens`, the same ones in every pass.

    Old and new log-probabilities must come from tensors of the same shape: rounding in bf16 kernels depends on the
    shape, and would change the ratio by 0.1 to 0.5 before the first update.
    """
    done, first = list[Block](), 0
    parts = [part for group in responses.groups for part in divided(group, most_tokens)]
    for groups in micro_batches(parts, most_tokens):
        rows = slice(first, first + sum(len(group.responses) for group in groups))
        done.append(Block(rows, pack(groups).to(responses.mask_BT.device)))
        first = rows.stop
    return done


@torch.no_grad()
def policy_log_probs(model: SharedBase, responses: Responses, most_tokens: int) -> Tensor:
    """Return the policy's log-probabilities of the responses' tokens, (B, T), 0 at padding."""
    model.train()  # As in the passes that train, so that the same numbers come out.
    parts = processes.each(
        blocks(responses, most_tokens), lambda block: model.read(block.packed, responses.length).log_probs_RT
    )
    return torch.cat(parts) * responses.mask_BT


def padded(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    """Return rows of different lengths as one tensor, (B, T), with this value on the right."""
    return pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True, padding_value=value)
