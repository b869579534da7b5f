"""All models of PPO and GRPO on one copy of the base model.

Policy, SFT policy and reward model are adapters on one base; the value head reads the policy's last hidden states.
Four separate models of 7 billion parameters would take 50 GiB in bf16; this takes 3.6 GiB with a 4-bit base.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers.cache_utils import Cache, DynamicLayer

from retroformer.config.sections.train import Grpo, Ppo
from retroformer.errors import NotFinite
from retroformer.models.adapter_weights import add_reward_adapter
from retroformer.models.loading import load_adapter

from ..base import keep_trainables_in_fp32, save_memory, save_one_adapter, switch_dropout_off, switched_to, trainable
from ..integrity import LOWER_THE_RATE
from ..shared_prompt.agreement import choose_attention, dense_attention
from ..shared_prompt.packed import Group, Packed
from ..shared_prompt.reading import LayersBelow, computing, hidden_states, predicting, response_readings, trunk_of

VALUE_LEARNING_RATE = 1e-3
"""Peak learning rate of PPO's value head."""
_NONE = -1
"""Number of a response in a place of the grid without one."""


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of a layer, with room for those of all steps that follow, so that a step copies no others."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.keys: Tensor
        self.values: Tensor
        self._steps_left = steps
        self._rooms: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Add what the prompts or a step gave, (U, G, K, D); return all."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.replace(key_states, value_states)
            return key_states, value_states
        start, added = self.keys.shape[2], key_states.shape[2]
        if not self._rooms:
            length = start + self._steps_left * added
            for kept_UGKD in (self.keys, self.values):
                self._rooms.append(kept_UGKD.new_empty(*kept_UGKD.shape[:2], length, kept_UGKD.shape[3]))
                self._rooms[-1][:, :, :start] = kept_UGKD
        for room_UGKD, new_UGQD in zip(self._rooms, (key_states, value_states), strict=True):
            room_UGKD[:, :, start : start + added] = new_UGQD
        self.keys, self.values = (room_UGKD[:, :, : start + added] for room_UGKD in self._rooms)
        self._steps_left -= 1
        return self.keys, self.values

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Take these in place of all keys and values."""
        self.keys, self.values, self._rooms = keys, values, []


class _Grid:
    """Places of the responses that go on, and the keys and values of what the model has read."""

    def __init__(self, prompts: Sequence[list[int]], length: int, layers: int, device: torch.device) -> None:
        runs = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
        numbers = torch.split(torch.arange(len(prompts), device=device), [count for _, count in runs])
        self.number_UQ = pad_sequence(list(numbers), batch_first=True, padding_value=_NONE)
        self.ids_UP = pad_sequence([torch.tensor(prompt, device=device) for prompt, _ in runs], batch_first=True)
        self.length_U = torch.tensor([len(prompt) for prompt, _ in runs], device=device)
        self.read = 0
        """Steps read so far."""
        # Without the model's config, which may have layers that forget: attention is that of training. The last token
        # of a response is not read.
        self.cache = Cache(layers=[_Layer(length - 1) for _ in range(layers)])

    @property
    def occupied(self) -> Tensor:
        """True in the places with a response, (U, Q)."""
        return self.number_UQ != _NONE

    def mask(self, dtype: torch.dtype) -> Tensor:
        """Return what each place sees, its prompt and its own tokens, as numbers to add to scores, (U, 1, Q, K)."""
        (U, Q), P = self.number_UQ.shape, self.ids_UP.shape[1]
        prompt_UQP = (torch.arange(P, device=self.length_U.device) < self.length_U[:, None])[:, None].expand(U, Q, P)
        own_QK = torch.eye(Q, dtype=torch.bool, device=self.length_U.device).repeat(1, self.read + 1)
        sees_UQK = torch.cat([prompt_UQP, own_QK.expand(U, *own_QK.shape)], dim=2)
        return torch.zeros(sees_UQK.shape, dtype=dtype, device=sees_UQK.device).masked_fill_(
            ~sees_UQK, torch.finfo(dtype).min
        )[:, None]

    def narrow(self) -> None:
        """Drop the rows and columns without a response."""
        left_U = self.occupied.sum(dim=1)
        rows, width = left_U.nonzero()[:, 0], int(left_U.max())
        (U, Q), P = self.number_UQ.shape, self.ids_UP.shape[1]
        if (len(rows), width) == (U, Q):
            return
        place_UQ = (~self.occupied)[rows].int().argsort(dim=1, stable=True)[:, :width]
        self.number_UQ = self.number_UQ[rows].gather(1, place_UQ)
        self.ids_UP, self.length_U = self.ids_UP[rows], self.length_U[rows]

        def kept(all_UGKD: Tensor) -> Tensor:
            of_prompt, own = torch.split(all_UGKD[rows], [P, self.read * Q], dim=2)
            own = torch.unflatten(own, 2, (self.read, Q)).take_along_dim(place_UQ[:, None, None, :, None], dim=3)
            return torch.cat([of_prompt, own.flatten(2, 3)], dim=2)

        for layer in self.cache.layers:
            layer.replace(kept(layer.keys), kept(layer.values))


def is_end(tokens: Tensor, ends: Sequence[int]) -> Tensor:
    """Return which tokens end a turn."""
    return torch.isin(tokens, torch.tensor(ends, dtype=tokens.dtype, device=tokens.device))


@torch.no_grad()
def sampled(
    trunk: Any, head: Any, prompts: Sequence[list[int]], length: int, pad_id: int, ends: Sequence[int]
) -> Tensor:
    """Return a response to each prompt, of at most `length` tokens, padded on the right, (B, T)."""
    grid = _Grid(prompts, length, trunk.config.get_text_config().num_hidden_layers, trunk.device)
    # Drawn for all responses at once, so that a response does not depend on when others end.
    uniform_TB = torch.rand(length, len(prompts), dtype=torch.float64, device=trunk.device)
    response_BT = torch.full((len(prompts), length), pad_id, device=trunk.device)
    hidden_UPH = trunk(input_ids=grid.ids_UP, past_key_values=grid.cache, use_cache=True).last_hidden_state
    hidden_UQH = hidden_UPH[torch.arange(len(hidden_UPH)), grid.length_U - 1, None].expand(*grid.number_UQ.shape, -1)
    for step in range(length):
        goes_on_UQ = grid.occupied
        numbers = grid.number_UQ[goes_on_UQ]
        tokens = drawn(head(hidden_UQH[goes_on_UQ]), uniform_TB[step, numbers])
        response_BT[numbers, step] = tokens
        grid.number_UQ[goes_on_UQ] = numbers.where(~is_end(tokens, ends), _NONE)
        if step + 1 == length or not bool(grid.occupied.any()):
            break
        grid.narrow()
        hidden_UQH = trunk(
            input_ids=response_BT[grid.number_UQ, step],
            attention_mask=grid.mask(trunk.dtype),
            position_ids=(grid.length_U + step)[:, None].expand(grid.number_UQ.shape),
            past_key_values=grid.cache,
            use_cache=True,
        ).last_hidden_state
        grid.read += 1
    return response_BT[:, : step + 1]


def drawn(logits_BV: Tensor, uniform_B: Tensor) -> Tensor:
    """Return a token for each row of logits, distributed as their softmax, from numbers uniform in [0, 1), (B,).

    Raises:
        NotFinite: probabilities are infinite or not numbers.
    """
    # One uniform number for a row: torch.multinomial draws one for each entry, which takes ten times as long on a CPU.
    # The sums are in double precision, so that no token is lost.
    cumulative_BV = logits_BV.float().softmax(dim=1).cumsum(dim=1, dtype=torch.float64)
    total_B = cumulative_BV[:, -1]
    if not bool(total_B.isfinite().all()):
        raise NotFinite(f"The policy's probabilities are infinite or not numbers: {LOWER_THE_RATE}")
    return torch.searchsorted(cumulative_BV, (uniform_B * total_B)[:, None], right=True)[:, 0]


POLICY, REFERENCE, REWARD = "policy", "ref", "reward"


class PolicyReadings(NamedTuple):
    """The policy's log-probabilities, values and entropies at the tokens of R responses, 0 after their ends, (R, T)."""

    log_probs_RT: Tensor
    values_RT: Tensor
    entropies_RT: Tensor
    """Zeros with gradients enabled, since no loss uses them."""


class SharedBase(nn.Module):
    """A base with the adapters policy (trained), ref (the SFT policy) and reward, and heads for value and score.

    If `reward` is None, it cannot score.
    """

    def __init__(self, base: Any, sft: Path, reward: Path | None, *, gradient_checkpointing: bool = True) -> None:
        super().__init__()
        self.language_model: Any = load_adapter(base, sft, POLICY)
        self.language_model.load_adapter(sft, REFERENCE)
        hidden_size: int = base.config.get_text_config().hidden_size
        self.score_head = nn.Linear(hidden_size, 1, bias=False, device=base.device).requires_grad_(False)
        self.value_head = nn.Linear(hidden_size, 1, device=base.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if reward is not None:
            # The classifier's adapter goes onto the language model's trunk, and its head into `score_head`.
            self.score_head.weight.data.copy_(add_reward_adapter(self.language_model, reward, REWARD))
        self.language_model.set_adapter(POLICY)
        # Without dropout, the first ratio of every update is exactly 1, and scores and divergences have no noise.
        switch_dropout_off(self.language_model)
        keep_trainables_in_fp32(self)
        save_memory(base, self.language_model, gradient_checkpointing=gradient_checkpointing)
        self._below = LayersBelow(trunk_of(self.language_model))

    @property
    def device(self) -> torch.device:
        return self.value_head.weight.device

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        size: int = self.language_model.config.get_text_config().vocab_size
        return size

    def adapter_parameters(self) -> list[nn.Parameter]:
        """Return the policy's parameters."""
        return trainable(self.language_model)

    def choose_attention(self, groups: Sequence[Group]) -> None:
        """Choose the attention, and check on one of `groups` that the policy reads it as separate rows.

        Raises:
            ConfigError: it does not.
        """
        self.train()
        model = self.language_model

        def values(hidden_BLH: Tensor, packed: Packed) -> Tensor:
            return response_readings(model, hidden_BLH, packed).log_probs_N

        choose_attention(trunk_of(model), values, groups)

    def read(self, packed: Packed, length: int) -> PolicyReadings:
        """Return the policy's log-probabilities, values and entropies of responses, padded to `length` (T)."""
        hidden_BLH = self._hidden_states(packed)
        readings = response_readings(self.language_model, hidden_BLH, packed)
        values_N1 = self.value_head(predicting(hidden_BLH, packed))
        entropies_N = readings.entropies_N if len(readings.entropies_N) else torch.zeros_like(readings.log_probs_N)
        columns = (readings.log_probs_N, values_N1[:, 0], entropies_N)
        return PolicyReadings(*(packed.by_response(values_N, length) for values_N in columns))

    @torch.no_grad()
    def reference_log_probs(self, packed: Packed, length: int) -> Tensor:
        """Return the SFT policy's log-probabilities of responses, padded to `length`, (R, T)."""
        with switched_to(self.language_model, REFERENCE):
            hidden_BLH = self._hidden_states(packed)
        return packed.by_response(response_readings(self.language_model, hidden_BLH, packed).log_probs_N, length)

    @torch.no_grad()
    def scores(self, packed: Packed) -> Tensor:
        """Return the reward model's score at the last token of each response, (R,)."""
        with switched_to(self.language_model, REWARD):
            hidden_BLH = self._hidden_states(packed)
        scores_R1: Tensor = self.score_head(hidden_BLH[packed.row_R, packed.last_R].float())
        return scores_R1[:, 0]

    @torch.no_grad()
    def generate(self, prompts: Sequence[list[int]], max_new_tokens: int, pad_id: int, ends: Sequence[int]) -> Tensor:
        """Return a sampled response to each prompt, padded on the right, (B, T).

        Temperature is 1 and the distribution is not truncated, since PPO's ratio compares the policies themselves.
        """
        head = self.language_model.get_base_model().get_output_embeddings()
        trunk = trunk_of(self.language_model)
        with computing(trunk), dense_attention(trunk):
            return sampled(trunk, head, prompts, max_new_tokens, pad_id, ends)

    def save_policy(self, folder: Path) -> None:
        """Write the policy's adapter into `folder`."""
        save_one_adapter(self.language_model, POLICY, folder)

    def _hidden_states(self, packed: Packed) -> Tensor:
        with self._below.reading(packed):
            return hidden_states(trunk_of(self.language_model), packed)


def make_optimizer(model: SharedBase, settings: Ppo | Grpo) -> torch.optim.AdamW:
    """Return Adam over the policy's adapter and, in PPO, the value head, with their peak learning rates as `peak`.

    The policy's is `train.ppo.learning_rate` or `train.grpo.learning_rate`.
    """
    assert settings.learning_rate is not None, "make_stage chooses it"
    groups = [(model.adapter_parameters(), settings.learning_rate)]
    if isinstance(settings, Ppo):
        groups.append((list(model.value_head.parameters()), VALUE_LEARNING_RATE))
    entries = [{"params": parameters, "lr": peak, "peak": peak} for parameters, peak in groups]
    return torch.optim.AdamW(entries, weight_decay=0.0)
