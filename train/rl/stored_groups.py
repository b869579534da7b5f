"""Stored reflections in place of fresh responses: GRPO on what collecting has sampled and rated.

The reflections were sampled by policies of earlier rounds. Their tokens are weighted by the ratio of the probabilities
under the policy that trains and under the one that wrote them, which was stored with them (`train.rl.importance`).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.groups import RatedGroup, RatedResponse
from ..losses import masked_mean
from .importance import MAX_WEIGHT, truncated_weights
from .sampling import Draw, Responses, ended_responses, padded, policy_log_probs
from .shared_base import SharedBase


class StoredGroups:
    """Gives stored reflections as responses (`Respond`), and their ratings as rewards (`Rewards`)."""

    def __init__(self, groups: Sequence[RatedGroup], prompts: Sequence[list[int]], size: int, most_tokens: int) -> None:
        """Hold groups with their prompts in tokens, for groups of `size`; read `most_tokens` at once."""
        self._size, self._most_tokens = size, most_tokens
        self._groups = {tuple(ids): group.responses for ids, group in zip(prompts, groups, strict=True)}
        self._given = list[RatedResponse]()
        """The reflections that were given last."""

    def _chosen(self, responses: Sequence[RatedResponse]) -> list[RatedResponse]:
        """Return `size` reflections of a group, whose ratings differ.

        Of a larger group they are drawn anew each time; a smaller one repeats its first reflection, without a rating.
        """
        if (missing := self._size - len(responses)) >= 0:
            return [*responses, *[responses[0]._replace(rating=float("nan"))] * missing]
        first, *rest = (responses[number] for number in torch.randperm(len(responses)).tolist())
        second = next(number for number, response in enumerate(rest) if response.rating != first.rating)
        return [first, rest.pop(second), *rest][: self._size]

    def respond(self, model: SharedBase, prompts: Sequence[list[int]], draw: Draw) -> Responses:
        """Return reflections on these prompts, each of which is there `size` times in succession."""
        stored = [response for ids in prompts[:: self._size] for response in self._chosen(self._groups[tuple(ids)])]
        self._given = stored
        response_BT = padded([[token.id for token in one.drawn] for one in stored], draw.pad_id, model.device)
        sampler_BT = padded([[token.log_prob for token in one.drawn] for one in stored], 0.0, model.device)
        responses = ended_responses(prompts, response_BT, draw)
        mask_BT = responses.mask_BT
        weights_BT = truncated_weights(policy_log_probs(model, responses, self._most_tokens), sampler_BT * mask_BT)
        facts = {
            "importance": float(masked_mean(weights_BT, mask_BT)),
            "truncated": float(masked_mean((weights_BT == MAX_WEIGHT).float(), mask_BT)),
        }
        return responses._replace(facts=facts, importance_BT=weights_BT)

    def __call__(self, update: int, asked: Sequence[int], responses: Responses) -> Tensor:
        """Return the ratings of the reflections that were given last, (B,), `nan` for repeated ones."""
        return torch.tensor([response.rating for response in self._given], device=responses.response_BT.device)
