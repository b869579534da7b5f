"""What is kept of a policy when its updates end early."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from retroformer.errors import EndpointFailure, RetroformerError, ServiceError
from tests.train.test_ppo import adapters, settings
from tests.train.world import experiment
from train.alarms import Facts
from train.base import load_base
from train.ppo import make_optimizer
from train.shared_base import SharedBase
from train.stage import make_stage
from train.updates import take_updates

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
def test_a_policy_between_two_updates_is_never_kept_as_that_of_one(
    tiny_base: Path, workplace: Path, steps: int, failure: RetroformerError, kept: list[str]
) -> None:
    """A process ends in the middle of an update, when passes over its batch have been taken; a server before it."""
    page, sft, reward = adapters(workplace, tiny_base)
    made = experiment(workplace, tiny_base, ppo=settings(updates=3).model_dump(), checkpoint_steps=steps)
    stage = make_stage("ppo", made, made.train.ppo, [], {})
    model = SharedBase(load_base(page), sft, reward)
    optimizer = make_optimizer(model, made.train.ppo)

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
        take_updates(stage, made.train.ppo, updates(), [], model, optimizer)
    found = sorted(stage.checkpoints.glob("update-*.pt"))
    assert [path.name for path in found] == kept
    for path in found:
        steps_taken = {int(one["step"]) for one in torch.load(path)["optimizer"]["state"].values()}
        assert steps_taken == {1}
