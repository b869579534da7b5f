"""The policy of SAC: a distribution over the actions of a state, from the likelihoods of their texts.

A state is a group: its prompt, and its actions as responses. No action is the beginning of another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..shared_prompt.group import Group
from ..shared_prompt.packed import Packed


def by_action(states: Sequence[Group], packed: Packed, log_probs_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities by state, action and place in the action, 0 after its end, (B, A, T).

    Returns:
        The log-probabilities, and which actions exist, (B, A), since states with fewer actions than others are padded.
    """
    counts_B = torch.tensor([len(state.responses) for state in states], device=log_probs_N.device)
    admitted_BA = torch.arange(int(counts_B.max()), device=log_probs_N.device) < counts_B[:, None]
    longest = int(packed.place_N.max()) + 1
    by_action_BAT = log_probs_N.new_zeros(*admitted_BA.shape, longest)
    return by_action_BAT.masked_scatter(admitted_BA[..., None], packed.by_response(log_probs_N, longest)), admitted_BA


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
