"""Speed and memory of full steps of each stage, beside the plan, and beside TRL's trainers where they are installed."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from benchmarks.gpu.models import ON_GPU, SHAPES, experiment, gib, synchronize
from benchmarks.gpu.report import Row
from train.base import read_config
from train.plan.estimate import USABLE_SHARE, case_of, estimate, memory_of
from train.plan.rehearsal import rehearse
from train.plan.shape import shape_of
from train.stage_kinds import STAGES, Device

RESPONSES = 4
"""Responses to the prompt that fills a micro-batch with them."""
RESPONSE = 128 if ON_GPU else 8


def step(out: Path, model: str, stage: str, tokens: str, trainer: str = "packed") -> Iterator[Row]:
    """Yield what two steps on random texts take; the second is timed, without the model's loading and the check.

    A micro-batch is one prompt with four responses, `tokens` tokens in all. TRL reads the prompt with each of them.
    """
    size = int(tokens) if ON_GPU else int(tokens) // 128
    words = [f"reflector.max_new_tokens={RESPONSE}", f"train.trainer={trainer}", f"train.micro_batch_tokens={size}"]
    words += [f"train.{name}.batch_size={RESPONSES}" for name in ("ppo", "grpo")]
    words += [f"train.grpo.group={RESPONSES}"]
    sample = size - (RESPONSES - 1) * RESPONSE
    settings = experiment(out, model, f"train.max_length={sample}", *words)
    device: Device = "cuda" if ON_GPU else "cpu"
    case = case_of(settings, STAGES[stage], shape_of(read_config(settings.train.base_model)), device, sample)
    planned = estimate(case).peak
    base = f"{model} {SHAPES[model].quantization}"
    row: Row = {"model": base, "stage": stage, "tokens": size, "planned GiB": gib(planned)}
    if planned > USABLE_SHARE[device] * memory_of(device):
        yield row | {"note": "does not fit, not tried"}
        return
    ends = list[float]()

    def note(*_: Any) -> None:
        synchronize()
        ends.append(time.perf_counter())

    with_hook = register_optimizer_step_post_hook(note)
    measured = rehearse(settings, case)
    with_hook.remove()
    seconds = ends[-1] - ends[-2]
    row |= {"measured GiB": gib(measured), "plan off": f"{planned / measured - 1:+.0%}", "seconds": round(seconds, 3)}
    yield row | {"packed tokens/s": round(size / seconds), "note": "" if trainer == "packed" else "by TRL's trainer"}
