"""Tests that replay the examples of the prompt packs."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from retroformer.environments.hotpotqa import HotpotqaTaskset, taskset
from retroformer.environments.hotpotqa.advice import holds
from retroformer.environments.hotpotqa.data import question_key
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.method.prompts import PromptPack, load_pack, react_prompt
from retroformer.method.protocols import Scene
from retroformer.method.records import Ending, Memory, Step, Task, Trajectory
from tests.support.characters import attempt_at
from tests.support.hotpotqa import SHARED, index_of_the_data
from tests.support.replay import advice_after, replayed

SETTINGS = {
    "default": {"max_steps": 6},
    "cot": {"max_steps": 1},
    "cot-context": {"max_steps": 1, "context": True},
}
"""Environment settings for which each pack is written."""
EXAMPLES = {"default": 6, "cot": 6, "cot-context": 6}
"""Number of examples by pack, as in the published agents (ReAct; CoT; CoT with context)."""
FAILED = [
    ("reflexion", "default", 0, "5add3ddc5542990dbb2f7def", Ending.STEP_LIMIT),
    ("reflexion", "default", 1, "5ab568e4554299637185c580", Ending.TERMINATED),
    ("reflexion-cot", "cot", 0, "5add6ec35542995b365fab2e", Ending.TERMINATED),
    ("reflexion-cot", "cot", 1, "5ae0aa545542993d6555ebfe", Ending.TERMINATED),
    ("reflexion-cot-context", "cot-context", 0, "5ab3fa995542992ade7c6f0f", Ending.TERMINATED),
    ("reflexion-cot-context", "cot-context", 1, "5ae334f85542994393b9e644", Ending.TERMINATED),
]
"""The reflector's examples: pack, the pack it extends, index, question, ending."""
HELD_OUT = {"validation_100": 100, "bolaa_easy_100": 100, "bolaa_medium_100": 100}
"""Number of questions in each split of the data that no run trains on."""

_LINE = re.compile(r"^(Thought|Action|Observation) (\d+): ")


class ExampleAttempt(NamedTuple):
    """Parsed example."""

    opening: str
    thoughts: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]


def taken_apart(example: str) -> ExampleAttempt:
    opening = list[str]()
    lines_of: dict[str, list[str]] = {"Thought": [], "Action": [], "Observation": []}
    for line in example.rstrip("\n").split("\n"):
        if label := _LINE.match(line):
            lines_of[label[1]].append(line[label.end() :])
            assert int(label[2]) == len(lines_of[label[1]])
        else:
            assert not lines_of["Thought"], f"a line without a label: {line}"
            opening.append(line)
    return ExampleAttempt("\n".join(opening), *(tuple(texts) for texts in lines_of.values()))


def question_of(example: ExampleAttempt) -> str:
    return example.opening.rpartition("Question: ")[2]


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = index_of_the_data(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("RETROFORMER_CACHE", str(cache))
    return cache


def questions(name: str, split: str = "all") -> HotpotqaTaskset:
    return taskset(Hotpotqa.model_validate({"data": SHARED, "split": split} | SETTINGS[name]))


def examples_of(name: str) -> list[ExampleAttempt]:
    return [taken_apart(example) for example in load_pack(name, "hotpotqa").examples]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("real")
def test_the_environment_answers_every_example_as_the_example_says(name: str) -> None:
    source = questions(name)
    ids = source.ids_by_question()
    assert len(examples_of(name)) == EXAMPLES[name]
    for example in examples_of(name):
        environment = source.environment()
        opening = environment.reset(
            Task(id=ids[question_key(question_of(example))], environment="hotpotqa", split="all")
        )
        assert opening.observation == example.opening
        *before, last = [environment.step(action) for action in example.actions]
        assert tuple(answer.observation for answer in before) == example.observations
        assert not any(answer.over for answer in before)
        assert (last.terminated, last.success, last.reward) == (True, True, 1.0)
        assert len(example.thoughts) == len(example.actions)


@pytest.mark.parametrize(("name", "base", "index", "question", "ending"), FAILED)
@pytest.mark.usefixtures("real")
def test_the_reflector_s_examples_are_attempts_that_failed_as_printed(
    name: str, base: str, index: int, question: str, ending: Ending
) -> None:
    pack, source = load_pack(name, "hotpotqa"), questions(base)
    attempt = replayed(
        pack.reflect_examples[index], source.environment(), Task(id=question, environment="hotpotqa", split="all")
    )
    assert (attempt.failed, attempt.ending) == (True, ending)
    assert attempt.episode_return < 1
    advice = advice_after(pack, pack.reflect_examples[index], attempt)
    assert advice
    assert not holds(advice, source.answer(attempt.task))


def test_each_pack_of_reflexion_is_another_pack_with_two_examples_for_the_reflector() -> None:
    for name, base in {(name, base) for name, base, *_ in FAILED}:
        pack, extended = load_pack(name, "hotpotqa"), load_pack(base, "hotpotqa")
        assert len(pack.reflect_examples) == len([row for row in FAILED if row[0] == name]) == 2
        assert pack.reflect.startswith(extended.reflect.partition(" Write ")[0])
        assert pack.ask.startswith("Reflection, and after it a new plan")
        own = {key: getattr(pack, key) for key in ("reflect", "reflect_examples", "ask")}
        assert pack == extended.model_copy(update=own)


def test_the_pack_with_two_shots_has_the_first_two_examples_of_the_pack_with_six() -> None:
    six, two = load_pack("reflexion", "hotpotqa"), load_pack("reflexion-two-shot", "hotpotqa")
    assert two == six.model_copy(update={"examples": six.examples[:2]})


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("split", HELD_OUT)
@pytest.mark.usefixtures("real")
def test_no_example_is_a_question_of_a_held_out_split(name: str, split: str) -> None:
    source = questions(name, split="all")
    held_out = {task.id for task in questions("default", split=split).tasks()}
    shown = {source.ids_by_question()[question_key(question_of(example))] for example in examples_of(name)}
    shown |= {question for _, base, _, question, _ in FAILED if base == name}
    assert len(held_out) == HELD_OUT[split]
    assert held_out.isdisjoint(shown)


@pytest.mark.parametrize("name", ["cot", "cot-context"])
def test_chain_of_thought_does_nothing_but_answer(name: str) -> None:
    pack = load_pack(name, "hotpotqa")
    assert all(action.startswith("Finish[") for action in pack.actions)
    assert len(pack.actions) == EXAMPLES[name]
    assert "Search" not in pack.act + pack.reflect


def test_chain_of_thought_examples_with_context_show_the_paragraphs_as_the_environment_does() -> None:
    for example in examples_of("cot-context"):
        assert example.opening.startswith("Context: ")
        assert example.opening.count("\n") == 2, "two paragraphs, then the question"
    assert all(example.opening.startswith("Question: ") for example in examples_of("cot"))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("advice", [(), ("Think of the river first.",)])
@pytest.mark.parametrize("last", [None, attempt_at()])
def test_every_kind_of_memory_works_with_every_pack(
    name: str, advice: tuple[str, ...], last: Trajectory | None
) -> None:
    pack: PromptPack = load_pack(name, "hotpotqa")
    scene = Scene(
        task=Task(id="b", environment="hotpotqa", split="all"),
        opening="Question: Where?",
        steps=(Step(thought="Hm.", action="Finish[here]", observation="Answer is INCORRECT"),),
        memory=Memory(reflections=advice, last_trajectory=last),
    )
    system, asked = react_prompt(pack, scene)
    assert (pack.remember in asked.content) == bool(advice)
    assert (pack.last_attempt in asked.content) == (last is not None)
    assert asked.content.endswith("Thought 2:")
    assert system.content.count("Question: ") == EXAMPLES[name]
