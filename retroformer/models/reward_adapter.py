"""The adapter of a reward model on a language model: LoRA weights for the trunk that both share, and a score head.

Used by train, for PPO and GRPO on one base, and by serve, to choose the best of n answers.
"""

from pathlib import Path
from typing import Any, NamedTuple

from retroformer.run.provenance import ADAPTER_WEIGHTS

SCORE_HEAD = "score.weight"
"""End of the name of the score head's weight."""


class RewardAdapter(NamedTuple):
    """Adapter of a sequence classifier with one label, as peft saved it."""

    config: Any
    """peft's LoraConfig for a language model, without the score head."""
    lora: dict[str, Any]
    """LoRA factors by the names of their parameters."""
    head: Any
    """Weight of the score head on the last hidden state, a tensor of shape (1, H)."""


def read_reward_adapter(folder: Path) -> RewardAdapter:
    """Read the adapter in `folder`. Raises ValueError if it has no score head."""
    from peft import PeftConfig
    from safetensors.torch import load_file

    config: Any = PeftConfig.from_pretrained(str(folder))
    config.task_type, config.modules_to_save, config.inference_mode = "CAUSAL_LM", None, True
    weights = load_file(folder / ADAPTER_WEIGHTS)
    heads = [name for name in weights if name.endswith(SCORE_HEAD)]
    if len(heads) != 1:
        raise ValueError("it has no score head, so it is not a reward model")
    return RewardAdapter(config, weights, weights.pop(heads[0]))


def load_lora(peft_model: Any, adapter: RewardAdapter, name: str) -> None:
    """Give the adapter called `name` of `peft_model` these weights. Raises ValueError if the model lacks a layer."""
    from peft import set_peft_model_state_dict

    if unknown := set_peft_model_state_dict(peft_model, adapter.lora, adapter_name=name).unexpected_keys:
        raise ValueError(f"the model has no layer for {unknown[0]}")
