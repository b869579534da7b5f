"""Why attempts failed and what the agent made of them, on a handful of attempts worked by hand."""

from pathlib import Path

import pytest

from eval.facts import facts_by_task
from eval.failures import (
    AttemptCounts,
    AttemptGroups,
    failure_classes,
    hallucinated,
    judgements,
    planned_inefficiently,
)
from eval.outcome import arm_outcomes
from retroformer.arms import FIRST_TRIAL
from retroformer.records import Key, Outcome, Step, Trajectory
from retroformer.store import Store
from tests.support.characters import attempt_at, task


def did(*steps: tuple[str, str]) -> Trajectory:
    made = tuple(Step(action=action, observation=observation) for action, observation in steps)
    return attempt_at().model_copy(update={"steps": made})


def test_the_same_action_with_the_same_answer_is_a_hallucination_wherever_it_stands() -> None:
    assert hallucinated(did(("look", "A desk."), ("wait", "Noted."), ("look", "A desk.")))
    assert not hallucinated(did(("look", "A desk."), ("look", "A desk and a lamp.")))
    assert not hallucinated(did(("look", "A desk."), ("wait", "A desk.")))


@pytest.mark.parametrize(("actions", "inefficient"), [(30, False), (31, True)])
def test_more_than_thirty_actions_are_inefficient(actions: int, inefficient: bool) -> None:
    made = did(*((f"go {index}", f"Place {index}.") for index in range(actions)))
    assert planned_inefficiently(made) is inefficient


def told(folder: Path, *attempts: tuple[bool, bool | None]) -> dict[str, AttemptCounts]:
    """Counts of one arm; each task fails at first in the agent's eyes, and its retry is (solved, judged)."""
    store = Store(f"sqlite:///{folder / 'experience.db'}", "riddles")
    tasks = [task(str(number)) for number in range(len(attempts))]
    for one, (solved, judged) in zip(tasks, attempts, strict=True):
        first = attempt_at(one).model_copy(update={"judged": None if judged is None else False})
        store.add_trajectory(Key(arm=FIRST_TRIAL, task_id=one.id), first)
        outcome = Outcome.SUCCESS if solved else Outcome.FAILURE
        retry = attempt_at(one, outcome=outcome).model_copy(update={"judged": judged})
        store.add_trajectory(Key(arm="eval/x", task_id=one.id, trial=1), retry)
    groups = AttemptGroups(arm_outcomes(store, tasks, {"x": ["eval/x"]}, trials=2))
    for facts in facts_by_task(store, FIRST_TRIAL, ["eval/x"]):
        groups.add(facts)
    store.close()
    return groups.counts


def test_own_judgements_are_counted_against_the_truth(tmp_path: Path) -> None:
    groups = told(tmp_path, (True, True), (True, True), (True, False), (False, True), (False, False))
    assert judgements(groups).splitlines()[2:] == [
        "| trial 0, shared | 0 | 0 | 0 | 5 | 5 of 5 (100 %) |",
        "| x, retries | 2 | 1 | 1 | 1 | 3 of 5 (60 %) |",
    ]


def test_an_agent_that_is_told_the_truth_judges_nothing(tmp_path: Path) -> None:
    assert judgements(told(tmp_path, (True, None), (False, None))) == ""


def test_failures_are_sorted_arm_by_arm(tmp_path: Path) -> None:
    assert failure_classes(told(tmp_path, (True, None), (False, None))).splitlines()[2:] == [
        "| trial 0, shared | 2 | 0 of 2 (0 %) | 0 of 2 (0 %) |",
        "| x, retries | 1 | 0 of 1 (0 %) | 0 of 1 (0 %) |",
    ]
