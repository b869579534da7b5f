"""The demo's stages in bfloat16 on the card, beside the same in float32 on the CPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.gpu.piece import ROOT, Bench, Piece
from eval.report.files import read_report
from retroformer.files.document import LineChart

TITLE = "The demo"
COLUMNS = ("loss of the warm start, first and last", "reward model, held out", "solved by the last trial")
NOTE = (
    "The demo's config with the same seed on both devices. Rounding differs, so texts do, and results agree only as "
    "far as chance allows."
)
_STAGES = (
    ("collect warm",),
    ("train warm",),
    ("collect",),
    ("train sft",),
    ("collect", "round=2", "reflector.endpoint.model=sft", "collect.candidates=8"),
    ("train reward", "round=2"),
    ("train ppo", "round=2"),
    ("eval",),
)
"""Commands, each with overrides of its own."""
_SMALL = (
    "collect.tasks=8",
    "collect.written=24",
    "train.ppo.updates=2",
    "eval.tasks=6",
)
"""Overrides that make the demo small enough to check the kit on a CPU."""


def pieces(bench: Bench) -> Iterator[Piece]:
    devices = ("cuda", "cpu") if bench.on_gpu else ("cpu",)
    for device in devices:
        yield Piece(f"demo/{device}", partial(_work, bench, device))


def _work(bench: Bench, device: str) -> tuple[str, ...]:
    folder = bench.folder / f"demo-{device}"
    folder.mkdir(exist_ok=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    environment |= {} if device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}
    dtype = "bfloat16" if device == "cuda" else "float32"
    words = [f"train.dtype={dtype}", f"serve.dtype={dtype}", *(() if bench.on_gpu else _SMALL)]
    for command, *own in _STAGES:
        done = subprocess.run(
            [sys.executable, "-m", *command.split(), str(ROOT / "configs/demo.yaml"), *words, *own],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr[-300:]}")
    return _warm(folder), _reward(folder), _solved(folder)


def _warm(folder: Path) -> str:
    losses = json.loads((folder / "runs/demo/warm/metrics.json").read_text())["losses"]
    return f"{losses[0]:.3f}, {losses[-1]:.3f}"


def _reward(folder: Path) -> str:
    metrics = json.loads((folder / "runs/demo/reward-2/metrics.json").read_text())
    return f"{metrics['held_out_accuracy']:.2f} of {metrics['held_out_pairs']}"


def _solved(folder: Path) -> str:
    charts = (figure.chart for figure in read_report(folder / "runs/demo/eval").figures if figure.name == "solved")
    lines = (line for chart in charts if isinstance(chart, LineChart) for line in chart.series)
    return ", ".join(f"{line.name} {line.points[-1][1]:.2f}" for line in lines)
