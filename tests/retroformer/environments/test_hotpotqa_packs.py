"""The examples of the prompt packs are attempts that really went so."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from retroformer.environments.hotpotqa import HotpotqaTaskset, taskset
from retroformer.environments.hotpotqa.data import question_key
from retroformer.environments.sections import Hotpotqa
from retroformer.prompts import Pack, load_pack, react_prompt
from retroformer.protocols import Scene
from retroformer.records import Memory, Step, Task, Trajectory
from tests.support.characters import attempt_at
from tests.support.hotpotqa import SHARED, index_of_the_data

SETTINGS = {
    "default": {"max_steps": 6},
    "cot": {"max_steps": 1},
    "cot-context": {"max_steps": 1, "context": True},
}
"""The knobs of the environment that each pack is for."""
EXAMPLES = {"default": 6, "cot": 6, "cot-context": 3}
"""As many as the published agents have (ReAct; CoT; CoT with context)."""

_LINE = re.compile(r"^(Thought|Action|Observation) (\d+): ")


class Told(NamedTuple):
    """An example, taken apart."""

    opening: str
    thoughts: tuple[str, ...]
    actions: tuple[str, ...]
    observations: tuple[str, ...]


def taken_apart(example: str) -> Told:
    opening = list[str]()
    told: dict[str, list[str]] = {"Thought": [], "Action": [], "Observation": []}
    for line in example.rstrip("\n").split("\n"):
        if label := _LINE.match(line):
            told[label[1]].append(line[label.end() :])
            assert int(label[2]) == len(told[label[1]])
        else:
            assert not told["Thought"], f"a line without a label: {line}"
            opening.append(line)
    return Told("\n".join(opening), *(tuple(texts) for texts in told.values()))


def question_of(told: Told) -> str:
    return told.opening.rpartition("Question: ")[2]


@pytest.fixture
def real(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = index_of_the_data(tmp_path_factory.getbasetemp())
    monkeypatch.setenv("RETROFORMER_CACHE", str(cache))
    return cache


def questions(name: str, split: str = "all") -> HotpotqaTaskset:
    return taskset(Hotpotqa.model_validate({"data": SHARED, "split": split} | SETTINGS[name]))


def examples_of(name: str) -> list[Told]:
    return [taken_apart(example) for example in load_pack(name, "hotpotqa").examples]


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("real")
def test_the_environment_answers_every_example_as_the_example_says(name: str) -> None:
    source = questions(name)
    ids = source.ids_by_question()
    assert len(examples_of(name)) == EXAMPLES[name]
    for told in examples_of(name):
        environment = source.environment()
        opening = environment.reset(Task(id=ids[question_key(question_of(told))], environment="hotpotqa", split="all"))
        assert opening.observation == told.opening
        *before, last = [environment.step(action) for action in told.actions]
        assert tuple(answer.observation for answer in before) == told.observations
        assert not any(answer.over for answer in before)
        assert (last.terminated, last.success, last.reward) == (True, True, 1.0)
        assert len(told.thoughts) == len(told.actions)


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.usefixtures("real")
def test_no_example_is_a_question_of_the_validation_split(name: str) -> None:
    source = questions(name, split="validation_100")
    held_out = {task.id for task in source.tasks()}
    shown = {source.ids_by_question()[question_key(question_of(told))] for told in examples_of(name)}
    assert len(held_out) == 100
    assert held_out.isdisjoint(shown)


@pytest.mark.parametrize("name", ["cot", "cot-context"])
def test_chain_of_thought_does_nothing_but_answer(name: str) -> None:
    pack = load_pack(name, "hotpotqa")
    assert all(action.startswith("Finish[") for action in pack.actions)
    assert len(pack.actions) == EXAMPLES[name]
    assert "Search" not in pack.act + pack.reflect


def test_chain_of_thought_with_context_shows_paragraphs_where_the_agent_will_see_them() -> None:
    for told in examples_of("cot-context"):
        assert told.opening.startswith("Context: ")
        assert told.opening.count("\n") == 2, "two paragraphs, then the question"
    assert all(told.opening.startswith("Question: ") for told in examples_of("cot"))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("advice", [(), ("Think of the river first.",)])
@pytest.mark.parametrize("last", [None, attempt_at()])
def test_every_memory_of_the_papers_fits_every_pack(
    name: str, advice: tuple[str, ...], last: Trajectory | None
) -> None:
    pack: Pack = load_pack(name, "hotpotqa")
    scene = Scene(
        task=Task(id="b", environment="hotpotqa", split="all"),
        opening="Question: Where?",
        steps=(Step(thought="Hm.", action="Finish[here]", observation="Answer is INCORRECT"),),
        memory=Memory(reflections=advice, last_trajectory=last),
    )
    told, asked = react_prompt(pack, scene)
    assert (pack.remember in asked.content) == bool(advice)
    assert (pack.last_attempt in asked.content) == (last is not None)
    assert asked.content.endswith("Thought 2:")
    assert told.content.count("Question: ") == EXAMPLES[name]
