"""Counts of advice that holds the gold answer, over a small set of questions."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from eval.report.advice import Leaks
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from tests.support.characters import advice
from tests.support.evaluations import arm, evaluated
from tests.support.household import attempt as household_attempt
from tests.support.markdown_tables import chapters_in_markdown

ARMS = {"x": ("eval/x/1", "eval/x/2"), "y": ("eval/y",)}


def failed(task_id: str, answer: str) -> Trajectory:
    return Trajectory(
        task=Task(id=task_id, environment="hotpotqa", split="all"),
        opening="Question: Where was she born?",
        steps=(Step(action=f"Finish[{answer}]", observation="Answer is INCORRECT"),),
        outcome=Outcome.FAILURE,
        ending=Ending.TERMINATED,
    )


def facts(task_id: str, answers: tuple[str, ...], texts: Mapping[str, tuple[str, ...]]) -> TaskFacts:
    attempts = {trial: failed(task_id, answer) for trial, answer in enumerate(answers)}
    seeds = {
        stored: SeedFacts(attempts, {trial: advice(text) for trial, text in enumerate(texts.get(stored, ()), start=1)})
        for stored_names in ARMS.values()
        for stored in stored_names
    }
    return TaskFacts(task_id, attempts[0], seeds)


@pytest.fixture
def counter(tmp_path: Path) -> Leaks:
    questions = [{"id": "5a", "question": "Where?", "answer": "Lyon"}, {"id": "5b", "question": "Who?", "answer": "no"}]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    questions_of = {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}
    return Leaks(evaluated([arm(name, *stored) for name, stored in ARMS.items()], environment=questions_of))


def test_leaks_are_counted_by_arm_with_examples(counter: Leaks) -> None:
    texts = {"eval/x/1": ("It is Lyon.", "Try Lyon."), "eval/x/2": ("Try again.", ""), "eval/y": ("Do not say Nice.",)}
    counter.add(facts("5a", ("Nice", "Paris", "Nantes"), texts))
    counter.add(facts("5b", ("yes",), {"eval/y": ("Say no.",)}))
    shown = chapters_in_markdown(counter.chapters())
    assert "| x | 3 | 0 | 2 of 3 (67%) |" in shown
    assert "| y | 2 | 0 | 0 of 2 (0%) |" in shown
    assert shown.splitlines()[-2:] == ["| x | 5a | Lyon | It is Lyon. |", "| x | 5a | Lyon | Try Lyon. |"]


def test_an_answer_of_an_earlier_attempt_is_no_leak(counter: Leaks) -> None:
    # The advice for trial 2 has seen both attempts, that for trial 1 only the first.
    counter.add(facts("5a", ("Nice", "Lyon, France"), {"eval/x/1": ("It is Lyon.", "It is Lyon."), "eval/y": ()}))
    assert "| x | 2 | 0 | 1 of 2 (50%) |" in chapters_in_markdown(counter.chapters())


def test_advice_on_a_question_without_a_known_answer_is_not_checked(counter: Leaks) -> None:
    counter.add(facts("5c", ("Nice",), {"eval/y": ("It is Lyon.",)}))
    assert "| y | 1 | 1 | - |" in chapters_in_markdown(counter.chapters())


def test_arms_without_advice_and_environments_without_a_check_give_no_section(counter: Leaks, tmp_path: Path) -> None:
    counter.add(facts("5a", ("Nice",), {}))
    assert list(counter.chapters()) == []
    arms = [arm(name, *stored) for name, stored in ARMS.items()]
    unchecked = Leaks(evaluated(arms, environment={"name": "webshop", "data": str(tmp_path)}))
    unchecked.add(facts("5a", ("Nice",), {"eval/y": ("It is Lyon.",)}))
    assert list(unchecked.chapters()) == []


def test_an_arm_that_reads_the_solution_is_marked() -> None:
    counter = Leaks(evaluated([arm("best")], eval={"arms": {"best": {"kind": "oracle"}}}))
    failure = household_attempt()
    counter.add(TaskFacts("mug/1", failure, {"eval/best": SeedFacts({0: failure}, {1: advice("Look in shelf 1.")})}))
    assert "| best (reads the solution) | 1 | 0 | 0 of 1 (0%) |" in chapters_in_markdown(counter.chapters())
