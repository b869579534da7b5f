"""Tasks solved by each arm and trial, from a store whose facts are all written here."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from eval.measure.results import ArmResult, arm_results
from eval.measure.statistics import Rates
from retroformer.method.records import Key, Outcome
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import PRICE, attempt_at, task
from tests.support.facts import add_invalid, add_trajectory

TASKS = [task(name) for name in "abcd"]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")
    yield opened
    opened.close()


def tell(store: Store, arm: str, name: str, trial: int, episode_return: float) -> None:
    outcome = Outcome.SUCCESS if episode_return == 1 else Outcome.FAILURE
    key = Key(arm=arm, task_id=name, trial=trial)
    add_trajectory(store, key, attempt_at(task(name), rewards=(episode_return,), outcome=outcome))


def tell_all(store: Store) -> None:
    """Store trial 0, which solves a; x solves b, then c, never d; y solves nothing more and misses its retry of c."""
    for name, episode_return in zip("abcd", (1.0, 0.0, 0.25, 0.5), strict=True):
        tell(store, FIRST_TRIAL, name, 0, episode_return)
    tell(store, "eval/x", "b", 1, 1.0)
    tell(store, "eval/x", "c", 1, 0.5)
    tell(store, "eval/x", "c", 2, 1.0)
    tell(store, "eval/x", "d", 1, 0.5)
    tell(store, "eval/x", "d", 2, 0.75)
    for name in "bd":
        tell(store, "eval/y", name, 1, 0.0)
        tell(store, "eval/y", name, 2, 0.0)
    tell(store, "eval/y", "c", 1, 0.0)
    add_invalid(store, Key(arm="eval/y", task_id="c", trial=2), "The school is closed.", PRICE)


def stored(*arms: str) -> dict[str, list[str]]:
    return {arm: [f"eval/{arm}"] for arm in arms}


def outcomes(store: Store, *arms: str) -> dict[str, ArmResult]:
    """Return the results on the tasks that all these arms finished."""
    return {arm.name: arm for arm in Rates(arm_results(store, TASKS, stored(*arms), trials=3)).finished}


@pytest.mark.parametrize(("last_counts", "solved"), [(False, 1), (True, 0)])
def test_a_game_that_is_won_stays_won_and_of_programs_the_last_one_counts(
    store: Store, last_counts: bool, solved: int
) -> None:
    """The agent distrusts an attempt that solved its task, tries again, and fails."""
    tell_all(store)
    for name in "ab":
        for trial, (episode_return, judged) in enumerate(((1.0, False), (0.0, True))):
            outcome = Outcome.SUCCESS if episode_return else Outcome.FAILURE
            made = attempt_at(task(name), rewards=(episode_return,), outcome=outcome)
            arm = FIRST_TRIAL if trial == 0 else "eval/harsh"
            key = Key(arm=arm, task_id=f"{name}-judged", trial=trial)
            add_trajectory(store, key, made.model_copy(update={"judged": judged}))
    tasks = [task("a-judged"), task("b-judged")]
    (made,) = arm_results(store, tasks, stored("harsh"), trials=3, last_counts=last_counts)
    assert made.solved_NT.tolist() == made.return_NT.tolist() == [[1, 1], [solved, solved], [solved, solved]]
    assert (made.incomplete, made.last_counts) == (0, last_counts)


def test_a_task_counts_as_solved_from_its_first_success_on(store: Store) -> None:
    tell_all(store)
    for more in ({"candidate": 1}, {"repeat": 1}):  # An import may hold several attempts of a trial.
        key = Key(arm="eval/x", task_id="d", trial=1).model_copy(update=more)
        add_trajectory(store, key, attempt_at(task("d"), outcome=Outcome.SUCCESS))
    made = outcomes(store, "x")["x"]
    assert made.solved_NT.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert made.incomplete == 0


def test_the_return_is_that_of_the_last_attempt_made_so_far(store: Store) -> None:
    tell_all(store)
    expected = [[1, 0, 0.25, 0.5], [1, 1, 0.5, 0.5], [1, 1, 1, 0.75]]
    assert outcomes(store, "x")["x"].return_NT.tolist() == expected


def test_arms_are_compared_on_the_tasks_that_all_of_them_finished(store: Store) -> None:
    tell_all(store)
    made = outcomes(store, "x", "y")
    assert made["x"].solved_NT.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert made["y"].solved_NT.tolist() == [[1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert (made["x"].incomplete, made["y"].incomplete) == (0, 1)


def test_an_invalid_attempt_is_counted_and_is_no_return_of_0(store: Store) -> None:
    tell_all(store)
    made = outcomes(store, "x", "y")
    assert (made["x"].invalid, made["y"].invalid) == (0, 1)
    assert made["y"].return_NT.shape == (3, 3)
    assert made["y"].usage == store.usage("eval/y")


def test_a_task_without_its_first_trial_is_unfinished_in_every_arm(store: Store) -> None:
    tell_all(store)
    made = arm_results(store, [*TASKS, task("never played")], stored("x"), trials=3)[0]
    assert made.finished_T.tolist() == [True] * 4 + [False]
    assert made.incomplete == 1


def test_with_a_single_trial_the_arms_equal_the_shared_trial(store: Store) -> None:
    tell_all(store)
    x, y = arm_results(store, TASKS, stored("x", "y"), trials=1)
    assert np.array_equal(x.solved_NT, y.solved_NT)
    assert x.solved_NT.tolist() == [[1, 0, 0, 0]]


def test_an_arm_of_several_training_seeds_is_their_mean_per_task(store: Store) -> None:
    tell_all(store)
    for name in "bcd":
        tell(store, "eval/x/second", name, 1, 1.0)
    arms = {"x": ["eval/x", "eval/x/second"], "y": ["eval/y"]}
    pooled, y = Rates(arm_results(store, TASKS, arms, trials=3)).finished
    assert (pooled.pooled, y.pooled) == (True, False)
    assert [seed.name for seed in pooled.seeds] == ["x", "x/second"]
    # On a, b and d, which y also finished: x solves b at trial 1 and never d, the second seed both at trial 1.
    assert pooled.solved_NT.tolist() == [[1, 0, 0], [1, 1, 0.5], [1, 1, 0.5]]
    assert pooled.return_NT.tolist() == [[1, 0, 0.5], [1, 1, 0.75], [1, 1, 0.875]]
    assert pooled.usage == store.usage("eval/x") + store.usage("eval/x/second")


def test_a_task_that_one_training_seed_left_unfinished_counts_as_unfinished(store: Store) -> None:
    tell_all(store)
    (pooled,) = arm_results(store, TASKS, {"both": ["eval/x", "eval/y"]}, trials=3)
    assert pooled.incomplete == 1
    assert pooled.invalid == 1
    assert pooled.finished_T.tolist() == [True, True, False, True]


def test_an_unfinished_task_counts_as_failed_from_its_first_missing_trial_on(store: Store) -> None:
    tell_all(store)
    x, y = arm_results(store, TASKS, stored("x", "y"), trials=3)
    assert x.return_NT.tolist() == [[1, 0, 0.25, 0.5], [1, 1, 0.5, 0.5], [1, 1, 1, 0.75]]
    assert y.return_NT.tolist() == [[1, 0, 0.25, 0.5], [1, 0, 0, 0], [1, 0, 0, 0]]
    assert y.solved_NT.tolist() == [[1, 0, 0, 0]] * 3


@pytest.mark.parametrize(("last_counts", "solved"), [(False, 1), (True, 0)])
def test_a_missing_retry_cannot_undo_a_game_that_is_won(store: Store, last_counts: bool, solved: int) -> None:
    made = attempt_at(task("a"), rewards=(1.0,), outcome=Outcome.SUCCESS)
    key = Key(arm=FIRST_TRIAL, task_id="a", trial=0)
    add_trajectory(store, key, made.model_copy(update={"judged": False}))
    add_invalid(store, Key(arm="eval/harsh", task_id="a", trial=1), "The school is closed.", PRICE)
    (arm,) = arm_results(store, [task("a")], stored("harsh"), trials=2, last_counts=last_counts)
    assert (arm.solved_NT.tolist(), arm.incomplete) == ([[1], [solved]], 1)
