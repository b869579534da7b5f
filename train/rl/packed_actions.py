"""Puts the prompt of a state and all its actions into one row, so that the model reads a long prompt once.

    prompt  | action 0 | action 1 | action 2 | padding

Each action sees the prompt and itself, and its positions follow those of the prompt, as if it were alone after it.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

_PROMPT, _PADDING = -1, -2
"""Numbers of the parts of a row that are no action."""


class ChoiceTokens(NamedTuple):
    """The prompt of a state and its actions, in tokens. None is empty, and no action is the beginning of another."""

    prompt: list[int]
    actions: list[list[int]]

    @property
    def longest(self) -> int:
        """Number of tokens of the prompt with its longest action."""
        return len(self.prompt) + max(map(len, self.actions))

    @property
    def packed(self) -> int:
        """Number of tokens of the prompt with all its actions."""
        return len(self.prompt) + sum(map(len, self.actions))


class PackedActions(NamedTuple):
    """B states in rows of L tokens. N: the tokens of all actions of all states."""

    ids_BL: Tensor
    positions_BL: Tensor
    sees_BLL: Tensor
    """True where the token of a row may attend to the token of a column."""
    row_N: Tensor
    source_N: Tensor
    """Position in its row whose hidden state predicts the token."""
    token_N: Tensor
    action_N: Tensor
    place_N: Tensor
    """Place of the token in its action."""
    admitted_BA: Tensor
    """True where a state has an action; states with fewer actions than others are padded."""

    def to(self, device: torch.device) -> "PackedActions":
        """Return the same rows on this device."""
        return PackedActions(*(part.to(device) for part in self))


def pack(states: Sequence[ChoiceTokens], pad_id: int) -> PackedActions:
    """Pack the actions of these states, padded on the right."""
    rows, positions, parts = [], [], []
    columns: list[tuple[int, int, int, int, int]] = []
    for row, state in enumerate(states):
        ids, start = list(state.prompt), len(state.prompt)
        places, numbers = list(range(start)), [_PROMPT] * start
        for number, action in enumerate(state.actions):
            first = len(ids)
            sources = [start - 1, *range(first, first + len(action) - 1)]
            columns += [
                (row, source, token, number, place)
                for place, (source, token) in enumerate(zip(sources, action, strict=True))
            ]
            ids += action
            places += range(start, start + len(action))
            numbers += [number] * len(action)
        rows.append(torch.tensor(ids))
        positions.append(torch.tensor(places))
        parts.append(torch.tensor(numbers))
    part_BL = pad_sequence(parts, batch_first=True, padding_value=_PADDING)
    index_L = torch.arange(part_BL.shape[1])
    same_BLL = part_BL[:, :, None] == part_BL[:, None, :]
    sees_BLL = (same_BLL | (part_BL == _PROMPT)[:, None, :]) & (index_L[:, None] >= index_L)
    counts_B = torch.tensor([len(state.actions) for state in states])
    row_N, source_N, token_N, action_N, place_N = torch.tensor(columns).unbind(dim=1)
    return PackedActions(
        pad_sequence(rows, batch_first=True, padding_value=pad_id),
        pad_sequence(positions, batch_first=True),
        sees_BLL,
        row_N,
        source_N,
        token_N,
        action_N,
        place_N,
        admitted_BA=torch.arange(int(counts_B.max())) < counts_B[:, None],
    )


def by_action(packed: PackedActions, log_probs_N: Tensor) -> Tensor:
    """Return the log-probabilities by state, action and place in the action, 0 after its end, (B, A, T)."""
    longest = int(packed.place_N.max()) + 1
    by_action_BAT = log_probs_N.new_zeros(*packed.admitted_BA.shape, longest)
    return by_action_BAT.index_put((packed.row_N, packed.action_N, packed.place_N), log_probs_N)


def log_policy(log_probs_BAT: Tensor, admitted_BA: Tensor) -> Tensor:
    """Return the softmax of the actions' log-likelihoods over the actions of each state, as logarithms, (B, A)."""
    return log_probs_BAT.sum(dim=2).masked_fill(~admitted_BA, -torch.inf).log_softmax(dim=1)


def written_greedily(actions: Sequence[Sequence[int]], log_probs_AT: Tensor) -> int:
    """Return the action that a server writes which takes the most likely admissible token at each place.

    It need not be the most likely action: a token counts for all actions that go on with it.
    """
    left, place = list(range(len(actions))), 0
    while len(left) > 1:
        best = max(left, key=lambda action: float(log_probs_AT[action, place]))
        left = [action for action in left if actions[action][place] == actions[best][place]]
        place += 1
    return left[0]
