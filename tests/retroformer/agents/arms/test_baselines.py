"""Tests of the baselines: no advice, phrases, and advice written for another task."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from retroformer.agents.arms.baselines import (
    PHRASES,
    UNSUITABLE,
    DocumentArm,
    NoReflector,
    PhraseArm,
    PlaceboReflector,
)
from retroformer.errors import MissingInput
from retroformer.method.records import Key, Memory, Usage
from retroformer.run.store import StoredReflection
from tests.support.characters import advice, attempt_at, task

NO_PARTS: Any = None
"""What arms are built from that need nothing of an experiment."""


def written(task_id: str, text: str, trial: int = 1) -> StoredReflection:
    return StoredReflection(Key(arm="eval/trained", task_id=task_id, trial=trial), 0, advice(text))


DEALT = [written(name, f"advice about {name}") for name in "abcdef"]


def deal(reflections: list[StoredReflection], about: str, seed: int) -> str:
    reflector = PlaceboReflector("eval/trained", reflections)
    return asyncio.run(reflector.reflect(attempt_at(task(about)), Memory(), seed)).text


def test_no_reflector_writes_nothing_and_costs_nothing() -> None:
    reflection = asyncio.run(NoReflector().reflect(attempt_at(), Memory(), 0))
    assert (reflection.text, reflection.usage) == ("", Usage())
    assert Memory().remember(reflection.text, 3) == Memory()


def test_a_phrase_is_drawn_by_task_and_seed_for_any_environment() -> None:
    def phrases(name: str) -> list[str]:
        reflector = PhraseArm().build(NO_PARTS)
        return [asyncio.run(reflector.reflect(attempt_at(task(name)), Memory(), n)).text for n in range(200)]

    assert set(phrases("a")) == set(PHRASES)
    assert phrases("a") == phrases("a")
    assert phrases("a") != phrases("b")


def test_a_document_is_remembered_once(tmp_path: Path) -> None:
    (tmp_path / "guide.md").write_text("Search every drawer.\n")
    reflector, memory = DocumentArm(file=str(tmp_path / "guide.md")).build(NO_PARTS), Memory()
    for _ in range(2):
        memory = memory.remember(asyncio.run(reflector.reflect(attempt_at(), memory, 0)).text, 3)
    assert memory.reflections == ("Search every drawer.",)


@pytest.mark.parametrize("about", "abcdef")
def test_the_placebo_never_gives_advice_about_the_same_task(about: str) -> None:
    dealt = {deal(DEALT, about, seed) for seed in range(200)}
    assert dealt == {f"advice about {name}" for name in "abcdef" if name != about}


def test_the_placebo_gives_the_same_advice_for_the_same_seed() -> None:
    assert [deal(DEALT, "a", seed) for seed in range(20)] == [deal(DEALT, "a", seed) for seed in range(20)]


def test_the_placebo_gives_no_blank_advice() -> None:
    assert {deal([*DEALT[:2], written("z", "")], "a", seed) for seed in range(50)} == {"advice about b"}


def test_the_placebo_costs_nothing_and_records_the_author() -> None:
    reflection = asyncio.run(PlaceboReflector("eval/trained", DEALT).reflect(attempt_at(task("a")), Memory(), 1))
    assert reflection.usage == Usage()
    assert reflection.author.model == "teacher"


def test_without_advice_on_other_tasks_the_placebo_is_refused_with_instructions() -> None:
    with pytest.raises(MissingInput, match=r"arm 'eval/trained' wrote about other tasks.*eval.tasks=N"):
        deal([written("a", "advice about a")], "a", 0)


def test_the_placebo_gives_advice_written_for_the_same_trial_if_there_is_any() -> None:
    reflector = PlaceboReflector(
        "eval/trained", [*DEALT, written("b", "again", trial=2), written("c", "more", trial=2)]
    )

    def dealt(trials: int) -> set[str]:
        memory = Memory()
        for _ in range(trials - 1):
            memory = memory.remember("Look elsewhere.", 3, attempt_at(task("a")))
        return {asyncio.run(reflector.reflect(attempt_at(task("a")), memory, seed)).text for seed in range(200)}

    assert dealt(1) == {f"advice about {name}" for name in "bcdef"}
    assert dealt(2) == {"again", "more"}
    assert dealt(3) == dealt(1) | dealt(2)


def test_advice_that_does_not_suit_is_marked_where_a_placebo_has_no_other() -> None:
    reflector = PlaceboReflector(
        "eval/trained", DEALT, lambda failure, stored: failure.task.id + stored.key.task_id == "ab"
    )
    suitable, other = (asyncio.run(reflector.reflect(attempt_at(task(name)), Memory(), 1)) for name in "ab")
    assert (suitable.text, suitable.author) == ("advice about b", DEALT[0].reflection.author)
    assert other.author == DEALT[0].reflection.author.model_copy(update={"endpoint": UNSUITABLE})
