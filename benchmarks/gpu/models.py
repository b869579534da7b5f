"""Random weights in the shapes of real models, written once into shared memory, and experiments on them."""

import shutil
from pathlib import Path
from typing import NamedTuple

import torch

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.models.precision import Quantization
from tests.train.world import save_tiny_model

ROOT = Path(__file__).parents[2]
SHARED = Path("/dev/shm/retroformer-gpu-kit")
ON_GPU = torch.cuda.is_available()
LARGEST_BYTES = 18 * 2**30
"""Room for the files of the largest model."""


class ModelShape(NamedTuple):
    kind: str
    """Architecture, by transformers' name. All have 32 heads of 128."""
    layers: int
    hidden: int
    key_value_heads: int
    intermediate: int
    vocabulary: int
    quantization: Quantization


SHAPES = {
    "Qwen3-4B": ModelShape("qwen3", 36, 2560, 8, 9728, 151936, "none"),
    "LongChat-7b": ModelShape("llama", 32, 4096, 32, 11008, 32000, "nf4"),
    "Llama-3.1-8B": ModelShape("llama", 32, 4096, 8, 14336, 128256, "nf4"),
}


def random_model(out: Path, name: str) -> Path:
    """Return the folder of a model in the shape that `name` has, on a CPU with few small layers."""
    folder = _folder(out, name)
    if not (folder / "ready").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        save_tiny_model(folder, hidden=64)  # Its tokenizer has few tokens, so random texts fit every vocabulary.
        if name in SHAPES:
            _save_weights(folder, SHAPES[name])
        (folder / "ready").touch()
    return folder


def _folder(out: Path, name: str) -> Path:
    """Return the folder of a model: in shared memory if a large one fits there, after others have made room."""
    shared = ON_GPU and name in SHAPES and SHARED.parent.is_dir()
    if not shared or shutil.disk_usage(SHARED.parent).total < LARGEST_BYTES:
        return out / "models" / name
    SHARED.mkdir(exist_ok=True)
    for other in SHARED.iterdir():
        if not (SHARED / name / "ready").is_file() and shutil.disk_usage(SHARED).free < LARGEST_BYTES:
            shutil.rmtree(other)
    return SHARED / name


def _save_weights(folder: Path, shape: ModelShape) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    heads, head_size = (32, 128) if ON_GPU else (4, 16)
    config = AutoConfig.for_model(
        shape.kind,
        hidden_size=shape.hidden if ON_GPU else 64,
        intermediate_size=shape.intermediate if ON_GPU else 128,
        num_hidden_layers=shape.layers if ON_GPU else 2,
        num_attention_heads=heads,
        num_key_value_heads=shape.key_value_heads * heads // 32,
        head_dim=head_size,
        vocab_size=shape.vocabulary if ON_GPU else 512,
        max_position_embeddings=32768,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if ON_GPU else "cpu"):
        AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def experiment(out: Path, name: str, *overrides: str) -> Experiment:
    """Return an experiment with the papers' training settings on a random model."""
    fixed = [f"train.base_model={random_model(out, name).resolve()}", "train.report_to=none"]
    if name in SHAPES:
        fixed.append(f"train.quantization={SHAPES[name].quantization}")
    return load(ROOT / "configs" / "paper" / "hotpotqa.yaml", [*fixed, *overrides])


def synchronize() -> None:
    """Wait for the card."""
    if ON_GPU:
        torch.cuda.synchronize()


def gib(size: float) -> float:
    """Return a size in bytes in GiB, rounded."""
    return round(size / 2**30, 4)
