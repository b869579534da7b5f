"""Advice that holds the answer of a reasoning-gym task is noticed, with the real package."""

from typing import Any

import pytest

pytest.importorskip("reasoning_gym")

from retroformer.environments.extras import LeakCheck
from retroformer.environments.registry import extras, section_of
from retroformer.errors import UnknownTask
from retroformer.integrations.reasoning_gym.advice import METHODS, holds
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory

SECTION: Any = section_of({"name": "reasoning-gym", "families": {"spell_backward": {}, "chain_sum": {}}, "size": 3})


@pytest.fixture(scope="module")
def check() -> LeakCheck:
    """Return one check for all tests, as importing the package takes seconds."""
    build = extras(SECTION).leak_check
    assert build is not None
    return build(SECTION, 0)


def failure(task_id: str, action: str = "no idea", opening: str = "Spell this word backward.") -> Trajectory:
    task = Task(id=task_id, environment="reasoning-gym", split=task_id.partition("/")[0])
    step = Step(action=action, observation="Wrong: the answer scores 0.00 of 1.")
    return Trajectory(task=task, opening=opening, steps=(step,), outcome=Outcome.FAILURE, ending=Ending.TERMINATED)


def answer_of(task_id: str) -> str:
    """Return the answer that the package itself gives."""
    from reasoning_gym import create_dataset

    split, family, number = task_id.split("/")
    section = SECTION.model_copy(update={"split": split})
    return str(create_dataset(family, seed=section.dataset_seed, size=3)[int(number)]["answer"])


def test_the_answer_is_noticed_in_advice_on_tasks_of_both_splits(check: LeakCheck) -> None:
    answers = [answer_of(task_id) for task_id in ("train/spell_backward/1", "held_out/spell_backward/1")]
    assert answers[0] != answers[1]
    for task_id, answer, other in zip(
        ("train/spell_backward/1", "held_out/spell_backward/1"), answers, reversed(answers), strict=True
    ):
        assert check.given_away(f"Answer with '{answer.upper()}'.", [failure(task_id)]) == answer
        assert check.given_away(f"Answer with {other}.", [failure(task_id)]) == ""
        assert check.given_away(METHODS["spell_backward"], [failure(task_id)]) == ""


def test_an_answer_that_the_question_or_an_attempt_shows_is_not_given_away(check: LeakCheck) -> None:
    task_id = "train/spell_backward/1"
    answer = answer_of(task_id)
    advice = f"It was {answer} after all."
    assert check.given_away(advice, [failure(task_id), failure(task_id)]) == answer
    assert check.given_away(advice, [failure(task_id, action=f"<answer>{answer}</answer>"), failure(task_id)]) == ""
    assert check.given_away(advice, [failure(task_id, opening=f"Is it {answer}?")]) == ""


def test_a_task_that_does_not_exist_cannot_be_checked(check: LeakCheck) -> None:
    for task_id in ("train/spell_backward/3", "train/gcd/0", "test/spell_backward/0"):
        with pytest.raises(UnknownTask):
            check.given_away("Try again.", [failure(task_id)])


@pytest.mark.parametrize(
    ("text", "answer", "is_there"),
    [
        ("The sum is 24.", "24", True),
        ("24", "24", True),
        ("so -24 comes out", "-24", True),
        ("124, -24, 24.5, 2.24 and 24th", "24", False),
        ("Write EVOLG.", "evolg", True),
        ("evolgs", "evolg", False),
        ("Anything", "", False),
    ],
)
def test_an_answer_counts_as_a_whole_word_or_number(text: str, answer: str, is_there: bool) -> None:
    assert holds(text, answer) is is_there
