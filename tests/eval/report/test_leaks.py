"""Counts of advice that holds the gold answer, over a small set of questions."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from eval.measure.results import ArmResult, SeedResult
from eval.report.leaks import LeakCounter
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.experiment.config import Experiment
from retroformer.records import Ending, Outcome, Step, Task, Trajectory, Usage
from tests.support.characters import advice
from tests.support.household import attempt as household_attempt

NOTHING = np.zeros((3, 0))
ARMS = {"x": ("eval/x/1", "eval/x/2"), "y": ("eval/y",)}


def arm(name: str, stored_names: tuple[str, ...]) -> ArmResult:
    seeds = tuple(SeedResult(stored, NOTHING, NOTHING, NOTHING, NOTHING, 0, Usage()) for stored in stored_names)
    return ArmResult(name, seeds, 0)


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
def counter(tmp_path: Path) -> LeakCounter:
    questions = [{"id": "5a", "question": "Where?", "answer": "Lyon"}, {"id": "5b", "question": "Who?", "answer": "no"}]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    experiment = Experiment.model_validate(
        {"run": "leaks", "environment": {"name": "hotpotqa", "data": str(tmp_path), "split": "all"}}
    )
    return LeakCounter(experiment, [arm(*each) for each in ARMS.items()])


def test_leaks_are_counted_by_arm_with_examples(counter: LeakCounter) -> None:
    texts = {"eval/x/1": ("It is Lyon.", "Try Lyon."), "eval/x/2": ("Try again.", ""), "eval/y": ("Do not say Nice.",)}
    counter.add(facts("5a", ("Nice", "Paris", "Nantes"), texts))
    counter.add(facts("5b", ("yes",), {"eval/y": ("Say no.",)}))
    shown = counter.render()
    assert "| x | 3 | 0 | 2 of 3 (67%) |" in shown
    assert "| y | 2 | 0 | 0 of 2 (0%) |" in shown
    assert shown.splitlines()[-2:] == ["| x | 5a | Lyon | It is Lyon. |", "| x | 5a | Lyon | Try Lyon. |"]


def test_an_answer_of_an_earlier_attempt_is_no_leak(counter: LeakCounter) -> None:
    # The advice for trial 2 has seen both attempts, that for trial 1 only the first.
    counter.add(facts("5a", ("Nice", "Lyon, France"), {"eval/x/1": ("It is Lyon.", "It is Lyon."), "eval/y": ()}))
    assert "| x | 2 | 0 | 1 of 2 (50%) |" in counter.render()


def test_advice_on_a_question_without_a_known_answer_is_not_checked(counter: LeakCounter) -> None:
    counter.add(facts("5c", ("Nice",), {"eval/y": ("It is Lyon.",)}))
    assert "| y | 1 | 1 | - |" in counter.render()


def test_arms_without_advice_and_environments_without_a_check_give_no_section(
    counter: LeakCounter, tmp_path: Path
) -> None:
    counter.add(facts("5a", ("Nice",), {}))
    assert counter.render() == ""
    shop = Experiment.model_validate({"run": "shop", "environment": {"name": "webshop", "data": str(tmp_path)}})
    unchecked = LeakCounter(shop, [arm(*each) for each in ARMS.items()])
    unchecked.add(facts("5a", ("Nice",), {"eval/y": ("It is Lyon.",)}))
    assert unchecked.render() == ""


def test_an_arm_that_reads_the_solution_is_marked() -> None:
    household = Experiment.model_validate(
        {"run": "home", "environment": {"name": "alfworld"}, "eval": {"arms": {"best": {"kind": "oracle"}}}}
    )
    counter = LeakCounter(household, [arm("best", ("eval/best",))])
    failure = household_attempt()
    counter.add(TaskFacts("mug/1", failure, {"eval/best": SeedFacts({0: failure}, {1: advice("Look in shelf 1.")})}))
    assert "| best (reads the solution) | 1 | 0 | 0 of 1 (0%) |" in counter.render()
