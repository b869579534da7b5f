"""Gradients of every stage against finite differences of its loss, through the code that trains.

The model has two layers in float32. The loss of a batch is computed at the weights plus and minus a small step in a
random direction of the adapter's weights, and its change is compared with the gradient's.
"""

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.nn.functional import normalize
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from benchmarks.gpu.models import experiment
from benchmarks.gpu.report import Row
from retroformer.config.experiment import Experiment
from train.base import load_base, trainable
from train.data.samples import Sample, SamplePair
from train.plan.rehearsal import fresh_adapter, supervised_trainer
from train.rl import grpo, ppo
from train.rl.policy import SharedBase, make_optimizer
from train.rl.ppo import VALUE_WEIGHT
from train.rl.rewards import UNSCALED
from train.rl.sampling import SamplingSettings, respond
from train.shared_prompt.packed import Groups
from train.shared_prompt.reading import trunk_of
from train.stage import Stage

_STAGES = ("sft", "reward", "dpo", "ppo", "grpo")
_STEP, _MOST = 1e-2, 0.03
DENSE = "sdpa"
"""transformers' attention with a mask for all tokens."""


Loss = tuple[list[nn.Parameter], Callable[[], tuple[float, float]]]
"""Parameters, and a function that adds to their gradients, and returns the loss and the norm at which these are cut."""


def compare(out: Path, attention: str) -> Iterator[Row]:
    """Yield the slopes of all losses by both ways, with and without quantisation, and fail where they differ."""
    for stage, quantization in product(_STAGES, ("none", "nf4")):
        words = [f"train.quantization={quantization}", "train.dtype=float32", "train.max_length=256"]
        words += ["reflector.max_new_tokens=8", f"train.attention={'flex' if attention == 'flex' else 'split'}"]
        with TemporaryDirectory() as folder:
            build = _on_policy if stage in ("ppo", "grpo") else _supervised
            loss = build(experiment(out, "tiny", *words), stage, Path(folder), dense=attention == "dense")
            row: Row = {"attention": attention, "stage": stage, "base": quantization}
            yield row | _compare(loss)


def _compare(loss: Loss) -> Row:
    parameters, evaluate = loss
    _, cut_at = evaluate()
    slopes = torch.cat([parameter.grad.flatten() for parameter in parameters if parameter.grad is not None]) * cut_at
    start = parameters_to_vector(parameters).detach()
    assert len(slopes) == len(start), "a weight of the adapter has no gradient"
    torch.manual_seed(1)
    # Along the gradient the slope is large enough to be measured; the random part finds what the gradient lacks.
    direction = normalize(normalize(slopes, dim=0) + normalize(torch.randn_like(slopes), dim=0), dim=0)

    def loss_at(distance: float) -> float:
        vector_to_parameters(start + distance * direction, parameters)
        return evaluate()[0]

    by_gradient, by_difference = float(slopes @ direction), (loss_at(_STEP) - loss_at(-_STEP)) / (2 * _STEP)
    off = abs(by_gradient - by_difference) / max(abs(by_gradient), abs(by_difference))
    if not off <= _MOST:
        raise AssertionError(f"the gradient says {by_gradient:.5f}, finite differences say {by_difference:.5f}")
    return {"gradient": round(by_gradient, 5), "differences": round(by_difference, 5), "off": f"{off:.2%}"}


def _supervised(experiment: Experiment, name: str, folder: Path, *, dense: bool) -> Loss:
    rows: list[Any] = []
    for number in range(4):
        prompt, first, second = [5 + number, 9, 30, 31], [40 + number, 7, 2], [40 + number, 27, 2]
        texts = [Sample(prompt, first), Sample(prompt, second)]
        rows += texts if name == "sft" else [SamplePair(prompt, first, second)]
    # A fresh adapter's B weights are 0, and then half of its gradients are, too.
    start = fresh_adapter(experiment, folder / "start")
    trainer = supervised_trainer(Stage(name, experiment, {}), start, Groups(rows, 1000))
    if dense:
        trunk_of(trainer.model).config._attn_implementation = DENSE
    parameters = trainable(trainer.model)
    _move(parameters)
    return parameters, lambda: (float(trainer.training_step(trainer.model, {"batch": 0})), 1.0)


def _on_policy(experiment: Experiment, name: str, folder: Path, *, dense: bool) -> Loss:
    reward = fresh_adapter(experiment, folder / "reward", scores=True)
    model = SharedBase(load_base(experiment.train), fresh_adapter(experiment, folder / "sft"), reward)
    if dense:
        trunk_of(model.language_model).config._attn_implementation = DENSE
    _move(model.adapter_parameters())
    draw = SamplingSettings(max_new_tokens=8, at_once=32, pad_id=0, ends=(2,), seed=0, micro_batch_tokens=1000)
    torch.manual_seed(0)
    responses = respond(model, [ids for ids in ([5, 9, 30], [6, 9, 31]) for _ in range(4)], draw)
    settings, group = experiment.train.ppo, experiment.train.grpo.model_copy(update={"group": 4, "kl": 0.04})
    optimizer = make_optimizer(model, settings)
    if name == "ppo":
        batch = ppo.evaluate(model, responses, settings, draw, UNSCALED)
    else:
        compared = grpo.compare(model, responses, torch.tensor([0.0, 1.0] * 4), group, draw)

    def evaluate() -> tuple[float, float]:
        if name == "ppo":
            facts = ppo.accumulate_gradients(model, optimizer, batch)
            loss = facts["policy_loss"] + VALUE_WEIGHT * facts["value_loss"]
        else:
            facts = grpo.accumulate_gradients(model, optimizer, compared, group)
            loss = facts["policy_loss"] + facts["kl_loss"]
        return loss, max(1.0, facts["gradient_norm"])

    return model.adapter_parameters(), evaluate


def _move(parameters: list[nn.Parameter]) -> None:
    """Move an adapter away from its start, where the policy is its reference and many gradients are nearly 0."""
    torch.manual_seed(2)
    start = parameters_to_vector(parameters).detach()
    vector_to_parameters(start + 0.05 * torch.randn_like(start), parameters)
