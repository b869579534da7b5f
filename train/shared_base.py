"""Model surgery: one copy of the base in memory, and all that PPO needs of it.

Policy, SFT policy and reward model are adapters on one base; the value head reads the policy's last hidden states.
Four models, each with weights of its own, would take four times the memory (50 GiB in bf16 for 7 billion parameters;
this takes 3.6 GiB with a 4-bit base).
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from retroformer.errors import NotFinite
from retroformer.train_sections import Train
from train.base import CPU, keep_trainables_in_fp32, leave_casting_to_autocast, load_base
from train.finite import LOWER_THE_RATE
from train.sound import require_fit

POLICY, REFERENCE, REWARD = "policy", "ref", "reward"


class TokenOpinions(NamedTuple):
    """What the policy thinks of each token of some responses, (B, T)."""

    log_probs_BT: Tensor
    values_BT: Tensor
    entropies_BT: Tensor
    """Nothing is trained by them, so there are none, (0,), where gradients are taken."""


class SharedBase(nn.Module):
    """A base with the adapters policy (trained), ref (the SFT policy) and reward, and heads for value and score.

    Where `reward` is None it has no scores.

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
        config: Any = PeftConfig.from_pretrained(str(sft))
        config.lora_dropout, config.inference_mode = 0.0, False
        self.language_model: Any = PeftModel.from_pretrained(base, sft, POLICY, is_trainable=True, config=config)
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
        if self._in_bf16:
            leave_casting_to_autocast(self.language_model)
        if base.device != CPU:
            base.gradient_checkpointing_enable()
            base.enable_input_require_grads()

    @property
    def device(self) -> torch.device:
        return self.value_head.weight.device

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        size: int = self.language_model.config.get_text_config().vocab_size
        return size

    def adapter_parameters(self) -> list[nn.Parameter]:
        """Those of the policy."""
        return [parameter for parameter in self.language_model.parameters() if parameter.requires_grad]

    def opinions(self, ids_BL: Tensor, attention_BL: Tensor, length: int) -> TokenOpinions:
        """The policy's log-probabilities, values and entropies for the last `length` tokens (T) of each row."""
        hidden_BTH = self._hidden(ids_BL, attention_BL)[:, -length - 1 : -1].float()
        log_probs_BTV = self._log_probs(hidden_BTH)
        entropies_BT = torch.empty(0)
        if not torch.is_grad_enabled():
            entropies_BT = -(log_probs_BTV.exp() * log_probs_BTV).sum(dim=-1)
        chosen_BT = log_probs_BTV.gather(2, ids_BL[:, -length:, None])[..., 0]
        return TokenOpinions(chosen_BT, self.value_head(hidden_BTH)[..., 0], entropies_BT)

    @torch.no_grad()
    def reference_log_probs(self, ids_BL: Tensor, attention_BL: Tensor, length: int) -> Tensor:
        """The SFT policy's log-probabilities for the last `length` tokens, (B, T)."""
        with self._speaking_as(REFERENCE):
            hidden_BTH = self._hidden(ids_BL, attention_BL)[:, -length - 1 : -1].float()
        return self._log_probs(hidden_BTH).gather(2, ids_BL[:, -length:, None])[..., 0]

    @torch.no_grad()
    def scores(self, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
        """The reward model's score at the last token of each row, (B,)."""
        with self._speaking_as(REWARD):
            hidden_BLH = self._hidden(ids_BL, attention_BL)
        positions_L = torch.arange(ids_BL.shape[1], device=ids_BL.device)
        last_B = (positions_L * attention_BL).argmax(dim=1)
        rows_B = torch.arange(len(ids_BL), device=ids_BL.device)
        scores_B: Tensor = self.score_head(hidden_BLH[rows_B, last_B].float())[:, 0]
        return scores_B

    @torch.no_grad()
    def generate(self, ids_BP: Tensor, attention_BP: Tensor, max_new_tokens: int, pad_id: int, eos_id: int) -> Tensor:
        """Prompts (padded at the left) and a response drawn from the policy for each, (B, L), padded at the right.

        Temperature 1 and no truncation of the distribution: the ratio of PPO is between policies, as they are.
        """
        with self._autocast(), _drawing_numbers():
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
        """Write the policy's adapter into `folder` itself, where peft would make a folder of the adapter's name."""
        self.language_model.save_pretrained(folder, selected_adapters=[POLICY])
        for path in (folder / POLICY).iterdir():
            path.rename(folder / path.name)
        (folder / POLICY).rmdir()

    def _log_probs(self, hidden_BTH: Tensor) -> Tensor:
        # In fp32, and only for the tokens of responses: bf16 logits put noise of 0.2 on ratios, and prompts are long.
        head: Any = self.language_model.get_base_model().get_output_embeddings()
        return linear(hidden_BTH, head.weight.float()).log_softmax(dim=-1)

    def _hidden(self, ids_BL: Tensor, attention_BL: Tensor) -> Tensor:
        positions_BL = (attention_BL.cumsum(dim=1) - 1).clamp(min=0)
        trunk: Any = self.language_model.get_base_model().base_model
        with self._autocast():
            read = trunk(input_ids=ids_BL, attention_mask=attention_BL, position_ids=positions_BL, use_cache=False)
        hidden_BLH: Tensor = read.last_hidden_state
        return hidden_BLH

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, torch.bfloat16) if self._in_bf16 else nullcontext()

    @contextmanager
    def _speaking_as(self, adapter: str) -> Iterator[None]:
        self.language_model.set_adapter(adapter)
        try:
            yield
        finally:
            self.language_model.set_adapter(POLICY)

    def _add_reward_adapter(self, folder: Path) -> None:
        """The adapter of a sequence classifier fits the language model's trunk; its score head is kept apart."""
        from peft import PeftConfig, set_peft_model_state_dict
        from safetensors.torch import load_file

        config: Any = PeftConfig.from_pretrained(str(folder))
        config.task_type, config.modules_to_save, config.inference_mode = "CAUSAL_LM", None, True
        weights = load_file(folder / "adapter_model.safetensors")
        heads = [name for name in weights if name.endswith("score.weight")]
        self.score_head.weight.data.copy_(weights.pop(heads[0]))
        self.language_model.add_adapter(REWARD, config)
        loaded = set_peft_model_state_dict(self.language_model, weights, adapter_name=REWARD)
        if loaded.unexpected_keys:
            raise RuntimeError(f"The reward adapter at {folder} does not fit the base: {loaded.unexpected_keys[:3]}.")


@contextmanager
def _drawing_numbers() -> Iterator[None]:
    """Raises NotFinite where the policy's probabilities are none: torch refuses to draw from them."""
    try:
        yield
    except RuntimeError as error:
        if "probability tensor" not in str(error):
            raise
        raise NotFinite(f"The policy's probabilities are infinite or not numbers: {LOWER_THE_RATE}") from None


def load_shared_base(page: Train, sft: Path, reward: Path | None) -> SharedBase:
    """The base that a page names, with the adapters of its stages."""
    return SharedBase(load_base(page), sft, reward)
