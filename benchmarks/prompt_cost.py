"""CPU-seconds of forward and backward passes over a prompt with its responses in one row, beside a formula.

    python benchmarks/prompt_cost.py [--points 128,24,4 384,48,4 1500,64,4 384,48,1 384,48,8] [--dtype float32]
                                     [--attention sdpa] [--larger]

A point is the length of the prompt P, the length of a response T, and their number k. With L = P + kT tokens in the
row, N parameters in the matrices of the layers, width H, D layers and a vocabulary of V, the formula is

    seconds = a * (4 N L + 4 V H k T) + b * D H L^2

4 N is a multiplication and an addition for each parameter, once forward and once backward, as frozen weights need no
gradient; the head runs at the responses only, and its gradient is computed with its result; attention grows with the
square of the row, as no part of the dense mask is skipped. The coefficients are fitted to the first and the third
point, and the others are predictions. `--larger` adds random models of other sizes, to see whether N and D predict
them. Each figure is the least of two passes after one that is not counted.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.training_cases import LORA
from retroformer.experiment.sections.train import Lora
from retroformer.models.embedded import base_model_folder
from train.base import add_fresh_adapter
from train.group_trainer import log_probs, trunk_of
from train.plan.shape import Shape, read_config, shape_of
from train.shared_prompt.group import Group
from train.shared_prompt.packed import pack
from train.shared_prompt.reading import hidden_states

LARGER = {"half the layers": {"num_hidden_layers": 15}, "twice the inner width": {"intermediate_size": 3072}}
"""Changes of the embedded model's config, by the name of the model."""
LARGER_POINT = "384,48,4"
FITTED = (0, 2)
"""Places of the points to which the coefficients are fitted."""


class Point(NamedTuple):
    """Lengths of a prompt and of each response, in tokens, and the number of responses."""

    prompt: int
    response: int
    responses: int

    @classmethod
    def read(cls, text: str) -> "Point":
        """Read `P,T,k`."""
        return cls(*map(int, text.split(",")))

    @property
    def length(self) -> int:
        """Tokens of the row."""
        return self.prompt + self.response * self.responses


class Work(NamedTuple):
    """The terms of the formula, in 10^9."""

    matrices: float
    attention: float


def work_of(point: Point, shape: Shape) -> Work:
    """Return the terms of a point for a model."""
    head = 4 * shape.vocabulary * shape.hidden * point.response * point.responses
    matrices = 4 * shape.matrix_parameters * point.length + head
    return Work(matrices / 1e9, shape.layers * shape.hidden * point.length**2 / 1e9)


def fitted(works: Sequence[Work], seconds: Sequence[float]) -> tuple[float, float]:
    """Return the coefficients a and b with which the formula gives these seconds for two points."""
    (first, second), (one, other) = works, seconds
    b = (other * first.matrices - one * second.matrices) / (
        second.attention * first.matrices - first.attention * second.matrices
    )
    return (one - b * first.attention) / first.matrices, b


def measured(model: Any, point: Point) -> float:
    """Return the CPU seconds of a forward and a backward pass."""
    words = model.config.vocab_size
    responses = torch.randint(3, words, (point.responses, point.response)).tolist()
    packed = pack([Group(torch.randint(3, words, (point.prompt,)).tolist(), responses)])
    seconds = []
    for _ in range(3):
        start = time.process_time()
        log_probs(model, hidden_states(trunk_of(model), packed), packed).sum().backward()
        seconds.append(time.process_time() - start)
    return min(seconds[1:])


def load(dtype: str, attention: str, changes: dict[str, int]) -> tuple[Any, Shape]:
    """Return the embedded model, or a random one with `changes` of its config, with an adapter."""
    folder = str(base_model_folder("embedded"))
    options = {"dtype": getattr(torch, dtype), "attn_implementation": attention}
    if changes:
        config = AutoConfig.from_pretrained(folder, **changes)
        base, shape = AutoModelForCausalLM.from_config(config, **options), shape_of(config)
    else:
        base, shape = AutoModelForCausalLM.from_pretrained(folder, **options), shape_of(read_config(folder))
    return add_fresh_adapter(base, Lora(**LORA)).train(), shape


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    points = ["128,24,4", "384,48,4", "1500,64,4", "384,48,1", "384,48,8"]
    parser.add_argument("--points", nargs="+", default=points, help="P,T,k; at least three")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--larger", action="store_true", help="measure models of other sizes, too")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    points = [Point.read(text) for text in chosen.points]
    model, shape = load(chosen.dtype, chosen.attention, {})
    seconds = []
    for point in points:
        seconds.append(measured(model, point))
        print(f"{point}: {seconds[-1]:.2f} CPU-s", flush=True)
    a, b = fitted([work_of(points[place], shape) for place in FITTED], [seconds[place] for place in FITTED])
    print(f"a = {a:.3g} s and b = {b:.3g} s for 10^9 of their terms ({chosen.dtype}, {chosen.attention})")
    print("| model | P | T | k | tokens | measured, CPU-s | formula |\n|---|---|---|---|---|---|---|")
    for point, second in zip(points, seconds, strict=True):
        print(_row("embedded", point, second, a, b, work_of(point, shape)))
    for name, changes in LARGER.items() if chosen.larger else ():
        other, other_shape = load(chosen.dtype, chosen.attention, changes)
        point = Point.read(LARGER_POINT)
        print(_row(name, point, measured(other, point), a, b, work_of(point, other_shape)), flush=True)


def _row(name: str, point: Point, seconds: float, a: float, b: float, work: Work) -> str:
    predicted = a * work.matrices + b * work.attention
    cells = (name, *point, point.length, f"{seconds:.2f}", f"{predicted:.2f}")
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
