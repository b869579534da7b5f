"""Gradients of every stage against finite differences of its loss, through the code that trains."""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks.gpu.piece import Bench, Piece
from retroformer.config.experiment import Experiment
from tests.train.world import save_tiny_model
from train.base import load_base
from train.data.samples import Sample, SamplePair
from train.dpo import dpo_trainer
from train.group_trainer import GroupTrainer
from train.imitation import Imitation, adapted
from train.plan.rehearsal import fresh_adapter
from train.reward import Ranking, scorer
from train.rl import grpo, ppo
from train.rl.policy import SharedBase
from train.rl.ppo import VALUE_WEIGHT
from train.rl.rewards import UNSCALED
from train.rl.sampling import SamplingSettings, respond
from train.shared_prompt.packed import Groups
from train.stage import Stage

TITLE = "Gradients"
COLUMNS = ("slope by the gradient", "by finite differences", "difference")
NOTE = (
    "A model of two layers in float32. The loss of a batch is computed at the weights plus and minus a small step in a "
    "random direction of the adapter's weights, and its change is compared with the gradient's."
)
_STEP, _MOST = 1e-2, 0.03
_STAGES = ("sft", "reward", "dpo", "ppo", "grpo")


class _Loss(NamedTuple):
    parameters: list[nn.Parameter]
    value: Callable[[], float]
    """Compute the loss, and add to the gradients."""
    scale: Callable[[], float] = lambda: 1.0
    """Factor by which the gradients were clipped, as its inverse."""


def pieces(bench: Bench) -> Iterator[Piece]:
    for quantization in ("none", "nf4"):
        for stage in _STAGES:
            yield Piece(f"gradients/{stage}, base {quantization}", partial(_work, bench, stage, quantization))


def _work(bench: Bench, name: str, quantization: str) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory() as folder:
        base = save_tiny_model(Path(folder) / "base", hidden=64)
        experiment = bench.experiment(
            base,
            f"train.quantization={quantization}",
            "train.dtype=float32",
            "train.max_length=256",
            "reflector.max_new_tokens=8",
        )
        loss = (_on_policy if name in ("ppo", "grpo") else _supervised)(experiment, name, Path(folder))
        return _compare(loss)


def _compare(loss: _Loss) -> tuple[str, ...]:
    loss.value()
    gradients = [parameter.grad.clone() * loss.scale() for parameter in loss.parameters if parameter.grad is not None]
    assert len(gradients) == len(loss.parameters), "a weight of the adapter has no gradient"
    torch.manual_seed(1)
    # Along the gradient the slope is large enough to be measured; the random part finds what the gradient lacks.
    random = _unit([torch.randn_like(parameter) for parameter in loss.parameters])
    directions = _unit([along + other for along, other in zip(_unit(gradients), random, strict=True)])
    by_gradient = float(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))

    def move(by: float) -> float:
        with torch.no_grad():
            for parameter, direction in zip(loss.parameters, directions, strict=True):
                parameter.add_(direction, alpha=by)
        return loss.value()

    ahead = move(_STEP)
    behind = move(-2 * _STEP)
    by_difference = (ahead - behind) / (2 * _STEP)
    off = abs(by_gradient - by_difference) / max(abs(by_gradient), abs(by_difference))
    if not off <= _MOST:
        raise AssertionError(f"the gradient says {by_gradient:.5f}, finite differences say {by_difference:.5f}")
    return f"{by_gradient:.5f}", f"{by_difference:.5f}", f"{off:.2%}"


def _unit(vectors: list[torch.Tensor]) -> list[torch.Tensor]:
    length = float(sum(vector.square().sum() for vector in vectors)) ** 0.5
    return [vector / length for vector in vectors]


def _supervised(experiment: Experiment, name: str, folder: Path) -> _Loss:
    train = experiment.train
    rows: list[Any] = []
    for number in range(4):
        first, second = (Sample([5 + number, 9, 30, 31], [40 + number, 7 + answer, 2]) for answer in (0, 20))
        rows += [first, second] if name == "sft" else [SamplePair(first, second)]
    # A fresh adapter's B weights are 0, and then half of its gradients are, too.
    start = fresh_adapter(experiment, folder / "start")
    stage, groups = Stage(name, experiment, {}), Groups(rows, 1000)
    if name == "reward":
        trainer = GroupTrainer(stage, scorer(train, start), groups, Ranking(train.pair_weight))
    elif name == "dpo":
        trainer = dpo_trainer(stage, start, groups)
    else:
        trainer = GroupTrainer(stage, adapted(train, start), groups, Imitation())
    parameters = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
    _move(parameters)
    return _Loss(parameters, lambda: float(trainer.training_step(trainer.model, {"batch": 0})))


def _on_policy(experiment: Experiment, name: str, folder: Path) -> _Loss:
    reward = fresh_adapter(experiment, folder / "reward", scores=True)
    model = SharedBase(load_base(experiment.train), fresh_adapter(experiment, folder / "sft"), reward)
    _move(model.adapter_parameters())
    draw = SamplingSettings(max_new_tokens=8, at_once=32, pad_id=0, ends=(2,), seed=0, micro_batch_tokens=1000)
    torch.manual_seed(0)
    responses = respond(model, [ids for ids in ([5, 9, 30], [6, 9, 31]) for _ in range(4)], draw)
    clipped = [1.0]
    if name == "ppo":
        settings = experiment.train.ppo
        batch = ppo.evaluate(model, responses, settings, draw, UNSCALED)
        optimizer = ppo.make_optimizer(model, settings)

        def value() -> float:
            facts = ppo.accumulate_gradients(model, optimizer, batch)
            clipped[0] = max(1.0, facts["gradient_norm"])
            return facts["policy_loss"] + VALUE_WEIGHT * facts["value_loss"]
    else:
        chosen = experiment.train.grpo.model_copy(update={"group": 4, "kl": 0.04})
        group_batch = grpo.compare(model, responses, torch.tensor([0.0, 1.0, 0.0, 1.0] * 2), chosen, draw)
        optimizer = grpo.make_optimizer(model, chosen)

        def value() -> float:
            facts = grpo.accumulate_gradients(model, optimizer, group_batch, chosen)
            clipped[0] = max(1.0, facts["gradient_norm"])
            return facts["policy_loss"] + facts["kl_loss"]

    return _Loss(model.adapter_parameters(), value, lambda: clipped[0])


def _move(parameters: list[nn.Parameter]) -> None:
    """Move an adapter away from its start, where the policy is its reference and many gradients are nearly 0."""
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
