"""Failure classes of attempts with actions written by hand, and the share of tasks in each class at each trial."""

from pathlib import Path

import pytest

from eval.measure.results import arm_results
from eval.report.attempts import FailureClasses, is_hallucination, is_inefficient
from eval.report.report_input import facts_by_task
from retroformer.method.records import Ending, Key, Outcome, Step, Trajectory
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.characters import attempt_at, task
from tests.support.evaluations import evaluated
from tests.support.facts import add_trajectory
from tests.support.markdown_tables import chapters_in_markdown

STUCK = (("look", "A desk."), ("look", "A desk."))
LOST = tuple((f"go {index}", f"Place {index}.") for index in range(30))
WRONG = (("answer Lyon", "Noted."),)


def did(*steps: tuple[str, str], name: str = "a", outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    made = tuple(Step(action=action, observation=observation) for action, observation in steps)
    return attempt_at(task(name), outcome=outcome).model_copy(update={"steps": made})


def test_a_repeated_action_with_the_same_answer_is_a_hallucination() -> None:
    assert is_hallucination(did(("wait", "Noted."), *STUCK))
    assert not is_hallucination(did(("look", "A desk."), ("look", "A desk and a lamp.")))
    assert not is_hallucination(did(("look", "A desk."), ("wait", "A desk.")))


def test_equal_actions_that_are_not_consecutive_are_no_hallucination() -> None:
    assert not is_hallucination(did(("look", "A desk."), ("wait", "Noted."), ("look", "A desk.")))


def test_a_cycle_is_a_hallucination() -> None:
    doors = (("go left", "A door."), ("go right", "A desk."))
    assert not is_hallucination(did(*(doors * 3)))
    assert is_hallucination(did(*(doors * 4)))


def test_an_attempt_that_ended_in_a_cycle_is_a_hallucination_at_any_limit_of_repetitions() -> None:
    doors = did(("go left", "A door."), ("go right", "A desk."), ("go left", "A door."))
    assert not is_hallucination(doors)
    assert is_hallucination(doors.model_copy(update={"ending": Ending.REPETITION}))


@pytest.mark.parametrize(("actions", "inefficient"), [(29, False), (30, True), (31, True)])
def test_thirty_actions_are_inefficient(actions: int, inefficient: bool) -> None:
    made = did(*((f"go {index}", f"Place {index}.") for index in range(actions)))
    assert is_inefficient(made) is inefficient


def rows(folder: Path, attempts: dict[str, list[Trajectory]], arms: dict[str, list[str]]) -> list[str]:
    """Return the rows of the table; `attempts` are those of each task, trial 0 first, made by every stored arm."""
    store = Store(f"sqlite:///{folder / 'experience.db'}", "riddles")
    stored_arms = [stored for names in arms.values() for stored in names]
    for name, made in attempts.items():
        for trial, attempt in enumerate(made):
            for stored in stored_arms if trial else [FIRST_TRIAL]:
                add_trajectory(store, Key(arm=stored, task_id=name, trial=trial), attempt)
    results = arm_results(store, [task(name) for name in attempts], arms, trials=3)
    classes = FailureClasses(evaluated(results, loop={"trials": 3}))
    for facts in facts_by_task(store, FIRST_TRIAL, dict.fromkeys(stored_arms, FIRST_TRIAL)):
        classes.add(facts)
    store.close()
    return [line for line in chapters_in_markdown(classes.chapters()).splitlines() if line.startswith("| x")]


ATTEMPTS = {
    "a": [did(*STUCK, name="a"), did(*LOST, name="a"), did(*STUCK, name="a", outcome=Outcome.SUCCESS)],
    "b": [did(*LOST, *STUCK, name="b"), did(*WRONG, name="b"), did(*STUCK, name="b")],
    "c": [did(*STUCK, name="c", outcome=Outcome.SUCCESS)],
    # The agent gave up, content with a wrong answer.
    "d": [did(*STUCK, name="d")],
}


def test_the_share_of_tasks_in_each_class_is_shown_for_each_trial(tmp_path: Path) -> None:
    # By trial: a is stuck, lost, solved; b is lost and stuck, wrong, stuck; c is solved; d stays stuck.
    assert rows(tmp_path, ATTEMPTS, {"x": ["eval/x"]}) == [
        "| x | hallucination | 3 of 4 (75%) | 1 of 4 (25%) | 2 of 4 (50%) |",
        "| x | inefficient planning | 1 of 4 (25%) | 1 of 4 (25%) | 0 of 4 (0%) |",
        "| x | all failures | 3 of 4 (75%) | 3 of 4 (75%) | 2 of 4 (50%) |",
    ]


def test_a_game_that_was_won_before_the_agent_lost_it_is_in_no_class(tmp_path: Path) -> None:
    distrusted = did(*WRONG, outcome=Outcome.SUCCESS).model_copy(update={"judged": False})
    assert rows(tmp_path, {"a": [distrusted, did(*STUCK), did(*LOST)]}, {"x": ["eval/x"]}) == []


def test_an_environment_without_such_failures_has_no_table_of_zeros(tmp_path: Path) -> None:
    assert rows(tmp_path, {"a": [did(*WRONG)], "b": [did(*WRONG)]}, {"x": ["eval/x"]}) == []


def test_training_seeds_of_an_arm_are_pooled(tmp_path: Path) -> None:
    assert rows(tmp_path, ATTEMPTS, {"x": ["eval/x/1", "eval/x/2"]})[0] == (
        "| x | hallucination | 6 of 8 (75%) | 2 of 8 (25%) | 4 of 8 (50%) |"
    )
