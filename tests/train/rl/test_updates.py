"""Checkpoints of PPO when its updates end early."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from retroformer.errors import EndpointFailure, RetroformerError, ServiceError
from tests.train.rl.test_ppo import adapters, quick_settings
from tests.train.world import tiny_experiment
from train.base import load_base
from train.rl.alarms import Facts
from train.rl.policy import SharedBase
from train.rl.updates import make_optimizer, take_updates
from train.stage import make_stage

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
FACTS = {"score": 0.0, "kl": 0.0, "distinct_2": 1.0, "response_tokens": 4.0, "ended": 1.0, "entropy": 1.0}


@pytest.mark.parametrize(
    ("steps", "failure", "kept"),
    [
        (1, ServiceError("Another process has ended."), ["update-000001.pt"]),
        (50, ServiceError("Another process has ended."), []),
        (50, EndpointFailure("No server."), ["update-000001.pt"]),
    ],
)
def test_a_half_updated_policy_is_never_saved(
    tiny_base: Path, workplace: Path, steps: int, failure: RetroformerError, kept: list[str]
) -> None:
    """Another process ends in the middle of an update, but a server fails before an update begins."""
    train, sft, reward = adapters(workplace, tiny_base)
    experiment = tiny_experiment(
        workplace, tiny_base, ppo=quick_settings(updates=3).model_dump(), checkpoint_steps=steps
    )
    stage = make_stage("ppo", experiment, [], {})
    model = SharedBase(load_base(train), sft, reward)
    optimizer = make_optimizer(model, experiment.train.ppo)

    def pass_over_a_batch() -> None:
        for parameter in model.adapter_parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    def updates() -> Iterator[Facts]:
        pass_over_a_batch()
        yield dict(FACTS)
        if isinstance(failure, ServiceError):
            pass_over_a_batch()
        raise failure

    with pytest.raises(type(failure)):
        take_updates(stage, experiment.train.ppo, updates(), [], model, optimizer)
    checkpoints = sorted(stage.checkpoints.glob("update-*.pt"))
    assert [path.name for path in checkpoints] == kept
    for path in checkpoints:
        steps_taken = {int(state["step"]) for state in torch.load(path)["optimizer"]["state"].values()}
        assert steps_taken == {1}
