"""Memory of one full step of each stage at several lengths, on the shapes of real models, against the plan."""

import shutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import torch

from benchmarks.gpu.piece import Bench, Piece
from tests.train.world import save_tiny_model
from train.plan.estimate import USABLE_SHARE, case_of, estimate, memory_of
from train.plan.rehearsal import rehearse
from train.plan.shape import read_config, shape_of
from train.stage_kinds import STAGES

TITLE = "Memory of a step"
COLUMNS = ("planned GiB", "measured GiB", "off")
NOTE = (
    "Two steps of the stage's own code on random weights and texts, with the papers' settings: NF4 with double "
    "quantisation, LoRA of rank 4, responses of 128 tokens. Measured is the peak of all tensors. The seconds include "
    "loading the model."
)
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "LongChat-7b": {"type": "llama", "layers": 32, "kv": 32, "feed": 11008, "vocabulary": 32000},
        "Qwen3-8B": {"type": "qwen3", "layers": 36, "kv": 8, "feed": 12288, "vocabulary": 151936},
        "Llama-3.1-8B": {"type": "llama", "layers": 32, "kv": 8, "feed": 14336, "vocabulary": 128256},
    }
)
"""Shapes of real models: all have 32 heads of 128."""
_STAGES = ("sft", "reward", "ppo", "dpo", "grpo")


def pieces(bench: Bench) -> Iterator[Piece]:
    for model in SHAPES:
        for tokens in (2048, 4096, 8192, 16384) if bench.on_gpu else (64, 128):
            for stage in _STAGES:
                yield Piece(f"steps/{model} {stage} {tokens}", partial(_work, bench, model, stage, tokens))


def _work(bench: Bench, model: str, stage: str, tokens: int) -> tuple[str, ...]:
    # On a CPU, small enough to check the kit.
    small = ("reflector.max_new_tokens=16", f"train.micro_batch_tokens={2 * tokens}")
    words = ("reflector.max_new_tokens=128",) if bench.on_gpu else small
    experiment = bench.experiment(
        random_model(bench, model), f"train.max_length={tokens}", "train.dtype=bfloat16", *words
    )
    device: Literal["cuda", "cpu"] = "cuda" if bench.on_gpu else "cpu"
    case = case_of(experiment, STAGES[stage], shape_of(read_config(experiment.train.base_model)), device, tokens)
    planned = estimate(case).peak
    if planned > USABLE_SHARE[device] * memory_of(device):
        return _gib(planned), "does not fit, not tried"
    began = time.monotonic()
    used = rehearse(experiment, case)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return _gib(planned), _gib(used), f"{planned / used - 1:+.1%}"


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


def _gib(size: float) -> str:
    return f"{size / 2**30:.3f}" if size < 2**30 else f"{size / 2**30:.2f}"
