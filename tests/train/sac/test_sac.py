"""Discrete SAC on a tiny model: what an update does to critics and actor, and which updates are made."""

import math
from pathlib import Path

import pytest
import torch

from retroformer.config.sections.train import Sac
from tests.train.world import tiny_experiment
from train.base import load_base
from train.sac.models import ActorCritic, log_policy
from train.sac.sac import ActorStep, PlayedEpisode, Replay, chosen_values, due, follow, make_optimizers, sac, update
from train.shared_prompt.packed import Group

PAD, GOOD = 0, 2
SETTINGS = Sac(learning_rate=3e-3)
STATE = Group([40, 41, 42], [[50, 51], [52, 53], [54, 55], [56, 57]])
LATER = Group([40, 41, 42, 43, 44], [[50, 51], [58, 59]])


@pytest.fixture
def model(tiny_base: Path, workplace: Path) -> ActorCritic:
    experiment = tiny_experiment(workplace, tiny_base)
    torch.manual_seed(0)
    return ActorCritic(load_base(experiment.train), experiment.train.lora, None)


def step(model: ActorCritic, action: int, reward: float = 0.0, over: bool = True, state: Group = STATE) -> ActorStep:
    return ActorStep(state, model.state_embedding(state.prompt), action, reward, over)


def policy(model: ActorCritic, state: Group = STATE) -> list[float]:
    with torch.no_grad():
        probabilities: list[float] = log_policy(*model.eval().action_log_probs([state]))[0].exp().tolist()
        return probabilities


@pytest.mark.slow
def test_the_actor_comes_to_choose_the_action_that_pays(model: ActorCritic) -> None:
    replay, optimizers = Replay(), make_optimizers(model, SETTINGS)
    for action in range(4):
        replay.add([step(model, action, reward=float(action == GOOD))])
    before = policy(model)
    for number in range(120):
        torch.manual_seed(number)
        facts = update(model, optimizers, replay.draw(8), 0.05, 0.995)
    assert before[GOOD] < 0.7
    assert policy(model)[GOOD] > 0.95
    with torch.no_grad():
        values_CB = chosen_values(model, [step(model, action) for action in range(4)])
    # The attempt is over after any action, so the value of an action is its reward.
    torch.testing.assert_close(values_CB, torch.eye(4)[GOOD].expand(2, 4), atol=0.1, rtol=0)
    assert facts.keys() == {"critic_loss", "policy_loss", "entropy", "q", "gradient_norm", "tokens"}
    assert facts["tokens"] == 8 * 2 * STATE.length


def test_a_high_entropy_coefficient_keeps_the_policy_spread(model: ActorCritic) -> None:
    replay, optimizers = Replay(), make_optimizers(model, SETTINGS)
    for action in range(4):
        replay.add([step(model, action, reward=float(action == GOOD))])
    for number in range(60):
        torch.manual_seed(number)
        update(model, optimizers, replay.draw(8), 2.0, 0.995)
    # The optimum is the softmax of the values over alpha: e^(1/2) / (e^(1/2) + 3) = 0.35 for the action that pays.
    best = math.exp(0.5) / (math.exp(0.5) + 3)
    assert policy(model)[GOOD] == pytest.approx(best, abs=0.1)


@pytest.mark.slow
def test_a_step_that_only_leads_on_is_worth_what_follows_it(
    model: ActorCritic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("train.sac.sac.GAMMA", 0.5)
    replay, optimizers = Replay(), make_optimizers(model, SETTINGS)
    replay.add([step(model, 1, over=False), step(model, 0, reward=1.0, state=LATER)])
    replay.add([step(model, 1, over=False), step(model, 1, reward=1.0, state=LATER)])
    for number in range(150):
        torch.manual_seed(number)
        update(model, optimizers, replay.draw(8), 0.0, 0.5)
    with torch.no_grad():
        first_CB = chosen_values(model, [step(model, 1, over=False)])
    # Both actions of the later state pay 1, so the first step is worth gamma times that.
    torch.testing.assert_close(first_CB, torch.full((2, 1), 0.5), atol=0.1, rtol=0)


def test_an_update_trains_the_adapter_and_the_critics_and_nothing_else(model: ActorCritic) -> None:
    replay, optimizers = Replay(), make_optimizers(model, SETTINGS)
    replay.add([step(model, 0, over=False), step(model, 1, reward=1.0, state=LATER)])
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    for _ in range(2):  # The first leaves A unchanged, as B is 0.
        update(model, optimizers, replay.draw(8), 0.05, 0.995)
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    assert changed == {
        name for name in before if ".policy." in name or name.startswith(("critics.", "target_critics."))
    }


def test_an_embedding_does_not_change_while_the_actor_learns(model: ActorCritic) -> None:
    replay, optimizers = Replay(), make_optimizers(model, SETTINGS)
    replay.add([step(model, 0, reward=1.0)])
    states_H, actions_BAH = model.state_embedding(STATE.prompt), model.action_embeddings([STATE, LATER])
    for _ in range(3):
        update(model, optimizers, replay.draw(8), 0.05, 0.995)
    model._action_embeddings.clear()
    assert torch.equal(model.state_embedding(STATE.prompt), states_H)
    assert torch.equal(model.action_embeddings([STATE, LATER]), actions_BAH)
    assert actions_BAH.shape == (2, 4, 32)
    assert not actions_BAH[1, 2:].any()


def test_targets_move_by_the_share_that_polyak_leaves(model: ActorCritic) -> None:
    for parameter in model.critics.parameters():
        parameter.data.fill_(1.0)
    for parameter in model.target_critics.parameters():
        parameter.data.fill_(0.0)
    follow(model, polyak=0.75)
    follow(model, polyak=0.75)
    # 0 -> 1/4 -> 3/4 * 1/4 + 1/4.
    assert {float(value) for parameter in model.target_critics.parameters() for value in parameter.unique()} == {0.4375}


@pytest.mark.parametrize(
    ("before", "after", "every", "updates"),
    [(0, 7, 1, 0), (7, 10, 1, 3), (10, 14, 1, 4), (10, 14, 5, 0), (14, 16, 5, 1), (10, 20, 5, 2)],
)
def test_an_update_is_due_for_every_so_many_steps_once_a_batch_was_played(
    before: int, after: int, every: int, updates: int
) -> None:
    assert len(due(before, after, every)) == updates


@pytest.mark.parametrize("episodes", [2, 6])
def test_the_training_ends_with_the_budget_of_episodes(model: ActorCritic, episodes: int) -> None:
    replay, played = Replay(), list[int]()

    def play(episode: int) -> PlayedEpisode:
        played.append(episode)
        return PlayedEpisode([step(model, 0, over=False), step(model, 1)], {"solved": 0.0})

    facts = list(sac(model, make_optimizers(model, SETTINGS), replay, play, episodes, seed=3))
    assert played == list(range(episodes))
    assert [each["env_steps"] for each in facts] == [2 * (number + 1) for number in range(episodes)]
    assert list(sac(model, make_optimizers(model, SETTINGS), replay, play, episodes, seed=3, done=episodes)) == []


def test_a_drawn_step_is_followed_by_the_next_of_its_attempt_only(model: ActorCritic) -> None:
    first, last, other = step(model, 0, over=False), step(model, 1), step(model, 2)
    replay = Replay()
    replay.add([first, last])
    replay.add([other])
    drawn = replay.draw(50)
    assert {(step.action, following.action) for step, following in zip(*drawn, strict=True)} == {(0, 1), (1, 1), (2, 2)}
    restored = Replay()
    restored.load_state_dict(replay.state_dict())
    assert str(restored.state_dict()) == str(replay.state_dict())
    restored.load_state_dict(Replay().state_dict())
    assert len(restored) == 0
    with pytest.raises(ValueError, match="must be over"):
        replay.add([first])
