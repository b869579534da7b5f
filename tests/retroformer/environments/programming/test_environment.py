"""Tests of an agent's own tests and its program through the real sandbox, and of what the agent sees."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from retroformer.config.file import load
from retroformer.environments.programming.environment import (
    HANDED_IN,
    Programming,
    ProgrammingEnvironment,
)
from retroformer.environments.registry import taskset
from retroformer.environments.tasksets import EPISODE_OVER
from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.method.records import Task
from tests.retroformer.environments.programming.test_judging_rust import needs_rust
from tests.support.odd_actions import every_episode, odd_actions
from tests.support.runs import ROOT

DOUBLE = {
    "id": "double",
    "prompt": 'def double(n: int) -> int:\n    """Twice the number."""\n',
    "entry_point": "double",
    "tests": ["assert double(3) == 6", "assert double(-1) == -2"],
}
RIGHT = "def double(n):\n    return 2 * n\n"
SQUARE = "def double(n):\n    return n * n\n"
TASK = Task(id="double", environment="programming", split="own.jsonl")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.jsonl").write_text(json.dumps(DOUBLE) + "\n")
    return tmp_path


def world(folder: Path, **knobs: int) -> ProgrammingEnvironment:
    made = taskset(Programming.model_validate({"data": folder, "split": "own.jsonl", **knobs})).environment()
    assert isinstance(made, ProgrammingEnvironment)
    return made


def test_the_opening_shows_the_beginning_of_a_program(folder: Path) -> None:
    seen = world(folder).reset(TASK)
    assert seen.observation == f"Complete this Python program:\n\n{DOUBLE['prompt']}"
    assert not seen.over


def test_tests_that_call_the_function_are_kept_each_once_and_no_more_than_allowed(folder: Path) -> None:
    environment = world(folder, own_tests=2)
    environment.reset(TASK)
    valid = ["assert double(1) == 2", "assert double(2) == 4", "assert double(3)"]
    seen = environment.step("\n".join(["Tests:", valid[0], "assert 1", *valid]))
    title, *kept = seen.observation.splitlines()
    assert (title, len(kept)) == ("Tests kept:", 2)
    assert kept == [test for test in valid if test in kept]
    assert not seen.over


def test_the_seed_of_the_experiment_decides_which_tests_are_kept_and_later_attempts_keep_the_same(folder: Path) -> None:
    written = "\n".join(["Tests:", *(f"assert double({number}) == {2 * number}" for number in range(12))])

    def kept(seed: int) -> str:
        section = Programming.model_validate({"data": folder, "split": "own.jsonl", "own_tests": 3})
        environment = taskset(section, seed).environment()
        environment.reset(TASK)
        return environment.step(written).observation

    assert kept(seed=1) == kept(seed=1)
    assert len({kept(seed) for seed in range(5)}) > 1


def test_a_right_program_is_a_success_and_the_answer_covers_only_its_own_tests(folder: Path) -> None:
    environment = world(folder)
    environment.reset(TASK)
    environment.step("Tests:\nassert double(2) == 4\nassert double(0) == 1")
    seen = environment.step(RIGHT)
    assert (seen.reward, seen.success, seen.terminated, seen.tests_passed) == (1.0, True, True, False)
    assert seen.observation.startswith("Tests passed:\nassert double(2) == 4\nTests failed:\nassert double(0) == 1")
    assert "came out as 0" in seen.observation


def test_a_program_that_passes_its_own_tests_may_be_wrong(folder: Path) -> None:
    environment = world(folder)
    environment.reset(TASK)
    environment.step("Tests:\nassert double(2) == 4")
    seen = environment.step(SQUARE)
    assert (seen.reward, seen.success, seen.tests_passed) == (0.0, False, True)
    assert "double(3)" not in seen.observation


def test_without_tests_of_its_own_the_agent_learns_nothing(folder: Path) -> None:
    environment = world(folder, own_tests=0)
    environment.reset(TASK)
    assert environment.step("Tests:\nassert double(2) == 4").observation == "No tests may be handed in here."
    environment.reset(TASK)
    seen = environment.step(RIGHT)
    assert (seen.observation, seen.tests_passed, seen.success) == (HANDED_IN, None, True)


def test_an_invalid_test_is_answered_with_an_example(folder: Path) -> None:
    environment = world(folder)
    environment.reset(TASK)
    assert "assert double(...) == ..." in environment.step("Tests:\nI would try it with 3.").observation


def test_tests_alone_are_not_a_program(folder: Path) -> None:
    environment = world(folder)
    environment.reset(TASK)
    environment.step("Tests:\nassert double(2) == 4")
    seen = environment.step("Tests:\nassert double(2) == 4")
    assert (seen.truncated, seen.terminated, seen.success) == (True, False, False)
    assert environment.step(RIGHT).observation == EPISODE_OVER


@pytest.mark.parametrize(
    "odd", ["", "\x00\x1b[2J", "\ud800", "def double(", "x" * 1_000_000, "return " + "(" * 5000, "\u202edef double"]
)
def test_any_text_may_be_submitted_and_fails_without_an_error(folder: Path, odd: str) -> None:
    environment = world(folder)
    environment.reset(TASK)
    seen = environment.step(odd)
    assert (seen.terminated, seen.success, seen.reward) == (True, False, 0.0)


@pytest.mark.parametrize("term", ["+".join(["1"] * 400), "-" * 900 + "1", "0x" + "f" * 20_000, "[" * 150 + "]" * 150])
def test_unusable_tests_do_not_break_the_episode(folder: Path, term: str) -> None:
    environment = world(folder)
    environment.reset(TASK)
    environment.step(f"Tests:\nassert double(1) == {term}\nassert double(2) == 4")
    seen = environment.step(RIGHT)
    assert (seen.terminated, seen.success) == (True, True)
    assert "assert double(2) == 4" in seen.observation


def test_every_submission_is_kept_as_a_test_or_judged(folder: Path) -> None:
    environment = world(folder)
    verbs = ("Tests:\n", "def double", "return", "assert double", "import")

    @settings(every_episode, max_examples=30)
    @given(actions=odd_actions(verbs, (RIGHT, SQUARE, "Tests:\nassert double(2) == 4", "double(3)"), most=4))
    def play(actions: list[str]) -> None:
        environment.reset(TASK)
        for odd in actions:
            seen = environment.step(odd)
            assert seen.reward == float(seen.success), odd[:80]
            assert seen.terminated == (not odd.lstrip().startswith("Tests:")), odd[:80]
            if seen.over:
                break

    play()


def test_an_unknown_problem_and_a_step_before_the_first_are_named(folder: Path) -> None:
    with pytest.raises(UnknownTask, match="triple"):
        world(folder).reset(TASK.model_copy(update={"id": "triple"}))
    with pytest.raises(EnvironmentFailure, match="reset"):
        world(folder).step(RIGHT)


def test_environment_data_must_be_configured(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"environment\.data"):
        taskset(Programming()).tasks()
    with pytest.raises(MissingInput, match=r"HumanEval\.jsonl"):
        taskset(Programming(data=tmp_path)).tasks()


LEETCODE = [
    {
        "id": "largest-rectangle",
        "prompt": "class Solution:\n    def area(self, heights: list[int]) -> int:\n        ",
        "entry_point": "Solution",
        "tests": ["assert Solution().area([2, 1, 2]) == 3", "assert Solution().area([4]) == 4"],
    },
    {
        "id": "largest-rectangle-rust",
        "language": "rust",
        "prompt": "fn area(heights: Vec<isize>) -> isize {\n",
        "entry_point": "area",
        "tests": ["assert_eq!(area(vec![2, 1, 2]), 3);"],
    },
]
AREAS = [
    "    low = [min(heights[i:j]) * (j - i) for i in range(len(heights)) for j in range(i + 1, len(heights) + 1)]\n"
    "    return max(low)",
    "    let n = heights.len();\n"
    "    (0..n).flat_map(|i| (i + 1..=n).map(move |j| (i, j)))\n"
    "        .map(|(i, j)| heights[i..j].iter().min().unwrap() * (j - i) as isize).max().unwrap()\n}",
]


@pytest.mark.parametrize("language", [0, pytest.param(1, marks=needs_rust)], ids=["python", "rust"])
def test_the_paper_s_leetcode_config_plays_a_user_s_file_in_both_languages(tmp_path: Path, language: int) -> None:
    problem, body = LEETCODE[language], AREAS[language]
    (tmp_path / "leetcode-hard.jsonl").write_text(f"{json.dumps(problem)}\n")
    config = ROOT / "configs" / "paper" / "reflexion-leetcode.yaml"
    experiment = load(config, [f"environment.data={tmp_path}"])
    source = taskset(experiment.environment)
    environment = source.environment()
    (task,) = source.tasks()
    environment.reset(task)
    assert environment.step(f"Tests:\n{problem['tests'][0]}").observation.startswith("Tests kept:")
    seen = environment.step(body)
    assert (seen.success, seen.tests_passed) == (True, True)
