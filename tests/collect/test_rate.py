"""Tests of all of `collect` against a real server that behaves, misbehaves or dies; in the end all is rated."""

import asyncio
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from retroformer.config.file import Config
from retroformer.errors import BudgetExhausted, ConfigError, InfrastructureFailure, MissingInput, StoreError
from retroformer.method.rating import preferences, ratings
from retroformer.method.records import Outcome
from retroformer.run.store import open_store
from tests.support.endpoint import Behaviour, Endpoint, moody, prompt_of, reply_to
from tests.support.runs import HOUSEHOLD, ROOT, Facts, facts, open_config, write_config
from train.rl.live import live_returns

pytestmark = pytest.mark.usefixtures("workplace")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """Facts stored by a run without any fault."""
    folder = tmp_path_factory.mktemp("unbroken")
    with Endpoint() as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = open_config(write_config(folder, server.url))
        asyncio.run(rate_reflections(config))
        return facts(config)


def collect(config: Config) -> str:
    return asyncio.run(rate_reflections(config))


def test_failures_are_retried_without_advice_and_advice_more_than_once(tmp_path: Path) -> None:
    """The rule actor is deterministic, so its returns never differ and it repeats its failure without advice."""
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), "collect.unadvised=true", "collect.repeats=2")
        collect(config)
        made, asked = facts(config), len(server.requests)
        collect(config)
        assert len(server.requests) == asked, "nothing is missing"
        with closing(sqlite3.connect("runs/toy/experience.db")) as connection, connection:
            connection.execute("UPDATE trajectories SET episode_return = 1.0 WHERE trial = 1")
        with pytest.raises(StoreError, match="is damaged"):
            collect(config)
        with pytest.raises(StoreError, match="is damaged"), live_returns(config, []):
            pass
    blank = [stored.key for stored in made.reflections if not stored.reflection.text]
    assert blank
    assert {key.candidate for key in blank} == {2}
    assert asked == len(made.reflections) - len(blank)
    assert {key.repeat for key in made.trajectories} == {0, 1}
    for key in blank:
        assert made.trajectories[key].outcome is Outcome.FAILURE


def test_every_failure_is_reflected_upon_in_pairs_and_every_reflection_rated(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url))
        output = collect(config)
        made = facts(config)
        store = open_store(config.experiment)
        rated = list(ratings(store, "collect", records=True))
        store.close()
    first = [trajectory for key, trajectory in made.trajectories.items() if key.trial == 0]
    failed = sum(trajectory.outcome is Outcome.FAILURE for trajectory in first)
    by_trial = Counter(stored.key.trial for stored in made.reflections)
    assert len(first) == 6
    assert 1 <= failed < 6
    assert by_trial[1] == 2 * failed
    assert len(rated) == len(made.reflections) == len(server.requests)
    assert {reflection.rating for reflection in rated} <= {-1.0, 0.0, 1.0}
    assert f"{len(rated)} rated: " in output
    assert f"; {len(list(preferences(rated)))} pairs" in output
    assert f"{7 * len(rated)} prompt, {3 * len(rated)} completion in {len(rated)} calls" in output


def test_ratings_by_another_return_are_counted_beside_the_stored_ones_without_playing_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    places = [f"Look in {place} 1." for place in ("cabinet", "fridge", "drawer", "shelf", "countertop")]
    with Endpoint(lambda body: places[sum(map(ord, prompt_of(body))) % 5]) as server:
        # So few actions that the actor often has the thing in hand when an attempt ends.
        few = {"loop": HOUSEHOLD["loop"] | {"actions": 5}, "collect": {"tasks": 24, "candidates": 2}}
        path = write_config(tmp_path, server.url, HOUSEHOLD | few)
        stored = collect(open_config(path)).splitlines()
        made, asked = facts(open_config(path)), len(server.requests)
        caplog.clear()
        shaped = collect(open_config(path, "train.rated_by=shaped")).splitlines()
        assert (len(server.requests), facts(open_config(path))) == (asked, made)
    (anew,) = (line for line in shaped if line not in stored)
    assert [line for line in shaped if line != anew] == stored
    assert anew.startswith("rated anew   by shaped: ")
    # Progress tells apart what success does not: fewer ratings are 0.
    zeros = [int(re.findall(r"(\d+) zero", line)[0]) for line in (anew, stored[2])]
    assert zeros[0] < zeros[1]
    (helped,) = re.findall(r"(\d+) positive", anew)
    assert f"Only {helped} pieces of advice helped" in caplog.text, "SFT imitates advice by the return of the config"
    with pytest.raises(ConfigError, match=r"alfworld has no return 'em'"):
        collect(open_config(path, "train.rated_by=em", "run=other"))


def test_fewer_tasks_count_alone_but_all_advice_that_helped_is_there_to_imitate(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        collect(open_config(path))
        with closing(open_store(open_config(path).experiment)) as store:
            rated = list(ratings(store, "collect"))
        caplog.clear()
        fewer = collect(open_config(path, "collect.tasks=3"))
    assert 0 < int(re.findall(r"reflections  (\d+) rated", fewer)[0]) < len(rated)
    assert f"Only {sum(one.rating > 0 for one in rated)} pieces of advice helped" in caplog.text


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour.ERROR,
        *(
            pytest.param(mood, marks=pytest.mark.slow)
            for mood in (Behaviour.BUSY, Behaviour.GARBAGE, Behaviour.NO_COMPLETION, Behaviour.SILENT, Behaviour.CUT)
        ),
    ],
)
def test_a_reflector_that_misbehaves_leaves_tasks_unrated_and_a_later_run_completes_them(
    tmp_path: Path, behaviour: Behaviour, unbroken: Facts
) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        patience = 0.2 if behaviour is Behaviour.SILENT else 20.0
        config = open_config(write_config(tmp_path, server.url), f"reflector.endpoint.timeout_seconds={patience}")
        with pytest.raises(InfrastructureFailure, match="of 6 tasks are left unfinished"):
            collect(config)
        spoiled = facts(config)
        failed = sum(trajectory.outcome is Outcome.FAILURE for trajectory in spoiled.trajectories.values())
        assert all(key.trial == 0 for key in spoiled.trajectories)
        assert spoiled.reflections == []
        assert spoiled.invalid == 2 * failed
        server.behaviour = Behaviour.WELL
        collect(open_config(config.path))
        assert facts(config).same_as(unbroken)
        assert facts(config).invalid == spoiled.invalid


def test_a_reflector_that_misbehaves_now_and_then_is_asked_again_and_nothing_is_lost(
    tmp_path: Path, unbroken: Facts
) -> None:
    with Endpoint() as server:
        server.mood = moody
        config = open_config(write_config(tmp_path, server.url), "loop.retries=2")
        collect(config)
        made = facts(config)
    assert made.same_as(unbroken)
    assert made.invalid == len(server.requests) - len(unbroken.reflections) > 0


def test_a_failed_call_is_retried_as_often_as_the_config_allows(tmp_path: Path) -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.NO_CHOICES  # The client itself does not retry a response with status 200.
        config = open_config(write_config(tmp_path, server.url), "loop.retries=3", "collect.candidates=1")
        with pytest.raises(InfrastructureFailure):
            collect(config)
        failed = sum(trajectory.outcome is Outcome.FAILURE for trajectory in facts(config).trajectories.values())
        assert len(server.requests) == facts(config).invalid == 4 * failed


def test_a_reflector_that_thinks_first_makes_the_same_facts_as_its_answers_alone(
    tmp_path: Path, unbroken: Facts
) -> None:
    with Endpoint(lambda body: f"<think>Look in drawer 9 first.</think>\n\n{reply_to(body)}") as server:
        config = open_config(write_config(tmp_path, server.url))
        collect(config)
    assert facts(config).same_as(unbroken)


@pytest.mark.slow
def test_a_server_that_dies_in_the_middle_costs_nothing_that_was_stored(tmp_path: Path, unbroken: Facts) -> None:
    command = [sys.executable, "-m", "tests.support.endpoint", "5"]
    dying = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert dying.stdout is not None
    config = open_config(write_config(tmp_path, dying.stdout.readline().strip()), "loop.concurrency=1")
    with pytest.raises(InfrastructureFailure, match="left unfinished"):
        collect(config)
    assert dying.wait(timeout=300) == 1
    dying.stdout.close()
    before = facts(config)
    assert len(before.reflections) == 4
    with Endpoint() as server:
        collect(open_config(write_config(tmp_path, server.url), "loop.concurrency=1"))
        assert len(server.requests) == len(unbroken.reflections) - 4
    assert facts(config).same_as(unbroken)


@pytest.mark.parametrize("behaviour", [pytest.param(Behaviour.UNAUTHORIZED, marks=pytest.mark.slow), Behaviour.AWAY])
@pytest.mark.parametrize("reacts", [False, True])
def test_an_endpoint_that_refuses_every_call_gets_no_call_from_later_tasks(
    tmp_path: Path, behaviour: Behaviour, reacts: bool
) -> None:
    """Refuse the first calls of the actor, or of the reflector."""
    with Endpoint() as server:
        server.behaviour = behaviour
        words = (*REACT, f"actor.endpoint.base_url={server.url}") if reacts else ()
        config = open_config(write_config(tmp_path, server.url), *words, "collect.tasks=12", "loop.concurrency=2")
        with pytest.raises((InfrastructureFailure, MissingInput), match=r"answered (401|503)|asks for a pause"):
            collect(config)
        # Two tasks were in progress, each with two candidates.
        assert len(server.requests) <= 4
        server.behaviour = Behaviour.WELL
        assert "12 of 12 played" in collect(open_config(config.path, *words, "collect.tasks=12"))


REACT = ("actor.kind=react", "actor.endpoint.model=actor", "loop.trials=2", "collect.tasks=3", "loop.actions=4")


@pytest.mark.parametrize(
    "behaviour",
    [Behaviour.ERROR, *(pytest.param(mood, marks=pytest.mark.slow) for mood in (Behaviour.GARBAGE, Behaviour.CUT))],
)
def test_an_unreachable_actor_yields_no_return(tmp_path: Path, behaviour: Behaviour) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        config = open_config(write_config(tmp_path, server.url), *REACT, f"actor.endpoint.base_url={server.url}")
        with pytest.raises(MissingInput, match=r"None of 3 tasks could be played. The last cause: The model 'actor'"):
            collect(config)
        assert facts(config) == Facts({}, [], invalid=3)
        server.behaviour = Behaviour.WELL
        collect(config)
        made = facts(config)
    assert {(key.task_id, key.trial) for key in made.trajectories} == {
        (key.task_id, trial) for key in made.trajectories for trial in (0, 1)
    }
    assert all(trajectory.outcome is Outcome.FAILURE for trajectory in made.trajectories.values())
    assert made.counts == (3 * 3, 3 * 2)


@pytest.mark.slow
def test_an_actor_with_lost_connections_plays_the_same_attempts_in_the_end(tmp_path: Path) -> None:
    made = list[Facts]()
    for mood in (None, moody):
        with Endpoint() as server:
            server.mood = mood
            # An attempt of four steps starts again after each spoiled attempt, at most eight times.
            endpoint = (f"actor.endpoint.base_url={server.url}", "loop.retries=8")
            config = open_config(write_config(tmp_path, server.url), *REACT, *endpoint, f"run=try{len(made)}")
            collect(config)
            made.append(facts(config))
    whole, patched = made
    assert patched.same_as(whole)
    assert patched.invalid > 0


def test_a_spent_budget_stops_cleanly_and_a_larger_one_continues(tmp_path: Path, unbroken: Facts) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        with pytest.raises(BudgetExhausted, match=r"collect.tokens and run the same command again"):
            collect(open_config(path, "collect.tokens=40", "loop.concurrency=1"))
        stopped = facts(open_config(path))
        assert len(stopped.reflections) == 4  # Each call costs ten tokens.
        collect(open_config(path, "collect.tokens=100000"))
        assert len(server.requests) == len(unbroken.reflections)
    assert facts(open_config(path)).same_as(unbroken)


def test_facts_of_a_changed_config_never_mix_with_stored_ones(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        collect(open_config(path, "collect.tasks=1"))
        with pytest.raises(ConfigError, match=r"reflector.temperature=0.9, not 0.2"):
            collect(open_config(path, "reflector.temperature=0.2"))
        collect(open_config(path, "collect.tasks=2"))


def test_more_trials_continue_where_fewer_ended(tmp_path: Path, unbroken: Facts) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        collect(open_config(path, "loop.trials=2"))
        before = len(server.requests)
        collect(open_config(path))
        assert len(server.requests) == len(unbroken.reflections) > before
    assert facts(open_config(path)).same_as(unbroken)


def test_repeats_of_a_retry_are_rolled_out_and_rated_together(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = open_config(
            write_config(tmp_path, server.url), "collect.repeats=3", "loop.trials=2", "collect.tasks=3"
        )
        collect(config)
        store = open_store(config.experiment)
        rated = list(ratings(store, "collect", records=True))
        store.close()
        assert len(rated) == len(server.requests)
    assert all(len(reflection.returns_after) == 3 and reflection.standard_error == 0 for reflection in rated)


def test_a_split_with_too_few_tasks_ends_with_one_sentence(tmp_path: Path) -> None:
    config = open_config(write_config(tmp_path, "http://127.0.0.1:1/v1"), "round=1000000")
    with pytest.raises(MissingInput, match=r"has no tasks beyond the first 5999994: lower collect.tasks or round"):
        collect(config)
