"""Stored reflections in place of fresh responses: GRPO on what collecting has sampled and rated.

The reflections were sampled by policies of earlier rounds. Their tokens are weighted by the ratio of the probabilities
under the policy that trains and under the one that wrote them, which was stored with them (`train.rl.importance`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..data.groups import RatedGroup, RatedResponse
from ..losses import masked_mean
from .importance import MOST, importance, policy_log_probs
from .sampling import Draw, Responses, ended_responses
from .shared_base import SharedBase


class StoredGroups:
    """Gives stored reflections as responses (`Respond`), and their ratings as rewards (`Rewards`)."""

    def __init__(self, groups: Sequence[RatedGroup], prompts: Sequence[list[int]], size: int, most_tokens: int) -> None:
        """Hold groups with their prompts in tokens, for groups of `size`; read `most_tokens` at once."""
        self._size, self._most_tokens = size, most_tokens
        self._groups = [self._of_size(group.responses) for group in groups]
        self._numbers = {tuple(ids): number for number, ids in enumerate(prompts)}

    def _of_size(self, responses: Sequence[RatedResponse]) -> list[RatedResponse]:
        """Return the first reflections; a group that is too small repeats its first one, without a rating."""
        missing = self._size - len(responses)
        return [*responses[: self._size], *[responses[0]._replace(rating=float("nan"))] * missing]

    def respond(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
        """Return the reflections on these prompts, each of which is there `size` times in succession."""
        stored = [response for ids in prompts[:: self._size] for response in self._groups[self._numbers[tuple(ids)]]]
        response_BT = _padded([[token.id for token in one.drawn] for one in stored], draw.pad_id, model.device)
        sampler_BT = _padded([[token.log_prob for token in one.drawn] for one in stored], 0.0, model.device)
        responses = ended_responses(prompts, response_BT, draw)
        mask_BT = responses.mask_BT
        weights_BT = importance(policy_log_probs(model, responses, self._most_tokens), sampler_BT * mask_BT)
        facts = {
            "importance": float(masked_mean(weights_BT, mask_BT)),
            "truncated": float(masked_mean((weights_BT == MOST).float(), mask_BT)),
        }
        return responses._replace(facts=facts, importance_BT=weights_BT)

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Return the ratings of the reflections on the prompts with these numbers, (B,), `nan` for repeated ones."""
        ratings = [response.rating for number in asked[:: self._size] for response in self._groups[number]]
        return torch.tensor(ratings, device=responses.response_BT.device)


def _padded(rows: Sequence[Sequence[float]], value: float, device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True, padding_value=value)
