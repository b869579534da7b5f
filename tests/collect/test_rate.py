"""The whole of `collect` against a real server: it behaves, misbehaves, dies, and in the end all is rated."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from retroformer.assembly import Page
from retroformer.errors import BudgetExhausted, ConfigError, InfrastructureFailure, MissingInput
from retroformer.rating import preferences, rated_reflections
from retroformer.records import Outcome
from retroformer.store import open_store
from tests.support.endpoint import Behaviour, Endpoint, moody
from tests.support.runs import HOUSEHOLD, ROOT, Facts, facts, open_page, write_page


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Facts:
    """What a run without any fault holds in the end."""
    folder = tmp_path_factory.mktemp("unbroken")
    with Endpoint() as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        page = open_page(write_page(folder, server.url))
        asyncio.run(rate_reflections(page))
        return facts(page)


def collect(page: Page) -> str:
    return asyncio.run(rate_reflections(page))


def test_every_failure_is_reflected_upon_in_pairs_and_every_reflection_rated(tmp_path: Path) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url))
        said = collect(page)
        made = facts(page)
        store = open_store(page.experiment)
        rated = list(rated_reflections(store, "collect"))
        store.close()
    first = [one for key, one in made.trajectories.items() if key.trial == 0]
    failed = sum(one.outcome is Outcome.FAILURE for one in first)
    by_trial = Counter(one.key.trial for one in made.reflections)
    assert len(first) == 6
    assert 1 <= failed < 6
    assert by_trial[1] == 2 * failed
    assert len(rated) == len(made.reflections) == len(server.requests)
    assert {one.rating for one in rated} <= {-1.0, 0.0, 1.0}
    assert f"{len(rated)} rated: " in said
    assert f"; {len(list(preferences(rated)))} pairs" in said
    assert f"{7 * len(rated)} prompt, {3 * len(rated)} completion in {len(rated)} calls" in said


def test_a_second_run_finds_everything_done_and_asks_nobody(tmp_path: Path) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url))
        first = collect(page)
        asked = len(server.requests)
        assert collect(page) == first
        assert len(server.requests) == asked


@pytest.mark.parametrize(
    "behaviour",
    [
        Behaviour.ERROR,
        Behaviour.BUSY,
        Behaviour.GARBAGE,
        Behaviour.NO_COMPLETION,
        Behaviour.SILENT,
        Behaviour.CUT,
    ],
)
def test_a_reflector_that_misbehaves_leaves_tasks_unrated_and_a_later_run_completes_them(
    tmp_path: Path, behaviour: Behaviour, unbroken: Facts
) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        patience = 0.2 if behaviour is Behaviour.SILENT else 20.0
        page = open_page(write_page(tmp_path, server.url), f"reflector.endpoint.timeout_seconds={patience}")
        with pytest.raises(InfrastructureFailure, match="of 6 tasks are left unfinished"):
            collect(page)
        spoiled = facts(page)
        failed = sum(one.outcome is Outcome.FAILURE for one in spoiled.trajectories.values())
        assert all(key.trial == 0 for key in spoiled.trajectories)
        assert spoiled.reflections == []
        assert spoiled.invalid == 2 * failed
        server.behaviour = Behaviour.WELL
        collect(open_page(page.path))
        assert facts(page).same_as(unbroken)
        assert facts(page).invalid == spoiled.invalid


def test_a_reflector_that_misbehaves_now_and_then_is_asked_again_and_nothing_is_lost(
    tmp_path: Path, unbroken: Facts
) -> None:
    with Endpoint() as server:
        server.mood = moody
        page = open_page(write_page(tmp_path, server.url), "loop.retries=2")
        collect(page)
        made = facts(page)
    assert made.same_as(unbroken)
    assert made.invalid == len(server.requests) - len(unbroken.reflections) > 0


def test_a_spoiled_call_is_asked_again_as_often_as_the_page_says(tmp_path: Path) -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.NO_CHOICES  # The client itself does not retry an answer with status 200.
        page = open_page(write_page(tmp_path, server.url), "loop.retries=3", "collect.candidates=1")
        with pytest.raises(InfrastructureFailure):
            collect(page)
        failed = sum(one.outcome is Outcome.FAILURE for one in facts(page).trajectories.values())
        assert len(server.requests) == facts(page).invalid == 4 * failed


def test_a_server_that_dies_in_the_middle_costs_nothing_that_was_stored(tmp_path: Path, unbroken: Facts) -> None:
    command = [sys.executable, "-m", "tests.support.endpoint", "5"]
    dying = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert dying.stdout is not None
    page = open_page(write_page(tmp_path, dying.stdout.readline().strip()), "loop.concurrency=1")
    with pytest.raises(InfrastructureFailure, match="left unfinished"):
        collect(page)
    assert dying.wait(timeout=10) == 1
    dying.stdout.close()
    before = facts(page)
    assert len(before.reflections) == 4
    with Endpoint() as server:
        collect(open_page(write_page(tmp_path, server.url), "loop.concurrency=1"))
        assert len(server.requests) == len(unbroken.reflections) - 4
    assert facts(page).same_as(unbroken)


@pytest.mark.parametrize("behaviour", [Behaviour.UNAUTHORIZED, Behaviour.AWAY])
@pytest.mark.parametrize("reacts", [False, True])
def test_an_endpoint_that_refuses_every_call_is_not_asked_by_every_task(
    tmp_path: Path, behaviour: Behaviour, reacts: bool
) -> None:
    """An actor's first calls are refused, or a reflector's."""
    with Endpoint() as server:
        server.behaviour = behaviour
        words = (*REACT, f"actor.endpoint.base_url={server.url}") if reacts else ()
        page = open_page(write_page(tmp_path, server.url), *words, "collect.tasks=40", "loop.concurrency=2")
        with pytest.raises((InfrastructureFailure, MissingInput), match=r"answered (401|503)|asks for a pause"):
            collect(page)
        # Two tasks were in work, each with two candidates.
        assert len(server.requests) <= 4
        server.behaviour = Behaviour.WELL
        assert "40 of 40 played" in collect(open_page(page.path, *words, "collect.tasks=40"))


REACT = ("actor.kind=react", "actor.endpoint.model=actor", "loop.trials=2", "collect.tasks=3", "loop.actions=4")


@pytest.mark.parametrize("behaviour", [Behaviour.ERROR, Behaviour.GARBAGE, Behaviour.CUT])
def test_an_actor_that_cannot_be_asked_gives_no_return_at_all(tmp_path: Path, behaviour: Behaviour) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        page = open_page(write_page(tmp_path, server.url), *REACT, f"actor.endpoint.base_url={server.url}")
        with pytest.raises(MissingInput, match=r"None of 3 tasks could be played. The last cause: The model 'actor'"):
            collect(page)
        assert facts(page) == Facts({}, [], invalid=3)
        server.behaviour = Behaviour.WELL
        collect(page)
        made = facts(page)
    assert {(key.task_id, key.trial) for key in made.trajectories} == {
        (key.task_id, trial) for key in made.trajectories for trial in (0, 1)
    }
    assert all(one.outcome is Outcome.FAILURE for one in made.trajectories.values())
    assert made.counts == (3 * 3, 3 * 2)


def test_an_actor_that_is_cut_off_now_and_then_plays_the_same_attempts_in_the_end(tmp_path: Path) -> None:
    made = list[Facts]()
    for mood in (None, moody):
        with Endpoint() as server:
            server.mood = mood
            # An attempt of four steps begins again after each spoiled one: at most eight times.
            endpoint = (f"actor.endpoint.base_url={server.url}", "loop.retries=8")
            page = open_page(write_page(tmp_path, server.url), *REACT, *endpoint, f"run=try{len(made)}")
            collect(page)
            made.append(facts(page))
    whole, patched = made
    assert patched.same_as(whole)
    assert patched.invalid > 0


def test_a_spent_budget_stops_cleanly_and_a_larger_one_goes_on(tmp_path: Path, unbroken: Facts) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        with pytest.raises(BudgetExhausted, match=r"collect.tokens and run the same command again"):
            collect(open_page(path, "collect.tokens=40", "loop.concurrency=1"))
        stopped = facts(open_page(path))
        assert len(stopped.reflections) == 4  # Ten tokens each.
        collect(open_page(path, "collect.tokens=100000"))
        assert len(server.requests) == len(unbroken.reflections)
    assert facts(open_page(path)).same_as(unbroken)


def test_facts_of_a_changed_page_never_mix_with_those_that_are_there(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        collect(open_page(path, "collect.tasks=1"))
        with pytest.raises(ConfigError, match=r"reflector.temperature=0.9, not 0.2"):
            collect(open_page(path, "reflector.temperature=0.2"))
        collect(open_page(path, "collect.tasks=2"))


def test_more_trials_go_on_from_where_fewer_ended(tmp_path: Path, unbroken: Facts) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        collect(open_page(path, "loop.trials=2"))
        before = len(server.requests)
        collect(open_page(path))
        assert len(server.requests) == len(unbroken.reflections) > before
    assert facts(open_page(path)).same_as(unbroken)


def test_repeats_of_a_retry_are_rolled_out_and_rated_together(tmp_path: Path) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url), "collect.repeats=3", "loop.trials=2", "collect.tasks=3")
        collect(page)
        store = open_store(page.experiment)
        rated = list(rated_reflections(store, "collect"))
        store.close()
        assert len(rated) == len(server.requests)
    assert all(len(one.returns_after) == 3 and one.standard_error == 0 for one in rated)


def test_a_split_without_so_many_tasks_is_one_sentence(tmp_path: Path) -> None:
    page = open_page(write_page(tmp_path, "http://127.0.0.1:1/v1"), "collect.skip=1000000")
    with pytest.raises(MissingInput, match=r"has no tasks beyond the first 1000000: lower collect.skip"):
        collect(page)


def test_the_page_of_these_tests_is_the_one_that_is_described() -> None:
    assert HOUSEHOLD["loop"]["retries"] == 0
