"""Advice written by rule for the warm start is declared, kept apart from rated reflections, and written once."""

import asyncio
from pathlib import Path

import pytest

from collect.warm import write_advice
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.attempt_reader import read_goal, read_steps
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.ancestors import ancestors, key_before
from retroformer.method.rating import ratings
from retroformer.method.records import Outcome
from retroformer.run.store import open_store
from tests.support.runs import facts, open_config, write_config
from train.data.inputs import pairs, positive_reflections, rated

pytestmark = pytest.mark.usefixtures("workplace")

NOBODY = "http://127.0.0.1:1/v1"


def test_advice_is_written_about_failures_beyond_the_collected_tasks_and_asks_no_model(tmp_path: Path) -> None:
    config = open_config(write_config(tmp_path, NOBODY), "collect.written=6", "loop.concurrency=4")
    output = asyncio.run(write_advice(config))
    made = facts(config, "written")
    assert output.startswith(f"written advice: {len(made.reflections)} pieces in ")
    assert 6 <= len(made.reflections) <= 6 + 2 * 4
    collected = {f"{number:06d}" for number in range(6)}
    failures = {key.task_id for key, trajectory in made.trajectories.items() if trajectory.outcome is Outcome.FAILURE}
    assert {stored.key.task_id for stored in made.reflections} <= failures
    assert not {task_id[-6:] for task_id in failures} & collected


def test_written_advice_is_never_trained_on_as_rated(tmp_path: Path) -> None:
    config = open_config(write_config(tmp_path, NOBODY), "collect.written=12", "loop.concurrency=2")
    asyncio.run(write_advice(config))
    store = open_store(config.experiment)
    assert list(ratings(store, "written", records=True)), "retries with written advice were played"
    assert dict(store.stream_trajectories("collect")) == {}
    store.close()
    for read in (positive_reflections, rated, pairs):
        with pytest.raises(MissingInput, match="No rated reflections"):
            read(config.experiment)


def test_advice_is_written_about_the_failures_of_every_trial(tmp_path: Path) -> None:
    config = open_config(write_config(tmp_path, NOBODY), "collect.written=60", "loop.trials=3", "collect.lesson=useful")
    asyncio.run(write_advice(config))
    made = facts(config, "written")
    advice = {stored.key: stored for stored in made.reflections}
    assert {key.trial for key in advice} == {1, 2}
    for key, stored in advice.items():
        failed = made.trajectories[key_before(stored)]
        assert failed.outcome is Outcome.FAILURE
        if key.trial == 2:
            (first,) = ancestors(key_before(stored), made.trajectories, advice)
            assert f"Advice: {first.advice}\nSearched then: " in stored.reflection.prompt[1].content


def test_a_second_run_writes_no_new_advice_and_a_larger_target_continues(tmp_path: Path) -> None:
    path = write_config(tmp_path, NOBODY)
    words = ("collect.written=2", "loop.concurrency=2")
    asyncio.run(write_advice(open_config(path, *words)))
    before = facts(open_config(path), "written")
    asyncio.run(write_advice(open_config(path, *words)))
    assert facts(open_config(path), "written") == before
    asyncio.run(write_advice(open_config(path, f"collect.written={len(before.reflections) + 1}", words[1])))
    after = facts(open_config(path), "written")
    assert len(after.reflections) > len(before.reflections)
    assert before.trajectories.items() <= after.trajectories.items()


def test_a_config_that_requests_no_advice_gets_an_error_that_says_how_to_request_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set collect.written to the number of pieces"):
        asyncio.run(write_advice(open_config(write_config(tmp_path, NOBODY))))


def test_a_split_that_runs_out_of_tasks_reports_how_much_was_written(tmp_path: Path) -> None:
    config = open_config(
        write_config(tmp_path, NOBODY), "collect.written=50", "collect.tasks=3990", "loop.concurrency=4"
    )
    with pytest.raises(MissingInput, match=r"ran out of tasks: \d+ of 50 pieces"):
        asyncio.run(write_advice(config))


def test_useful_lessons_name_unsearched_places_and_sightings(tmp_path: Path) -> None:
    config = open_config(write_config(tmp_path, NOBODY), "collect.written=24", "collect.lesson=useful")
    asyncio.run(write_advice(config))
    made = facts(config, "written")
    advice, texts = {stored.key: stored for stored in made.reflections}, set()
    for stored in made.reflections:
        failure, text = made.trajectories[key_before(stored)], stored.reflection.text
        sentence, places = compact.read_opening(failure.opening)
        read = read_advice([text], places, read_goal(sentence))
        assert read.first or read.sightings
        ways = (failure, *(way.attempt for way in ancestors(key_before(stored), made.trajectories, advice)))
        assert not set(read.first) & {place for way in ways for place in read_steps(way.steps).contents}
        texts.add(text)
    assert len(texts) > 12


def test_one_run_does_not_mix_lessons(tmp_path: Path) -> None:
    path = write_config(tmp_path, NOBODY)
    asyncio.run(write_advice(open_config(path, "collect.written=2")))
    with pytest.raises(ConfigError, match="lesson"):
        asyncio.run(write_advice(open_config(path, "collect.written=4", "collect.lesson=useful")))
