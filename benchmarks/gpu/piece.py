"""A piece of the kit, and its result in a file."""

import json
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.files import durable

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    cells: Sequence[str]
    seconds: float
    device: str
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
        began, fault, cells = time.monotonic(), "", list[str]()
        try:
            cells = list(piece.work())
        except Exception as error:
            fault = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            traceback.print_exc()
        if self.on_gpu:
            torch.cuda.empty_cache()
        result = Result(cells, time.monotonic() - began, self.device_name, fault)
        durable.write_text(self._path(piece.name), json.dumps(result._asdict()))
        return result

    def result(self, name: str) -> Result | None:
        path = self._path(name)
        result = Result(**json.loads(path.read_text())) if path.is_file() else None
        return result if result and result.device == self.device_name else None

    def experiment(self, base: Path, *overrides: str) -> Experiment:
        """Return an experiment with the papers' training settings on this base."""
        path = ROOT / "configs" / "paper" / "hotpotqa.yaml"
        return load(path, [f"train.base_model={base.resolve()}", *overrides])

    def _path(self, name: str) -> Path:
        return self.folder / "pieces" / f"{name.replace('/', ' ')}.json"
