"""Tests of the examples of the prompt packs `reflexion-python` and `reflexion-rust`, played in the real sandbox.

The problems are our own, so that no problem of a published set is in a prompt.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from retroformer.agents import evaluators
from retroformer.environments.programming import code_in
from retroformer.environments.programming.environment import TESTS, Programming, ProgrammingEnvironment
from retroformer.environments.registry import taskset
from retroformer.method.prompts import PromptPack, load_pack, program_prompt
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Outcome, Task, Trajectory
from tests.retroformer.environments.programming.test_judging_rust import needs_rust
from tests.support.data import require_data
from tests.support.replay import advice_after, replayed

PROBLEMS: dict[str, dict[str, Any]] = {
    "longest_run": {
        "language": "python",
        "tests": [
            "assert longest_run([4, 4, 1, 1, 1, 4]) == 3",
            "assert longest_run([]) == 0",
            "assert longest_run([7]) == 1",
            "assert longest_run([1, 2, 2]) == 2",
        ],
    },
    "minutes_between": {
        "language": "python",
        "tests": [
            "assert minutes_between('09:15', '10:00') == 45",
            "assert minutes_between('23:30', '00:10') == 40",
            "assert minutes_between('12:00', '12:00') == 0",
        ],
    },
    "largest_drop": {
        "language": "rust",
        "tests": [
            "assert_eq!(largest_drop(vec![3, 9, 4, 6, 2]), 7);",
            "assert_eq!(largest_drop(vec![1, 2, 3]), 0);",
            "assert_eq!(largest_drop(vec![]), 0);",
            "assert_eq!(largest_drop(vec![-1, -4]), 3);",
        ],
    },
}
"""Language and hidden tests of the problems in the examples, by function."""
EXAMPLES = [
    pytest.param("reflexion-python", 0, "longest_run", id="longest_run"),
    pytest.param("reflexion-python", 1, "minutes_between", id="minutes_between"),
    pytest.param("reflexion-rust", 0, "largest_drop", id="largest_drop", marks=needs_rust),
]
REVISED = [
    pytest.param("reflexion-python", "longest_run", "minutes_between", id="python"),
    pytest.param("reflexion-rust", "largest_drop", "largest_drop", id="rust", marks=needs_rust),
]
"""Pack, function of the revised program, function of the example of tests."""


class Played(NamedTuple):
    """Example of a reflector, played again."""

    pack: PromptPack
    environment: ProgrammingEnvironment
    attempt: Trajectory
    advice: str


def played(folder: Path, name: str, index: int, function: str) -> Played:
    pack = load_pack(name, "programming")
    example = pack.reflect_examples[index]
    opening = example.partition("\nAction 1: ")[0].partition("\n\n")[2]
    problem = {"id": function, "prompt": f"{opening}\n", "entry_point": function} | PROBLEMS[function]
    (folder / "own.jsonl").write_text(json.dumps(problem) + "\n")
    environment = taskset(Programming(data=folder, split="own.jsonl")).environment()
    assert isinstance(environment, ProgrammingEnvironment)
    task = Task(id=function, environment="programming", split="own.jsonl")
    attempt = replayed(example, environment, task, evaluators.TestsEvaluator())
    return Played(pack, environment, attempt, advice_after(pack, example, attempt))


@pytest.mark.parametrize(("name", "index", "function"), EXAMPLES)
def test_the_reflector_s_examples_are_programs_that_failed_as_printed(
    tmp_path: Path, name: str, index: int, function: str
) -> None:
    _, _, attempt, advice = played(tmp_path, name, index, function)
    assert (attempt.outcome, attempt.judged, attempt.episode_return) == (Outcome.FAILURE, False, 0.0)
    assert advice


@pytest.mark.parametrize(("name", "function", "tested"), REVISED)
def test_the_revised_program_follows_the_advice_and_is_right(
    tmp_path: Path, name: str, function: str, tested: str
) -> None:
    pack, environment, attempt, advice = played(tmp_path, name, 0, function)
    memory = Memory(reflections=(advice,), last_trajectory=attempt)
    scene = Scene(task=attempt.task, opening=attempt.opening, steps=(), memory=memory)
    system, asked = program_prompt(pack, scene)
    assert f"\n\n{asked.content}\n\n```" in system.content
    environment.reset(attempt.task)
    assert environment.step(code_in(system.content)).success


@pytest.mark.parametrize("name", ["reflexion-python", "reflexion-rust"])
def test_the_first_attempt_is_zero_shot(name: str) -> None:
    pack = load_pack(name, "programming")
    task = Task(id="double", environment="programming", split="own.jsonl")
    scene = Scene(task=task, opening="Complete this program:\n\ndef double(n):", steps=(), memory=Memory())
    system, user = program_prompt(pack, scene)
    assert (system.content, user.content) == (pack.act.strip(), scene.opening)
    assert "```" not in system.content
    advised = scene.model_copy(update={"memory": Memory(reflections=("Add, do not multiply.",))})
    assert program_prompt(pack, advised)[0].content == pack.revise.strip()


@pytest.mark.parametrize(("name", "function", "tested"), REVISED)
def test_the_example_of_tests_is_what_an_attempt_kept(tmp_path: Path, name: str, function: str, tested: str) -> None:
    pack, _, attempt, _ = played(tmp_path, name, 1 if tested != function else 0, tested)
    assert attempt.opening.strip() in pack.tests
    assert f"{TESTS}\n{code_in(pack.tests)}" == attempt.steps[0].action
    written, kept = code_in(pack.tests).splitlines(), attempt.steps[0].observation.splitlines()[1:]
    assert (len(written), len(kept)) == (8, Programming().own_tests)
    assert set(kept) < set(written)


@pytest.mark.parametrize("split", ["humaneval", "mbpp", "multipl-e-humaneval-rust", "multipl-e-mbpp-rust"])
def test_no_example_is_a_problem_of_a_published_set(split: str) -> None:
    source = taskset(Programming(data=require_data("programming"), split=split))
    environment = source.environment()
    openings = "\n".join(environment.reset(task).observation for task in source.tasks())
    assert "Complete this" in openings
    assert [function for function in PROBLEMS if function in openings] == []
