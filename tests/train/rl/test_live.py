"""Live returns on riddles, with an actor that answers Lyon until it is advised to say Paris."""

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.sections.base import ActorSection, Loop
from retroformer.endpoint.secrets.redaction import keep_secret
from retroformer.errors import InfrastructureFailure
from retroformer.method.protocols import Agent
from retroformer.method.records import Key, Lesson, Memory, Reflection, Usage
from retroformer.run.arm_names import LIVE
from retroformer.run.attempts import Budget, Experience
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store, open_store
from tests.support.characters import CAPITAL, ActorThatNeedsAdvice, School, attempt_at
from tests.support.facts import add_trajectory
from tests.train.rl.test_ppo import END, PAD
from tests.train.world import AUTHOR, prompt, tiny_experiment
from train.base import load_tokenizer
from train.data.failures import Failure, stored_failures
from train.rl.live import LiveReturns, conditions_of_play, conditions_of_returns
from train.rl.sampling import Responses, SamplingSettings, ended_responses


def said(experiment: Any, *texts: str) -> Responses:
    """Return responses with these texts."""
    tokenizer = load_tokenizer(experiment.train)
    ids = [[*tokenizer(text, add_special_tokens=False).input_ids, END] for text in texts]
    width = max(map(len, ids))
    drawn_BT = torch.tensor([row + [PAD] * (width - len(row)) for row in ids])
    return ended_responses([[5]] * len(texts), drawn_BT, SamplingSettings(0, 1, PAD, (END,), 0))


FAILURE = Failure(attempt_at(CAPITAL), Memory(), trial=1, accepted=0, prompt=prompt("capital"))
AGAIN = FAILURE._replace(trial=2, memory=Memory(reflections=("Say Paris.",)))
OF_ANOTHER_ARM = FAILURE._replace(attempt=attempt_at(CAPITAL, (0.5,)), prompt=prompt("half right"))


class Riddles:
    """Rates reflections on riddles; a new object on the same store behaves as after a kill."""

    def __init__(self, folder: Path, base: Path, **changes: Any) -> None:
        self.experiment = tiny_experiment(folder, base).model_copy(update=changes)
        self.store: Store = open_store(self.experiment)
        self.runner = asyncio.Runner()

    def returns(self, school: School) -> LiveReturns:
        """Return what rates reflections by play in this school."""
        pool: Any = school
        experience = Experience(
            Ledger(self.store),
            LIVE,
            pool,
            Agent(ActorThatNeedsAdvice(), NoReflector()),
            self.experiment.loop,
            0,
            Budget(self.experiment.collect, Usage),
            slots=asyncio.Semaphore(1),
        )
        failures = [FAILURE, AGAIN, OF_ANOTHER_ARM]
        return LiveReturns(self.experiment, self.store, experience, self.runner, failures)

    def rate(
        self,
        school: School,
        *texts: str,
        update: int = 0,
        asked: Sequence[int] = (),
    ) -> list[float]:
        """Rate reflections."""
        return self.returns(school)(update, asked or [0] * len(texts), said(self.experiment, *texts)).tolist()


@pytest.fixture
def riddles(tiny_base: Path, workplace: Path) -> Iterator[Callable[..., Riddles]]:
    opened: list[Riddles] = []

    def make(**changes: Any) -> Riddles:
        opened.append(Riddles(workplace, tiny_base, **changes))
        return opened[-1]

    yield make
    for played in opened:
        played.store.close()
        played.runner.close()


def test_the_reward_is_the_gain_of_the_retry_and_a_text_is_tried_once(riddles: Callable[..., Riddles]) -> None:
    world, school = riddles(), School()
    assert world.rate(school, "Say Paris.", "Say Rome.", " Say Paris.") == [1.0, 0.0, 1.0]
    assert school.opened == 2
    killed = School()
    assert world.rate(killed, "Say Rome.", "Say Oslo.", "Say Paris.", update=1) == [0.0, 0.0, 1.0]
    assert killed.opened == 1, "what was paid for is played again"
    kept = {stored.reflection.text: stored.key for stored in world.store.stream_reflections(LIVE)}
    assert {text: key.candidate for text, key in kept.items()} == {"Say Paris.": 0, "Say Rome.": 1, "Say Oslo.": 2}
    assert {key for key, _ in world.store.stream_trajectories(LIVE)} == set(kept.values())
    assert kept["Say Rome."] == Key(arm=LIVE, task_id=CAPITAL.id, trial=1, candidate=1)


def test_the_actor_keeps_its_memory_of_the_failed_attempt(riddles: Callable[..., Riddles]) -> None:
    assert riddles().rate(School(), "Hm.", "Hm.", asked=[0, 1]) == [0.0, 1.0]
    forgets = riddles(loop=Loop(memory=1), run="forgets")
    assert forgets.rate(School(), "Hm.", asked=[1]) == [0.0]


def test_a_retry_that_the_infrastructure_fails_has_no_reward(
    riddles: Callable[..., Riddles],
) -> None:
    patient, hasty = riddles(loop=Loop(retries=2)), riddles(loop=Loop(retries=0), run="hasty")
    assert patient.rate(School(broken=2), "Say Paris.", "Say Rome.") == [1.0, 0.0]
    rewards = hasty.rate(School(broken=1), "Say Paris.", "Say Rome.", "Say Paris.")
    assert [math.isnan(reward) for reward in rewards] == [True, False, True]
    assert hasty.rate(School(), "Say Paris.") == [1.0], "a spoiled attempt keeps its key"
    with pytest.raises(InfrastructureFailure, match=r"None of the 2 reflections of update 4 could be .*closed"):
        hasty.rate(School(broken=9), "Say Nice.", "Say Lille.", update=3)


def test_a_text_with_a_secret_is_found_as_the_store_keeps_it(riddles: Callable[..., Riddles]) -> None:
    keep_secret("sk-of-this-very-test")
    world, school = riddles(), School()
    assert world.rate(school, "Say Paris with sk-of-this-very-test.", "Say Paris with ***.") == [1.0, 1.0]
    assert school.opened == 1
    assert [stored.reflection.text for stored in world.store.stream_reflections(LIVE)] == ["Say Paris with ***."]
    live = world.returns(school)
    secret = FAILURE._replace(prompt=prompt("sk-of-this-very-test"))
    assert [live._number(secret, text) for text in ("Say Paris.", "Say Rome.", "Say Paris.")] == [1, 2, 1]


def test_an_actor_that_samples_retries_in_every_update(riddles: Callable[..., Riddles]) -> None:
    actor = ActorSection(kind="react", temperature=0.7)
    world, school = riddles(actor=actor), School()
    for update in (0, 1, 1):
        assert world.rate(school, "Say Paris.", "Say Paris.", update=update) == [1.0, 1.0]
    assert school.opened == 2
    assert [key.repeat for key, _ in world.store.stream_trajectories(LIVE)] == [0, 1]


def test_a_text_is_tried_anew_on_a_failure_of_another_arm(riddles: Callable[..., Riddles]) -> None:
    world, school = riddles(), School()
    assert world.rate(school, "Say Paris.", "Say Paris.", asked=[0, 2]) == [1.0, 0.5]
    assert school.opened == 2
    resumed = School()
    assert world.rate(resumed, "Say Paris.", "Say Paris.", asked=[2, 0]) == [0.5, 1.0]
    assert resumed.opened == 0


def test_two_trainings_on_one_store_do_not_take_each_others_retries(riddles: Callable[..., Riddles]) -> None:
    world, school, other = riddles(), School(), School()
    both, said_paris = (world.returns(school), world.returns(other)), said(world.experiment, "Say Paris.")
    assert [returns(0, [failure], said_paris).item() for returns, failure in zip(both, (0, 2), strict=True)] == [1, 0.5]
    assert [(kept.key.candidate, kept.reflection.prompt) for kept in world.store.stream_reflections(LIVE)] == [
        (0, FAILURE.prompt),
        (1, OF_ANOTHER_ARM.prompt),
    ]
    assert other.opened == 1


def test_the_actor_reads_words_without_special_tokens_up_to_a_stop(riddles: Callable[..., Riddles]) -> None:
    reflector = riddles().experiment.reflector.model_copy(update={"stop": ("\n",)})
    world = riddles(reflector=reflector, run="stops")
    assert world.rate(School(), "Say Rome.\nNo, Paris.") == [0.0]
    assert [stored.reflection.text for stored in world.store.stream_reflections(LIVE)] == ["Say Rome."]


def test_stop_words_are_a_condition_of_returns_and_not_of_rollouts(tiny_base: Path, workplace: Path) -> None:
    plain = tiny_experiment(workplace, tiny_base)
    cut = plain.model_copy(update={"reflector": plain.reflector.model_copy(update={"stop": ("\n",)})})
    assert conditions_of_play(cut) == conditions_of_play(plain) == conditions_of_returns(plain)
    assert conditions_of_returns(cut) == conditions_of_play(plain) | {"stop": ("\n",)}


def test_a_failure_is_read_with_the_memory_of_its_attempt(tiny_base: Path, workplace: Path) -> None:
    store = open_store(tiny_experiment(workplace, tiny_base))
    first = attempt_at(CAPITAL)
    add_trajectory(store, Key(arm="collect", task_id="capital"), first)
    for trial, candidate, accepted in ((1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1)):
        key = Key(arm="collect", task_id="capital", trial=trial, candidate=candidate)
        text = f"advice {trial} {candidate}"
        store.add_reflection(key, accepted, Reflection(text=text, prompt=prompt(f"trial {trial}"), author=AUTHOR))
        add_trajectory(store, key, attempt_at(CAPITAL, (0.1 * trial, 0.01 * candidate)))
    earlier, later = stored_failures(store, ["collect", "collect 2"], Loop())
    store.close()
    assert earlier == Failure(first, Memory(), 1, 0, prompt("trial 1"))
    memory = Memory(reflections=("advice 1 1",), earlier=(Lesson(attempt=first, advice="advice 1 1"),))
    assert later == Failure(attempt_at(CAPITAL, (0.1, 0.01)), memory, 2, 1, prompt("trial 2"))
    assert earlier.advised("New.", Loop(last_attempt=True)).last_trajectory == first
    assert later.advised("New.", Loop(memory=2)).reflections == ("advice 1 1", "New.")


def test_failures_that_look_the_same_to_the_reflector_are_trained_on_once(tiny_base: Path, workplace: Path) -> None:
    store = open_store(tiny_experiment(workplace, tiny_base))
    add_trajectory(store, Key(arm="collect", task_id="capital"), attempt_at(CAPITAL))
    for candidate in range(3):
        retried = Key(arm="collect", task_id="capital", trial=1, candidate=candidate)
        again = Key(arm="collect", task_id="capital", trial=2, candidate=candidate)
        looks = "the same" if candidate < 2 else "different"
        for key, previous, shown in ((retried, 0, "first"), (again, candidate, looks)):
            advice = Reflection(text=f"advice {candidate}", prompt=prompt(shown), author=AUTHOR)
            store.add_reflection(key, previous, advice)
            add_trajectory(store, key, attempt_at(CAPITAL))
    failures = stored_failures(store, ["collect"], Loop())
    store.close()
    assert [(failure.trial, failure.accepted) for failure in failures] == [(1, 0), (2, 0), (2, 2)]
