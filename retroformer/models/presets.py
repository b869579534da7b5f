"""Presets: what a config needs to train and serve a model, by name (`train.preset`)."""

from functools import cache
from pathlib import Path
from typing import Literal

import yaml
from pydantic import Field, JsonValue

from retroformer.method.records import Record

_FILE = Path(__file__).with_name("presets.yaml")


class ModelPreset(Record):
    """A model and the settings that it needs."""

    base_model: str
    """Its name on the hub, for `train.base_model`."""
    context: int
    """Tokens of prompt and response that it was made for; `train.max_length` may not be larger."""
    architecture: Literal["llama", "mistral", "qwen3", "smollm3"]
    tied_embeddings: bool
    """True if the language head shares the embeddings' weights."""
    licence: str
    lora_targets: Literal["attention", "all-linear"] = "all-linear"
    """Layers that get LoRA weights, for `train.lora.targets`."""
    chat_template_kwargs: dict[str, JsonValue] = Field(default_factory=dict)
    """Settings of its chat template, for `train.chat_template_kwargs`."""
    notes: str = ""


@cache
def presets() -> dict[str, ModelPreset]:
    """Return all presets by name, in the order of the file."""
    content = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
    return {name: ModelPreset.model_validate(fields) for name, fields in content.items()}


def preset(name: str) -> ModelPreset:
    """Return the preset of this name. Raises ValueError, with a list of all, if there is none."""
    if name not in presets():
        raise ValueError(f"No preset {name!r}: choose one of {', '.join(presets())}, or set train.base_model instead")
    return presets()[name]
