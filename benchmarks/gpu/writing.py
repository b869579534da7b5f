"""Tokens per second of generation in training and of the serving engine, prompts included, at 1, 16 and 64 rows."""

import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.gpu.models import SHAPES, experiment, synchronize
from benchmarks.gpu.report import Row
from serve.engine.engine import Engine
from serve.engine.generation import DecodedText, Output, TextGeneration
from serve.engine.model import Model
from serve.engine.sampling import SamplingParameters
from train.base import load_base
from train.plan.rehearsal import fresh_adapter
from train.rl.policy import SharedBase

PROMPT, NEW = (1024, 64) if torch.cuda.is_available() else (24, 4)
PATIENCE_SECONDS = 120


def generate(out: Path, model: str) -> Iterator[Row]:
    """Yield the speed at which PPO and GRPO sample in their own process. No token ends a response."""
    settings = experiment(out, model)
    with TemporaryDirectory() as folder:
        policy = SharedBase(load_base(settings.train), fresh_adapter(settings, Path(folder)), None)
    policy.eval()
    yield from _speeds(model, lambda prompts, tokens: policy.generate(prompts, tokens, 0, ()))


def serve(out: Path, model: str) -> Iterator[Row]:
    """Yield the speed of the server's engine with an adapter."""
    settings, quantization = experiment(out, model), SHAPES[model].quantization
    with TemporaryDirectory() as name:
        adapters = {"first": fresh_adapter(settings, Path(name))}
        served = Model(Path(settings.train.base_model), adapters, "bfloat16", quantization=quantization)
    engine = Engine(served, 64, 0.85)

    def write(prompts: list[list[int]], tokens: int) -> None:
        delivered: queue.Queue[Output] = queue.Queue()
        for number, prompt in enumerate(prompts):
            request = TextGeneration(
                prompt,
                "first",
                limit=tokens,
                sampling=SamplingParameters(temperature=1.0),
                stop_tokens=frozenset(),
                transcript=DecodedText(served.decode, ()),
                deliver=delivered.put,
                generator=torch.Generator().manual_seed(number),
            )
            engine.submit(request)
        for _ in prompts:
            if failure := delivered.get(timeout=PATIENCE_SECONDS).failure:
                raise RuntimeError(failure)

    yield from _speeds(model, write)


def _speeds(model: str, write: Callable[[list[list[int]], int], object]) -> Iterator[Row]:
    for rows in (1, 16, 64):
        prompts = [[1] + [3 + (7 * row + place) % 200 for place in range(PROMPT - 1)] for row in range(rows)]
        write([prompt[::-1] for prompt in prompts], 2)  # Other prompts, which the engine does not find again.
        synchronize()
        began = time.perf_counter()
        write(prompts, NEW)
        synchronize()
        seconds = time.perf_counter() - began
        base = f"{model} {SHAPES[model].quantization}"
        yield {"model": base, "rows": rows, "tokens/s": round(rows * NEW / seconds), "seconds": round(seconds, 3)}
