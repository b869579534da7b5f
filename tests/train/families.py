"""Tiny random models in the shape of each preset: architecture, tied embeddings, special tokens and chat template."""

import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import torch

from retroformer.models.embedded import base_model_folder
from retroformer.models.presets import preset

TEMPLATES = Path(__file__).parents[1] / "templates"
SIZE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,  # Every fourth layer of SmolLM3 has no rotary positions.
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,
}


class Family(NamedTuple):
    """What a tokenizer of the family has."""

    template: str
    """Name of its chat template: one of ours, an original in TRL's package, or `embedded`."""
    special: tuple[str, ...]
    """Special tokens; the last one ends a turn."""
    bos: str | None = None
    pad: str | None = None
    plain: tuple[str, ...] = ()
    """Tokens of several letters that count as text."""


_LLAMA_3 = ("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>")
_LLAMA_3 += ("<|end_header_id|>", "<|eot_id|>")
_CHAT = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINKING = ("<think>", "</think>")
_QWEN_3 = Family("qwen3", _CHAT, pad="<|endoftext|>", plain=_THINKING)
_MISTRAL = Family("mistral", ("<unk>", "<s>", "[INST]", "[/INST]", "</s>"), bos="<s>")
FAMILIES = {
    "qwen3-0.6b": _QWEN_3,
    "qwen3-8b": _QWEN_3,
    "qwen3-4b-2507": _QWEN_3._replace(template="qwen3_instruct_2507"),
    "llama3.2-1b": Family("llama3_2", _LLAMA_3, bos="<|begin_of_text|>"),
    "llama3.1-8b": Family("llama3_1", _LLAMA_3, bos="<|begin_of_text|>"),
    "smollm2-1.7b": Family("embedded", _CHAT, bos="<|im_start|>", pad="<|im_end|>"),
    "smollm3-3b": Family("smollm3", (*_LLAMA_3[:3], *_CHAT[1:]), pad="<|finetune_right_pad_id|>", plain=_THINKING),
    "mistral-7b": _MISTRAL,
    "mistral-nemo-12b": _MISTRAL._replace(pad="<unk>"),
}
"""Presets of every architecture, with tied and untied embeddings, and of every template."""


_LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}
LIMITS: dict[str, dict[str, Any]] = {
    "whole": {},
    "sliding": {"sliding_window": 64},
    "chunked": {"attention_chunk_size": 64},
    "switching": {"rope_parameters": _LONGROPE | {"original_max_position_embeddings": 64}},
}
"""Settings of models of which long rows are read otherwise than short ones, and of one without a limit."""


def save_tiny_of(name: str, folder: Path, **settings: Any) -> Path:
    """Save a random model in the shape of the preset `name`, whose tokens are bytes and the family's special tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family = FAMILIES[name]
    tokens = _save_tokenizer(family, folder)
    torch.manual_seed(0)
    shape = SIZE | {"tie_word_embeddings": preset(name).tied_embeddings, "vocab_size": len(tokens)} | settings
    if preset(name).architecture == "mistral":
        shape = {"sliding_window": None} | shape
    ends: dict[str, Any] = {"eos_token_id": tokens[family.special[-1]], "bos_token_id": tokens.get(family.bos or "")}
    # No special token may be padding, as in the configs of Llama 3 and Mistral.
    config = AutoConfig.for_model(preset(name).architecture, pad_token_id=None, **shape, **ends)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    template = folder / "chat_template.jinja"
    if family.template == "embedded":
        shutil.copyfile(base_model_folder("embedded") / template.name, template)
    elif (own := TEMPLATES / f"{family.template}.jinja").is_file():
        shutil.copyfile(own, template)
    else:
        template.write_text((files("trl") / "chat_templates" / f"{family.template}.jinja").read_text())
    return folder


def _save_tokenizer(family: Family, folder: Path) -> dict[str, int]:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in family.special])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in family.plain])
    named: dict[str, Any] = {"bos_token": family.bos, "pad_token": family.pad, "eos_token": family.special[-1]}
    if "<unk>" in family.special:
        named["unk_token"] = "<unk>"
    given = {role: token for role, token in named.items() if token}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given).save_pretrained(folder)
    return dict(tokenizer.get_vocab())
