"""All models of PPO and GRPO on one copy of the base model.

Policy, SFT policy and reward model are adapters on one base; the value head reads the policy's last hidden states.
Four separate models of 7 billion parameters would take 50 GiB in bf16; this takes 3.6 GiB with a 4-bit base.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from retroformer.models.adapter_fit import require_fit
from retroformer.models.reward_adapter import load_lora, read_reward_adapter

from ..base import keep_trainables_in_fp32, save_memory, save_one_adapter, switch_dropout_off, switched_to, trainable
from ..shared_prompt.agreement import dense_attention, settle_attention
from ..shared_prompt.below import LayersBelow
from ..shared_prompt.group import Group
from ..shared_prompt.packed import Packed
from ..shared_prompt.reading import TokenReadings, computing, hidden_states, predicting, token_readings
from .generation import sampled

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

    Raises:
        ConfigError: an adapter was made for a base of another shape.
    """

    def __init__(self, base: Any, sft: Path, reward: Path | None, *, gradient_checkpointing: bool = True) -> None:
        from peft import PeftConfig, PeftModel

        super().__init__()
        require_fit(base, sft)
        if reward is not None:
            require_fit(base, reward, scores=True)
        lora: Any = PeftConfig.from_pretrained(str(sft))
        lora.inference_mode = False
        self.language_model: Any = PeftModel.from_pretrained(base, sft, POLICY, is_trainable=True, config=lora)
        self.language_model.load_adapter(sft, REFERENCE)
        hidden_size: int = base.config.get_text_config().hidden_size
        self.score_head = nn.Linear(hidden_size, 1, bias=False, device=base.device).requires_grad_(False)
        self.value_head = nn.Linear(hidden_size, 1, device=base.device)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)
        if reward is not None:
            self._add_reward_adapter(reward)
        self.language_model.set_adapter(POLICY)
        # Without dropout, the first ratio of every update is exactly 1, and scores and divergences have no noise.
        switch_dropout_off(self.language_model)
        keep_trainables_in_fp32(self)
        save_memory(base, self.language_model, gradient_checkpointing=gradient_checkpointing)
        self._below = LayersBelow(self._trunk)

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

    def settle_attention(self, groups: Sequence[Group]) -> None:
        """Choose the attention, and check on one of `groups` that the policy reads it as separate rows.

        Raises:
            ConfigError: it does not.
        """
        self.train()
        settle_attention(self._trunk, lambda hidden, packed: self._readings(hidden, packed).log_probs_N, groups)

    def read(self, packed: Packed, length: int) -> PolicyReadings:
        """Return the policy's log-probabilities, values and entropies of responses, padded to `length` (T)."""
        hidden_BLH = self._hidden_states(packed)
        readings, values_N1 = self._readings(hidden_BLH, packed), self.value_head(predicting(hidden_BLH, packed))
        entropies_N = readings.entropies_N if len(readings.entropies_N) else torch.zeros_like(readings.log_probs_N)
        columns = (readings.log_probs_N, values_N1[:, 0], entropies_N)
        return PolicyReadings(*(packed.by_response(values_N, length) for values_N in columns))

    @torch.no_grad()
    def reference_log_probs(self, packed: Packed, length: int) -> Tensor:
        """Return the SFT policy's log-probabilities of responses, padded to `length`, (R, T)."""
        with switched_to(self.language_model, REFERENCE):
            hidden_BLH = self._hidden_states(packed)
        return packed.by_response(self._readings(hidden_BLH, packed).log_probs_N, length)

    @torch.no_grad()
    def scores(self, packed: Packed) -> Tensor:
        """Return the reward model's score at the last token of each response, (R,)."""
        with switched_to(self.language_model, REWARD):
            hidden_BLH = self._hidden_states(packed)
        scores_R1: Tensor = self.score_head(hidden_BLH[packed.row_R, packed.last_R].float())
        return scores_R1[:, 0]

    @torch.no_grad()
    def generate(self, prompts: Sequence[list[int]], max_new_tokens: int, pad_id: int, eos_id: int) -> Tensor:
        """Return a sampled response to each prompt, padded on the right, (B, T).

        Temperature is 1 and the distribution is not truncated, since PPO's ratio compares the policies themselves.
        """
        head = self.language_model.get_base_model().get_output_embeddings()
        with computing(self._trunk), dense_attention(self._trunk):
            return sampled(self._trunk, head, prompts, max_new_tokens, pad_id, eos_id)

    def save_policy(self, folder: Path) -> None:
        """Write the policy's adapter into `folder`."""
        save_one_adapter(self.language_model, POLICY, folder)

    @property
    def _trunk(self) -> Any:
        return self.language_model.get_base_model().base_model

    def _hidden_states(self, packed: Packed) -> Tensor:
        with self._below.reading(packed):
            return hidden_states(self._trunk, packed)

    def _readings(self, hidden_BLH: Tensor, packed: Packed) -> TokenReadings:
        head = self.language_model.get_base_model().get_output_embeddings()
        return token_readings(predicting(hidden_BLH, packed), packed, head)

    def _add_reward_adapter(self, folder: Path) -> None:
        """Load the classifier's adapter onto the language model's trunk, and its score head into `score_head`."""
        adapter = read_reward_adapter(folder)
        self.score_head.weight.data.copy_(adapter.head)
        self.language_model.add_adapter(REWARD, adapter.config)
        load_lora(self.language_model, adapter, REWARD)
