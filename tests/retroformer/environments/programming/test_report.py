"""The chapter on the agent's own tests, on attempts whose answers were written by the environment's own rules."""

import json
from pathlib import Path
from typing import NamedTuple

import pytest

from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.environments.programming.environment import (
    HANDED_IN,
    OwnTestsChapter,
    Programming,
    language_of,
    own_tests_passed,
    taskset,
)
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from tests.support.markdown_tables import chapters_in_markdown

PASSED = "Tests passed:\nassert f(1) == 2\nTests failed:\nnone"
FAILED = "Tests passed:\nnone\nTests failed:\nassert f(1) == 2  # failed: came out as none"


class Arm(NamedTuple):
    name: str
    stored_names: tuple[str, ...]


def attempt(answer: str, right: bool, language: str = "Python") -> Trajectory:
    return Trajectory(
        task=Task(id="f", environment="programming", split="humaneval"),
        opening=f"Complete this {language} program:\n\ndef f(n):",
        steps=(
            Step(action="Tests:\nassert f(1) == 2", observation="Tests kept:\nassert f(1) == 2"),
            Step(action="def f(n): ...", observation=answer, reward=float(right)),
        ),
        outcome=Outcome.SUCCESS if right else Outcome.FAILURE,
        ending=Ending.SOLVED if right else Ending.TERMINATED,
    )


def facts(*attempts: Trajectory, task_id: str = "f") -> TaskFacts:
    return TaskFacts(task_id, attempts[0], {"eval/x": SeedFacts(dict(enumerate(attempts)), {})})


def rows(chapter: OwnTestsChapter) -> list[list[str]]:
    text = chapters_in_markdown(chapter.chapters())
    lines = text.partition("| --- ")[2].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_rates_are_conditional_on_the_result_of_the_agents_own_tests() -> None:
    chapter = OwnTestsChapter([Arm("x", ("eval/x",))])
    first = [(PASSED, True)] * 3 + [(PASSED, False)] + [(FAILED, True)] * 2 + [(FAILED, False)] * 4
    for answer, right in first:
        chapter.add(facts(attempt(answer, right)))
    assert rows(chapter)[0] == [
        "trial 0, shared",
        "Python",
        "10 of 10 (100%)",
        "3 of 4 (75%)",
        "1 of 4 (25%)",
        "2 of 6 (33%)",
        "4 of 6 (67%)",
        "3 of 5 (60%)",
        "4 of 5 (80%)",
    ]


def test_languages_are_apart_and_an_arm_counts_the_last_attempt_at_each_task() -> None:
    chapter = OwnTestsChapter([Arm("x", ("eval/x",))])
    chapter.add(facts(attempt(FAILED, False, "Rust"), attempt(PASSED, True, "Rust")))
    chapter.add(facts(attempt(PASSED, False)))
    chapter.add(facts(attempt(HANDED_IN, True)))
    assert [row[:5] for row in rows(chapter)] == [
        ["trial 0, shared", "Python", "1 of 2 (50%)", "0 of 1 (0%)", "1 of 1 (100%)"],
        ["trial 0, shared", "Rust", "1 of 1 (100%)", "-", "-"],
        ["x, last attempts", "Python", "1 of 2 (50%)", "0 of 1 (0%)", "1 of 1 (100%)"],
        ["x, last attempts", "Rust", "1 of 1 (100%)", "1 of 1 (100%)", "0 of 1 (0%)"],
    ]


def test_without_any_tests_of_its_own_there_is_no_section() -> None:
    chapter = OwnTestsChapter([Arm("x", ("eval/x",))])
    chapter.add(facts(attempt(HANDED_IN, True)))
    assert not list(chapter.chapters())


@pytest.mark.parametrize(
    ("expected", "passed"), [("4", True), ("5", False), ("'none'", False), ("'Tests failed:\\nnone'", False)]
)
def test_the_answers_of_the_environment_are_read(tmp_path: Path, expected: str, passed: bool) -> None:
    problem = {
        "id": "double",
        "prompt": "def double(n):\n",
        "entry_point": "double",
        "tests": ["assert double(1) == 2"],
    }
    (tmp_path / "own.jsonl").write_text(json.dumps(problem) + "\n")
    environment = taskset(Programming(data=tmp_path, split="own.jsonl")).environment()
    opening = environment.reset(Task(id="double", environment="programming", split="own.jsonl"))
    assert language_of(opening.observation) == "Python"
    environment.step(f"Tests:\nassert double(2) == {expected}")
    assert own_tests_passed(environment.step("def double(n):\n    return 2 * n\n").observation) is passed


def test_a_program_without_tests_has_no_result_of_them() -> None:
    assert own_tests_passed(HANDED_IN) is None
