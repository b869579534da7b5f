"""The graded return of stored attempts at programs, with numbers worked by hand and from the real sandbox."""

import json
from pathlib import Path

import pytest

from retroformer.environments.programming import Section, extras
from retroformer.environments.programming.environment import (
    HANDED_IN,
    TOO_LONG,
    ProgrammingEnvironment,
    own_results,
    own_tests_passed,
    share_of_tests,
)
from retroformer.environments.registry import taskset
from retroformer.errors import ConfigError
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from tests.retroformer.environments.programming.test_judging_rust import MAXIMUM, needs_rust

DOUBLE = {
    "id": "double",
    "prompt": 'def double(n: int) -> int:\n    """Twice the number."""\n',
    "entry_point": "double",
    "tests": ["assert double(3) == 6"],
}


def attempt(*observations: str, outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    steps = tuple(Step(action="Tests: or a program", observation=text) for text in observations)
    task = Task(id="double", environment="programming", split="own.jsonl")
    ending = Ending.SOLVED if outcome is Outcome.SUCCESS else Ending.TERMINATED
    return Trajectory(task=task, opening="Complete", steps=steps, outcome=outcome, ending=ending)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("Tests passed:\na\nb\nc\nTests failed:\nd  # failed", 3 / 5),
        ("Tests passed:\na\nb\nTests failed:\nnone", 2 / 3),
        ("Tests passed:\nnone\nTests failed:\na  # failed\nb  # failed", 0.0),
        (HANDED_IN, 0.0),
        (TOO_LONG, 0.0),
        ("Tests kept:\na", 0.0),
    ],
)
def test_the_hidden_tests_count_as_one_that_an_unsolved_task_failed(answer: str, expected: float) -> None:
    assert share_of_tests(attempt("Tests kept:\na", answer)) == pytest.approx(expected)


def test_a_solved_task_returns_1_whatever_its_own_tests_say() -> None:
    assert share_of_tests(attempt("Tests passed:\nnone\nTests failed:\na", outcome=Outcome.SUCCESS)) == 1.0
    assert share_of_tests(attempt()) == 0.0


def test_the_answers_of_the_sandbox_are_counted(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_text(json.dumps(DOUBLE) + "\n")
    source = taskset(Section.model_validate({"data": tmp_path, "split": "own.jsonl"}))
    world, returns = source.environment(), list[float]()
    for program in ("return n * n", "return 2 * n", "return n +", "return 4"):
        (task,) = source.tasks()
        world.reset(task)
        world.step("Tests:\nassert double(1) == 2\nassert double(2) == 4\nassert double(0) == 0")
        answer = world.step(f"def double(n):\n    {program}\n")
        outcome = Outcome.SUCCESS if answer.success else Outcome.FAILURE
        returns.append(share_of_tests(attempt(answer.observation, outcome=outcome)))
        assert own_results(answer.observation).total() == 3
    # The square passes 2 and 0 of its own three tests, and so on; the hidden test asks for double(3).
    assert returns == [2 / 4, 1.0, 0.0, 1 / 4]


def rust_answer(tests: str, body: str) -> str:
    """Return what an attempt at `MAXIMUM` sees after its tests and its program."""
    world = ProgrammingEnvironment({MAXIMUM.id: MAXIMUM}, own_tests=6, max_steps=2, seed=0)
    world.reset(Task(id=MAXIMUM.id, environment="programming", split="own.jsonl"))
    world.step(f"Tests:\n{tests}")
    return world.step(body).observation


@needs_rust
def test_a_test_of_several_lines_counts_once() -> None:
    tests = "assert_eq!(\n    maximum(vec![4]),\n    4\n);\nassert_eq!(maximum(vec![1, 2]),\n    2);"
    seen = rust_answer(tests, "    l[0]\n}")
    assert seen.startswith("Tests passed:\nassert_eq!( maximum(vec![4]), 4 );\nTests failed:\n")
    assert share_of_tests(attempt(seen)) == pytest.approx(1 / 3)


@needs_rust
def test_the_compiler_s_messages_stand_below_the_tests_and_are_not_counted() -> None:
    tests = "assert_eq!(maximum(vec![4]), 4);\nassert_eq!(maximum(vec![1, 2]), 2);"
    seen = rust_answer(tests, "    let first: isize = l.first();\n    first\n}")
    assert "\nThe compiler's messages:\nerror[E0308]: mismatched types\n --> solution.rs:3:24\n" in seen
    assert own_results(seen) == {"Tests failed:": 2}
    assert own_tests_passed(seen) is False


def test_without_own_tests_there_is_nothing_to_grade() -> None:
    with pytest.raises(
        ConfigError, match=r"train\.rated_by=shaped: with environment\.own_tests=0 .*rated_by=success\."
    ):
        extras.returns["shaped"](Section.model_validate({"own_tests": 0}), 0)
