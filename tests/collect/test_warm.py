"""Advice written by rule for the warm start: declared, apart from what is rated, and made once."""

import asyncio
from pathlib import Path

import pytest

from collect.warm import write_advice
from retroformer.actors.advice import read_advice
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.reading import read_goal, read_steps
from retroformer.errors import ConfigError, MissingInput
from retroformer.rating import rated_reflections
from retroformer.records import Outcome
from retroformer.store import open_store
from tests.support.runs import facts, open_page, write_page

NOBODY = "http://127.0.0.1:1/v1"


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_advice_is_written_about_failures_beyond_the_collected_tasks_and_asks_no_model(tmp_path: Path) -> None:
    page = open_page(write_page(tmp_path, NOBODY), "collect.written=6", "loop.concurrency=4")
    said = asyncio.run(write_advice(page))
    made = facts(page, "written")
    assert said.startswith(f"written advice: {len(made.reflections)} pieces in ")
    assert 6 <= len(made.reflections) <= 6 + 2 * 4
    collected = {f"{number:06d}" for number in range(6)}
    failures = {key.task_id for key, one in made.trajectories.items() if one.outcome is Outcome.FAILURE}
    assert {one.key.task_id for one in made.reflections} <= failures
    assert not {task_id[-6:] for task_id in failures} & collected


def test_written_advice_is_never_rated(tmp_path: Path) -> None:
    page = open_page(write_page(tmp_path, NOBODY), "collect.written=2", "loop.concurrency=2")
    asyncio.run(write_advice(page))
    store = open_store(page.experiment)
    assert list(rated_reflections(store, "written")) == []
    assert store.trajectories("collect") == {}
    store.close()


def test_writing_again_writes_nothing_new_and_more_goes_on(tmp_path: Path) -> None:
    path = write_page(tmp_path, NOBODY)
    words = ("collect.written=2", "loop.concurrency=2")
    asyncio.run(write_advice(open_page(path, *words)))
    before = facts(open_page(path), "written")
    asyncio.run(write_advice(open_page(path, *words)))
    assert facts(open_page(path), "written") == before
    asyncio.run(write_advice(open_page(path, f"collect.written={len(before.reflections) + 1}", words[1])))
    after = facts(open_page(path), "written")
    assert len(after.reflections) > len(before.reflections)
    assert before.trajectories.items() <= after.trajectories.items()


def test_a_page_that_asks_for_no_advice_is_told_how_to_ask(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set collect.written to the number of pieces"):
        asyncio.run(write_advice(open_page(write_page(tmp_path, NOBODY))))


def test_a_split_that_runs_out_of_tasks_says_how_far_it_came(tmp_path: Path) -> None:
    page = open_page(write_page(tmp_path, NOBODY), "collect.written=50", "collect.skip=1990", "loop.concurrency=4")
    with pytest.raises(MissingInput, match=r"ran out of tasks: \d+ of 50 pieces"):
        asyncio.run(write_advice(page))


def test_useful_lessons_name_places_not_searched_and_say_what_was_seen(tmp_path: Path) -> None:
    page = open_page(write_page(tmp_path, NOBODY), "collect.written=24", "collect.lesson=useful")
    asyncio.run(write_advice(page))
    made = facts(page, "written")
    failures = {key.task_id: one for key, one in made.trajectories.items()}
    texts = set()
    for one in made.reflections:
        failure, text = failures[one.key.task_id], one.reflection.text
        sentence, places = compact.read_opening(failure.opening)
        read = read_advice([text], places, read_goal(sentence))
        assert read.first or read.sightings
        assert not set(read.first) & set(read_steps(failure.steps).contents)
        texts.add(text)
    assert len(texts) > 12


def test_one_run_does_not_mix_lessons(tmp_path: Path) -> None:
    path = write_page(tmp_path, NOBODY)
    asyncio.run(write_advice(open_page(path, "collect.written=2")))
    with pytest.raises(ConfigError, match="lesson"):
        asyncio.run(write_advice(open_page(path, "collect.written=4", "collect.lesson=useful")))
