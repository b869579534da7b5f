"""Models with random weights in the shapes of real ones, or on a CPU tiny ones of the same kind."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from benchmarks.gpu.piece import Bench
from tests.train.world import save_tiny_model

SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "LongChat-7b": {"type": "llama", "layers": 32, "kv": 32, "feed": 11008, "vocabulary": 32000},
        "Qwen3-8B": {"type": "qwen3", "layers": 36, "kv": 8, "feed": 12288, "vocabulary": 151936},
        "Llama-3.1-8B": {"type": "llama", "layers": 32, "kv": 8, "feed": 14336, "vocabulary": 128256},
    }
)
"""Shapes of real models: all have 32 heads of 128."""


def random_model(bench: Bench, name: str) -> Path:
    """Return the folder of a model in this shape. Only one is on the disk at a time, since each takes 16 GB."""
    folder = bench.folder / "models" / name
    ready = folder / f"ready on {bench.device}"
    if ready.is_file():
        return folder
    shutil.rmtree(bench.folder / "models", ignore_errors=True)
    save_tiny_model(folder)  # Its tokenizer has few tokens, so random texts fit every vocabulary.
    _save_random(folder, SHAPES[name], bench.device, tiny=not bench.on_gpu)
    ready.touch()
    return folder


def _save_random(folder: Path, shape: Mapping[str, Any], device: torch.device, *, tiny: bool) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    heads, size = (4, 16) if tiny else (32, 128)
    config = AutoConfig.for_model(
        shape["type"],
        hidden_size=heads * size,
        intermediate_size=heads * size * 2 if tiny else shape["feed"],
        num_hidden_layers=2 if tiny else shape["layers"],
        num_attention_heads=heads,
        num_key_value_heads=heads if shape["kv"] == 32 else heads // 4,
        head_dim=size,
        vocab_size=512 if tiny else shape["vocabulary"],
        max_position_embeddings=32768,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
