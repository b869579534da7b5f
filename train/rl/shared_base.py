"""All models of PPO and GRPO on one copy of the base model.

Policy, SFT policy and reward model are adapters on one base; the value head reads the policy's last hidden states.
Four separate models of 7 billion parameters would take 50 GiB in bf16; this takes 3.6 GiB with a 4-bit base.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retroformer.errors import NotFinite
from retroformer.models.adapter_fit import require_fit
from retroformer.models.reward_adapter import load_lora, read_reward_adapter

from ..base import keep_trainables_in_fp32, save_memory, save_one_adapter, switched_to, trainable
from ..integrity.finite import LOWER_THE_RATE

POLICY, REFERENCE, REWARD = "policy", "ref", "reward"


class TokenReadings(NamedTuple):
    """The policy's log-probabilities, values and entropies at the tokens of responses, (B, T)."""

    log_probs_BT: Tensor
    values_BT: Tensor
    entropies_BT: Tensor
    """Empty, (0,), with gradients enabled, since no loss uses them."""


class SharedBase(nn.Module):
    """A base with the adapters policy (trained), ref (the SFT policy) and reward, and heads for value and score.

    If `reward` is None, it cannot score.

    Raises:
        ConfigError: an adapter was made for a base of another shape.
    """

    def __init__(self, base: Any, sft: Path, reward: Path | None) -> None:
        from peft import PeftConfig, PeftModel

        super().__init__()
        require_fit(base, sft)
        if reward is not None:
            require_fit(base, reward, scores=True)
        # Without dropout, so that the first ratio of every update is exactly 1.
        lora: Any = PeftConfig.from_pretrained(str(sft))
        lora.lora_dropout, lora.inference_mode = 0.0, False
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
        keep_trainables_in_fp32(self)
        self._in_bf16 = base.dtype == torch.bfloat16
        save_memory(base, self.language_model)

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

    def read(self, ids_BL: Tensor, attention_BL: Tensor, length: int) -> TokenReadings:
        """Return the policy's log-probabilities, values and entropies for the last `length` tokens (T) of each row."""
        hidden_BTH = self._hidden(ids_BL, attention_BL)[:, -length - 1 : -1].float()
        log_probs_BTV = self._log_probs(hidden_BTH)
        entropies_BT = torch.empty(0)
        if not torch.is_grad_enabled():
            entropies_BT = -(log_probs_BTV.exp() * log_probs_BTV).sum(dim=-1)
        chosen_BT = log_probs_BTV.gather(2, ids_BL[:, -length:, None])[..., 0]
        return TokenReadings(chosen_BT, self.value_head(hidden_BTH)[..., 0], entropies_BT)

    @torch.no_grad()
    def reference_log_probs(self, ids_BL: Tensor, attention_BL: Tensor, length: int) -> Tensor:
        """Return the SFT policy's log-probabilities for the last `length` tokens, (B, T)."""
        with switched_to(self.language_model, REFERENCE):
            hidden_BTH = self._hidden(ids_BL, attention_BL)[:, -length - 1 : -1].float()
        return self._log_probs(hidden_BTH).gather(2, ids_BL[:, -length:, None])[..., 0]

    @torch.no_grad()
    def scores(self, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
        """Return the reward model's score at the last token of each row, (B,)."""
        with switched_to(self.language_model, REWARD):
            hidden_BLH = self._hidden(ids_BL, attention_BL)
        positions_L = torch.arange(ids_BL.shape[1], device=ids_BL.device)
        last_B = (positions_L * attention_BL).argmax(dim=1)
        rows_B = torch.arange(len(ids_BL), device=ids_BL.device)
        scores_B: Tensor = self.score_head(hidden_BLH[rows_B, last_B].float())[:, 0]
        return scores_B

    @torch.no_grad()
    def generate(self, ids_BP: Tensor, attention_BP: Tensor, max_new_tokens: int, pad_id: int, eos_id: int) -> Tensor:
        """Return prompts (padded on the left) with a sampled response to each (padded on the right), (B, L).

        Temperature is 1 and the distribution is not truncated, since PPO's ratio compares the policies themselves.
        """
        with self._autocast(), _reporting_bad_probabilities():
            drawn_BL: Tensor = self.language_model.generate(
                input_ids=ids_BP,
                attention_mask=attention_BP,
                max_new_tokens=max_new_tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=pad_id,
                eos_token_id=eos_id,
                use_cache=True,
            )
        return drawn_BL

    def save_policy(self, folder: Path) -> None:
        """Write the policy's adapter into `folder`."""
        save_one_adapter(self.language_model, POLICY, folder)

    def _log_probs(self, hidden_BTH: Tensor) -> Tensor:
        # In fp32, since bf16 logits add noise of 0.2 to ratios; and only at response tokens, since prompts are long.
        head: Any = self.language_model.get_base_model().get_output_embeddings()
        return linear(hidden_BTH, head.weight.float()).log_softmax(dim=-1)

    def _hidden(self, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
        positions_BL = (attention_BL.cumsum(dim=1) - 1).clamp(min=0)
        trunk: Any = self.language_model.get_base_model().base_model
        with self._autocast():
            output = trunk(input_ids=ids_BL, attention_mask=attention_BL, position_ids=positions_BL, use_cache=False)
        hidden_BLH: Tensor = output.last_hidden_state
        return hidden_BLH

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self._in_bf16 else nullcontext()

    def _add_reward_adapter(self, folder: Path) -> None:
        """Load the classifier's adapter onto the language model's trunk, and its score head into `score_head`."""
        adapter = read_reward_adapter(folder)
        self.score_head.weight.data.copy_(adapter.head)
        self.language_model.add_adapter(REWARD, adapter.config)
        load_lora(self.language_model, adapter, REWARD)


@contextmanager
def _reporting_bad_probabilities() -> Iterator[None]:
    """Raise NotFinite if torch refuses to sample, because the policy's probabilities are infinite or NaN."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise NotFinite(f"The policy's probabilities are infinite or not numbers: {LOWER_THE_RATE}") from None
