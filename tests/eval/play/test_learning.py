"""Arms that learn from their retrieved advice: the rule worked by hand, and whole evaluations however interrupted."""

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from eval.play.order import play_and_learn, retrieval_gains
from eval.report.report import compare_arms
from retroformer.agents.arms.retrieved import (
    TASKS_AT_ONCE,
    RatedAdvice,
    RetrievalGain,
    RetrievingReflector,
    load_rated_advice,
)
from retroformer.config.file import Config
from retroformer.config.parts import chosen_tasks
from retroformer.config.sections.base import Loop
from retroformer.config.sections.eval import Eval
from retroformer.errors import ConfigError
from retroformer.method.protocols import Agent
from retroformer.method.records import Key, Memory, Outcome, Task, Usage
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.attempts import Budget, Experience
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store, open_store
from tests.support.characters import ActorThatNeedsAdvice, School, advice, attempt_at, task
from tests.support.endpoint import Endpoint
from tests.support.facts import add_trajectory
from tests.support.killing import finish, run_and_kill
from tests.support.runs import HOUSEHOLD, facts, open_config, stored, write_config

ARM, QUESTION = "eval/learning", "What is the capital of France?"
LEARNING, RECALLED = "eval/learning", "eval/recalled"
ARMS = {
    "nothing": {"kind": "none"},
    "recalled": {"kind": "retrieved"},
    "learning": {"kind": "retrieved", "learns": True},
    "placebo": {"kind": "placebo", "of": "learning"},
}


def piece(text: str, rating: float) -> RatedAdvice:
    return RatedAdvice(text=text, opening=QUESTION, source=f"school/collect/{text}", task_id="old", rating=rating)


def play(folder: Path, tasks: Sequence[Task], school: School, concurrency: int = 4) -> tuple[list[str], set[str]]:
    """Play riddles whose actor needs the advice to say Paris; return what was retrieved, and the unfinished tasks."""

    async def run(store: Store) -> set[str]:
        with closing(Ledger(store)) as ledger:
            reflector = RetrievingReflector([piece("Say Lyon.", 0.5), piece("Say Paris.", 0.0)])
            agent = Agent(ActorThatNeedsAdvice(), reflector)
            budget, slots = Budget(Eval(), Usage), asyncio.Semaphore(concurrency)
            loop = Loop(trials=2, retries=0, concurrency=concurrency)
            experience = Experience(
                ledger, ARM, school, agent, loop, 0, budget, slots=slots, first_trial_arm=FIRST_TRIAL
            )
            await play_and_learn(ledger, [(experience, reflector)], tasks, concurrency)
            return experience.unfinished

    with closing(Store(f"sqlite:///{folder / 'experience.db'}", "riddles")) as store:
        unfinished = asyncio.run(run(store))
        given = {stored.key.task_id: stored.reflection.text for stored in store.stream_reflections(ARM)}
    return [given[task.id] for task in tasks if task.id in given], unfinished


TASKS = [task(f"riddle {number:02}") for number in range(25)]
WORKED = ["Say Lyon."] * 10 + ["Say Paris."] * 15


def test_a_chunk_of_tasks_learns_from_the_chunks_before_it(tmp_path: Path) -> None:
    """Lyon has .5 + .3 sqrt(2 ln 2) = .85 and Paris .35 at first; after ten gains of 0, .045 + .20 and .67."""
    assert play(tmp_path, TASKS, School()) == (WORKED, set())


@pytest.mark.parametrize(
    "concurrency", [pytest.param(1, marks=pytest.mark.slow), 3, pytest.param(16, marks=pytest.mark.slow)]
)
def test_neither_concurrency_nor_a_second_run_changes_a_choice(tmp_path: Path, concurrency: int) -> None:
    assert play(tmp_path, TASKS, School(), concurrency) == (WORKED, set())
    school = School()
    assert play(tmp_path, TASKS, school, concurrency) == (WORKED, set())
    assert school.opened == 0


@pytest.mark.slow
def test_more_tasks_go_on_from_what_was_learned(tmp_path: Path) -> None:
    assert play(tmp_path, TASKS[:14], School()) == (WORKED[:14], set())
    assert play(tmp_path, TASKS, School()) == (WORKED, set())


@pytest.mark.slow
def test_an_unfinished_task_leaves_the_later_chunks_for_the_next_run(tmp_path: Path) -> None:
    given, unfinished = play(tmp_path, TASKS, School(broken=1), concurrency=1)
    # Trial 0 of the first task could not be opened; the other nine of its chunk were played.
    assert given == WORKED[1:10]
    assert unfinished == {TASKS[0].id, *(task.id for task in TASKS[TASKS_AT_ONCE:])}
    assert play(tmp_path, TASKS, School()) == (WORKED, set())


def test_the_gain_of_a_retry_goes_to_the_advice_retrieved_for_it(tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")) as store:
        add_trajectory(store, Key(arm=FIRST_TRIAL, task_id="a"), attempt_at(task("a"), (0.25,)))
        for trial, text, returned in ((1, "Say Lyon.", 0.0), (2, "", 0.5), (3, "Say Paris.", 1.0), (4, "Lost.", None)):
            store.add_reflection(Key(arm=ARM, task_id="a", trial=trial), 0, advice(text))
            if returned is not None:
                add_trajectory(store, Key(arm=ARM, task_id="a", trial=trial), attempt_at(task("a"), (returned,)))
        store.add_reflection(Key(arm="eval/other", task_id="a", trial=1), 0, advice("Of another arm."))
        assert retrieval_gains(store, ARM, FIRST_TRIAL, ["a"]) == [
            RetrievalGain("Say Lyon.", -0.25),
            RetrievalGain("Say Paris.", 0.5),
        ]
        assert retrieval_gains(store, ARM, FIRST_TRIAL, ["b"]) == []


def collected(folder: Path, *overrides: str) -> Config:
    """Return the config of the household games with these arms, after collecting advice that names places."""
    places = iter(f"Look in {place} 1." for _ in range(100) for place in ("cabinet", "fridge", "drawer", "shelf"))
    with Endpoint(lambda body: next(places)) as server:
        content = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": ARMS}}
        path = write_config(folder, server.url, content)
        config = open_config(path, "collect.tasks=8", "loop.concurrency=1", "loop.trials=3", *overrides)
        asyncio.run(rate_reflections(config))
    return config


def evaluated(config: Config, *overrides: str) -> Config:
    again = open_config(config.path, *config.overrides, *overrides)
    asyncio.run(compare_arms(again))
    return again


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_an_evaluation_makes_the_choices_of_the_rule_and_leaves_the_training_data_alone(tmp_path: Path) -> None:
    config = collected(tmp_path)
    with closing(open_store(config.experiment)) as store:
        before = load_rated_advice(store)
    # A placebo is bound to its tasks, so it comes with all of them.
    learners = {name: arm for name, arm in ARMS.items() if name != "placebo"}
    evaluated(config, "eval.tasks=12", "loop.concurrency=7", f"eval.arms={json.dumps(learners)}")
    config = evaluated(config, "eval.tasks=32", "loop.concurrency=5")
    tasks = chosen_tasks(config.experiment, 32, ("held_out",))
    with closing(open_store(config.experiment)) as store:
        assert load_rated_advice(store) == before
        first, retries = dict(store.stream_trajectories(FIRST_TRIAL)), dict(store.stream_trajectories(LEARNING))
        given = {(row.key.task_id, row.key.trial): row.reflection.text for row in store.stream_reflections(LEARNING)}
        bound, without = store.conditions(LEARNING), store.conditions(RECALLED)
    returns = {(key.task_id, key.trial): attempt.episode_return for key, attempt in (*first.items(), *retries.items())}
    reflector, checked = RetrievingReflector(before), 0
    for start in range(0, 32, 10):
        chunk = tasks[start : start + 10]
        for subject in chunk:
            attempts = {0: first[Key(arm=FIRST_TRIAL, task_id=subject.id)]} | {
                key.trial: attempt for key, attempt in retries.items() if key.task_id == subject.id
            }
            memory = Memory()
            for trial in (1, 2):
                if attempts[trial - 1].outcome is Outcome.SUCCESS:
                    break
                expected = asyncio.run(reflector.reflect(attempts[trial - 1], memory, 0)).text
                assert given[subject.id, trial] == expected
                memory, checked = memory.remember(expected, 2), checked + 1
        ids = {subject.id for subject in chunk}
        gains = [
            RetrievalGain(text, returns[name, trial] - returns[name, trial - 1])
            for (name, trial), text in given.items()
            if name in ids
        ]
        reflector.learn(gains)
    assert checked == len(given) > 20
    recalled = {(row.key.task_id, row.key.trial): row.reflection.text for row in facts(config, RECALLED).reflections}
    assert any(recalled[place] != text for place, text in given.items() if place in recalled), "nothing was learned"
    assert bound is not None
    assert without is not None
    assert "learning" not in without["retrieval"]
    assert (bound["arm"]["learns"], bound["retrieval"]["learning"]["tasks_at_once"]) == (True, 10)


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_a_killed_evaluation_makes_the_same_choices(tmp_path: Path) -> None:
    config, chance = collected(tmp_path), random.Random(3)
    database = tmp_path / "runs/toy/experience.db"
    collected_facts = database.read_bytes()
    words = [str(config.path), *config.overrides, "eval.tasks=24", "loop.concurrency=3"]
    finish(tmp_path, "eval", words)
    whole, total = facts(config, LEARNING), stored(database)
    for leftover in database.parent.glob("experience.db*"):
        leftover.unlink()
    database.write_bytes(collected_facts)
    first = stored(database)
    moments = [
        lambda count=count: stored(database) >= count  # type: ignore[misc]
        for count in sorted(chance.sample(range(first + (total - first) // 3, total), 3))
    ]
    assert run_and_kill(tmp_path, "eval", words, moments) >= 2
    finish(tmp_path, "eval", words)
    assert whole.reflections
    assert facts(config, LEARNING).same_as(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_another_order_of_the_tasks_and_more_trials_are_refused(tmp_path: Path) -> None:
    config = evaluated(collected(tmp_path), "eval.tasks=4", "loop.trials=2")
    with pytest.raises(ConfigError, match=r"already holds 'eval/learning' facts made with retrieval\.learning\.order"):
        evaluated(config, "environment.task_types=[pick]")
    with pytest.raises(ConfigError, match=r"already holds 'eval/learning' facts made with retrieval\.learning\.trials"):
        evaluated(config, "loop.trials=3")
