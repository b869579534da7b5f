"""Memory of one full step of each stage at several lengths, on the shapes of real models, against the plan."""

import time
from collections.abc import Iterator

from benchmarks.gpu.models import SHAPES, random_model
from benchmarks.gpu.piece import Bench, Piece
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
_STAGES = ("sft", "reward", "ppo", "dpo", "grpo")


def pieces(bench: Bench) -> Iterator[Piece]:
    """Yield a piece for each model, stage and length."""
    for model in SHAPES:
        for tokens in (2048, 4096, 8192, 16384) if bench.on_gpu else (64, 128):
            for stage in _STAGES:
                yield Piece(f"steps/{model} {stage} {tokens}", lambda of=(model, stage, tokens): _work(bench, *of))


def _work(bench: Bench, model: str, stage: str, tokens: int) -> tuple[str, ...]:
    # On a CPU, small enough to check the kit.
    small = ("reflector.max_new_tokens=16", f"train.micro_batch_tokens={2 * tokens}")
    words = ("reflector.max_new_tokens=128",) if bench.on_gpu else small
    experiment = bench.experiment(
        random_model(bench, model), f"train.max_length={tokens}", "train.dtype=bfloat16", *words
    )
    device = "cuda" if bench.on_gpu else "cpu"
    case = case_of(experiment, STAGES[stage], shape_of(read_config(experiment.train.base_model)), device, tokens)
    planned = estimate(case).peak
    if planned > USABLE_SHARE[device] * memory_of(device):
        return _gib(planned), "does not fit, not tried"
    began = time.monotonic()
    used = rehearse(experiment, case)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return _gib(planned), _gib(used), f"{planned / used - 1:+.1%}"


def _gib(size: float) -> str:
    return f"{size / 2**30:.3f}" if size < 2**30 else f"{size / 2**30:.2f}"
