"""The graded return of WebShop is the reward of the purchase, as played and stored."""

import pytest

from retroformer.environments.webshop import extras
from retroformer.environments.webshop.environment import Webshop
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from tests.support.webshop import SHARED, index_of_the_data, make, recorded, visit


def test_recorded_purchases_have_their_graded_reward(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    shaped, world = extras.returns["shaped"](Webshop(), 0), make(SHARED).environment()
    rewards = list[float]()
    for episode in recorded("golden_episodes_react.jsonl.xz")[:40]:
        actions = [step["action"] for step in episode["steps"][1:]]
        seen = visit(world, episode["goal_idx"], *actions)
        steps = tuple(
            Step(action=action, observation=answer.observation, reward=answer.reward)
            for action, answer in zip(actions, seen[1:], strict=True)
        )
        attempt = Trajectory(
            task=Task(id=str(episode["goal_idx"]), environment="webshop", split="all"),
            opening=seen[0].observation,
            steps=steps,
            outcome=Outcome.SUCCESS if seen[-1].success else Outcome.FAILURE,
            ending=Ending.SOLVED if seen[-1].success else Ending.TERMINATED,
        )
        assert shaped(attempt) == pytest.approx(sum(step["reward"] for step in episode["steps"]), abs=1e-9)
        assert (shaped(attempt) == 1.0) == seen[-1].success
        rewards.append(shaped(attempt))
    assert any(0 < reward < 1 for reward in rewards)
