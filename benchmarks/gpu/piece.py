"""A piece of the kit, its result in a file, and the models with random weights that pieces share."""

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from retroformer.experiment.config import Experiment
from retroformer.experiment.file import load
from retroformer.files import durable
from tests.train.world import save_tiny_model

ROOT = Path(__file__).parents[2]
SHAPES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "LongChat-7b": {"type": "llama", "layers": 32, "kv": 32, "feed": 11008, "vocabulary": 32000},
        "Qwen3-8B": {"type": "qwen3", "layers": 36, "kv": 8, "feed": 12288, "vocabulary": 151936},
        "Llama-3.1-8B": {"type": "llama", "layers": 32, "kv": 8, "feed": 14336, "vocabulary": 128256},
    }
)
"""Shapes of real models: all have 32 heads of 128."""


class Result(NamedTuple):
    """What came of a piece."""

    cells: Sequence[str]
    seconds: float
    fault: str = ""


class Piece(NamedTuple):
    """A part of the work: its section and name, and a function that returns the cells of its row."""

    name: str
    work: Callable[[], Sequence[str]]


class Bench:
    """Folder of a report, and the device that it is about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pieces").mkdir(parents=True, exist_ok=True)
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")

    @property
    def device_name(self) -> str:
        if not self.on_gpu:
            return "**No card: a CPU with tiny shapes**"
        return f"{torch.cuda.get_device_name()}, {torch.cuda.mem_get_info()[1] / 2**30:.0f} GiB"

    def run(self, piece: Piece) -> Result:
        """Run a piece and store its result; a fault is a result, too."""
        began, fault, cells = time.monotonic(), "", list[str]()
        try:
            cells = list(piece.work())
        except Exception as error:
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            traceback.print_exc()
        if self.on_gpu:
            torch.cuda.empty_cache()
        result = Result(cells, time.monotonic() - began, fault)
        durable.write_text(self._path(piece.name), json.dumps(result._asdict()))
        return result

    def result(self, name: str) -> Result | None:
        """Return the result of a finished piece."""
        path = self._path(name)
        return Result(**json.loads(path.read_text())) if path.is_file() else None

    def results(self) -> Iterator[Result]:
        """Yield all results."""
        for path in sorted((self.folder / "pieces").glob("*.json")):
            yield Result(**json.loads(path.read_text()))

    def model(self, name: str) -> Path:
        """Return the folder of a model with random weights in this shape, or on a CPU a tiny one of the same kind.

        Only one is on the disk at a time, since each takes 16 GB.
        """
        folder = self.folder / "models" / name
        if (folder / "ready").is_file():
            return folder
        shutil.rmtree(self.folder / "models", ignore_errors=True)
        save_tiny_model(folder)  # Its tokenizer has few tokens, so random texts fit every vocabulary.
        _save_random(folder, SHAPES[name], self.device, tiny=not self.on_gpu)
        (folder / "ready").touch()
        return folder

    def experiment(self, base: Path, *overrides: str) -> Experiment:
        """Return an experiment with the papers' training settings on this base."""
        path = ROOT / "configs" / "paper" / "hotpotqa.yaml"
        return load(path, [f"train.base_model={base.resolve()}", *overrides])

    def _path(self, name: str) -> Path:
        return self.folder / "pieces" / f"{name.replace('/', ' ')}.json"


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
