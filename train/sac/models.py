"""The models of SAC: the acting language model with a trained adapter, and two critics with target copies.

The critics read embeddings of the actor as it was before training, so what they read does not move while they learn:
of a state the last hidden state of its prompt, of an action the mean of the hidden states of its text read alone.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from retroformer.config.sections.train import Lora
from retroformer.models.loading import load_adapter

from ..base import keep_trainables_in_fp32, lora_config, save_memory, save_one_adapter, switched_to
from ..rl.policy import POLICY, REFERENCE
from ..shared_prompt.packed import Group, Packed, pack
from ..shared_prompt.reading import computing, hidden_states, response_readings, trunk_of


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
    candidates, place = list(range(len(actions))), 0
    while len(candidates) > 1:
        best = max(candidates, key=lambda action: float(log_probs_AT[action, place]))
        candidates = [action for action in candidates if actions[action][place] == actions[best][place]]
        place += 1
    return candidates[0]


CRITIC_WIDTH = 256
"""Width of the two hidden layers of a critic, as in SAC's own experiments."""
CRITICS = 2


def critic(hidden_size: int) -> nn.Sequential:
    """Return a network that estimates Q(s, a), (..., 1), from the embeddings of a state and of an action, (..., 2H)."""
    return nn.Sequential(
        # Hidden states have a few very large entries.
        nn.LayerNorm(2 * hidden_size),
        nn.Linear(2 * hidden_size, CRITIC_WIDTH),
        nn.ReLU(),
        nn.Linear(CRITIC_WIDTH, CRITIC_WIDTH),
        nn.ReLU(),
        nn.Linear(CRITIC_WIDTH, 1),
    )


class ActorCritic(nn.Module):
    """The actor with its trained adapter, the frozen copy of it that embeds texts, the critics and their targets.

    `start` has the adapter with which the actor begins; None: a fresh one, which changes nothing at first.
    """

    def __init__(self, base: Any, lora: Lora, start: Path | None, *, gradient_checkpointing: bool = True) -> None:
        from peft import get_peft_model

        super().__init__()
        if start is None:
            self.language_model: Any = get_peft_model(base, lora_config(base, lora), adapter_name=POLICY)
            self.language_model.add_adapter(REFERENCE, lora_config(base, lora))
        else:
            self.language_model = load_adapter(base, start, POLICY)
            self.language_model.load_adapter(start, REFERENCE)
        self.language_model.set_adapter(POLICY)
        keep_trainables_in_fp32(self.language_model)
        hidden_size: int = base.config.get_text_config().hidden_size
        self.critics = nn.ModuleList(critic(hidden_size) for _ in range(CRITICS)).to(base.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self._action_embeddings = dict[tuple[int, ...], Tensor]()
        save_memory(base, self.language_model, gradient_checkpointing=gradient_checkpointing)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.language_model.device
        return device

    def action_log_probs(self, states: Sequence[Group]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the tokens of all actions, (B, A, T), and which actions exist, (B, A)."""
        packed = pack(states).to(self.device)
        hidden_BLH = hidden_states(trunk_of(self.language_model), packed)
        return by_action(states, packed, response_readings(self.language_model, hidden_BLH, packed).log_probs_N)

    @torch.no_grad()
    def state_embedding(self, prompt: Sequence[int]) -> Tensor:
        """Return the embedding of a state by its prompt, (H,)."""
        return self._embedded(prompt)[-1]

    @torch.no_grad()
    def action_embeddings(self, states: Sequence[Group]) -> Tensor:
        """Return the embeddings of all actions, 0 where a state has fewer actions than another, (B, A, H)."""
        cache = self._action_embeddings
        for action in (tuple(action) for state in states for action in state.responses):
            # Embedded one by one, so that the embedding does not depend on other actions, and cached by text.
            if action not in cache:
                cache[action] = self._embedded(action).mean(dim=0)
        rows = [torch.stack([cache[tuple(action)] for action in state.responses]) for state in states]
        return pad_sequence(rows, batch_first=True)

    def save_policy(self, folder: Path) -> None:
        """Write the actor's adapter into `folder`."""
        save_one_adapter(self.language_model, POLICY, folder)

    def _embedded(self, tokens: Sequence[int]) -> Tensor:
        """Return the hidden states of a text under the actor before training, (T, H)."""
        ids_BL = torch.tensor([list(tokens)], device=self.device)
        trains = self.training
        self.eval()
        trunk = trunk_of(self.language_model)
        with switched_to(self.language_model, REFERENCE), computing(trunk):
            hidden_BLH: Tensor = trunk(input_ids=ids_BL, use_cache=False).last_hidden_state
        self.train(trains)
        return hidden_BLH[0].float()
