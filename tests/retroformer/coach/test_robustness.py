"""Tests that an agent is never made worse by its own errors, the reflector, the store, or the moment of closing."""

import asyncio
import functools
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import retroformer as rf
from eval.play.preflight import refuse_trained_tasks
from retroformer.errors import ConfigError, EndpointFailure, InfrastructureFailure, MissingInput, StoreError
from retroformer.method.records import Outcome, Task
from retroformer.run.provenance import Provenance, ServedModel
from retroformer.run.store import Store
from tests.support.codes import enter, facts, opens
from tests.support.endpoint import Behaviour, Endpoint


def test_an_error_of_the_first_attempt_is_raised_and_counted_as_invalid(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        raise rf.Invalid("The bank is closed.")

    with pytest.raises(rf.Invalid, match=r"The bank is closed\."):
        agent("Open 1")
    attempts, ratings, invalid = facts(url)
    assert (attempts, ratings, invalid) == ({}, [], ["Invalid: The bank is closed."])


def test_an_error_without_a_text_is_raised_as_it_is(coach: rf.Reflector, url: str) -> None:
    class Speechless(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        raise Speechless

    with pytest.raises(Speechless):
        agent("Open 1")
    assert facts(url)[2] == ["Speechless"]


def test_an_error_of_a_retry_leaves_the_result_of_the_attempt_before(
    coach: rf.Reflector, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        if advice:
            raise KeyError("key")
        return enter("1", advice)

    assert agent("Open 1") == "0000 fails; the note says 1"
    assert "crashed; the best one counts" in caplog.text
    assert facts(url)[2] == ["KeyError: 'key'"]


@pytest.mark.parametrize("behaviour", [Behaviour.UNAUTHORIZED, Behaviour.REFUSED, Behaviour.GARBAGE])
def test_a_reflector_that_does_not_answer_costs_only_the_retries(
    coach: rf.Reflector, server: Endpoint, url: str, behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        return enter("7", advice)

    server.behaviour = behaviour
    assert agent("Open 7") == "0000 fails; the note says 7"
    assert "is not retried: The model 'reflector' at" in caplog.text
    server.behaviour = Behaviour.WELL
    assert agent("Open 7") == "7 opens it"
    attempts, ratings, invalid = facts(url)
    assert (len(attempts), ratings, len(invalid)) == (3, [1.0], 1)


def test_an_attempt_that_is_too_long_to_store_gets_no_advice(
    coach: rf.Reflector, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    long = "x" * (65 << 20)
    agent = coach.improve(trials=3, score=opens)(lambda task, advice="": long)
    assert agent("Open 1") == long
    assert "is not retried: A fact of 65 MiB is too long" in caplog.text
    assert facts(url) == ({}, [], ["A fact of 65 MiB is too long: at most 64 MiB."])
    advice = coach.advise("Open 1", "0 fails; the note says 1")
    with pytest.raises(InfrastructureFailure, match="A fact of 65 MiB is too long: at most 64 MiB"):
        coach.outcome(advice.run, 1.0, long)
    coach.outcome(advice.run, 1.0, "1 opens it")
    assert facts(url)[1] == [1.0]


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("fault", [Behaviour.SILENT, Behaviour.TRICKLE, "no server", "locked store"])
def test_an_agent_waits_no_longer_than_the_time_limit_after_an_attempt(
    server: Endpoint, url: str, tmp_path: Path, fault: str, asynchronous: bool
) -> None:
    def agent(task: str, advice: str = "") -> str:
        return enter("7", advice)

    async def agent_later(task: str, advice: str = "") -> str:
        return agent(task, advice)

    address = "http://127.0.0.1:9/v1" if fault == "no server" else server.url
    server.behaviour = Behaviour(fault) if isinstance(fault, Behaviour) else Behaviour.WELL
    coach = rf.Reflector(address, store=url, unadvised=0.0, timeout_seconds=1.0)
    with closing(sqlite3.connect(tmp_path / "mine.db")) as other:
        if fault == "locked store":
            other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        if asynchronous:
            said = asyncio.run(coach.improve(trials=3, score=opens)(agent_later)("Open 7"))
        else:
            said = coach.improve(trials=3, score=opens)(agent)("Open 7")
        # A locked store would be waited for half a minute, as would be a server that says nothing.
        assert time.monotonic() - began < 8
    assert said == "0000 fails; the note says 7"
    coach.close()


@pytest.mark.parametrize(
    "returned",
    [
        {"output": "x", "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}},
        {"output": {"a": 1}},
        {"answer": "x", "steps": 3},
        ("answer", 0.3),
        ["a", "b"],
        AIMessage("x"),
        None,
    ],
    ids=str,
)
def test_whatever_a_working_agent_returns_is_returned_and_rated_by_the_score(
    coach: rf.Reflector, url: str, returned: Any
) -> None:
    agent = coach.improve(trials=2, score=lambda task, answer: 1.0000000000000002)(lambda task, advice="": returned)
    assert agent("Anything") is returned
    assert [attempt.outcome for attempt in facts(url)[0].values()] == [Outcome.SUCCESS]


def test_a_score_that_crashes_costs_neither_the_answer_nor_a_retry(
    coach: rf.Reflector, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    agent = coach.improve(trials=2, score=lambda task, answer: 1 / 0)(lambda task, advice="": "good")
    assert agent("Anything") == "good"
    assert facts(url)[::2] == ({}, ["ZeroDivisionError: division by zero"])
    assert "could not be rated; the best one counts" in caplog.text


class Unprintable:
    """Object whose author did not think of text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


TASKS = [
    "half \ud800",
    {("a", 1): 2},
    {"id": "\0"},
    object(),
    Unprintable(),
    {"a": Unprintable()},
    {"id": Unprintable()},
]


@pytest.mark.parametrize("task", TASKS, ids=range(len(TASKS)))
def test_a_task_of_any_kind_is_attempted(coach: rf.Reflector, url: str, task: Any) -> None:
    assert coach.improve(trials=1, score=opens)(lambda task, advice="": "7 opens it")(task) == "7 opens it"
    assert len(facts(url)[0]) == 1


def test_an_agent_goes_on_without_advice_if_the_store_cannot_be_opened(
    server: Endpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stores").mkdir()
    coach = rf.Reflector(server.url, store=f"sqlite:///{tmp_path}/stores/mine.db")
    coach.close()
    shutil.rmtree(tmp_path / "stores")
    (tmp_path / "stores").touch()
    assert coach.improve(trials=3, score=opens)(lambda task, advice="": "0 fails")("Open 7") == "0 fails"
    assert "The agent runs without advice" in caplog.text


@pytest.mark.parametrize("waits", [False, True], ids=["beside the attempt", "waited for by the attempt"])
def test_closing_in_another_thread_lets_the_calls_in_progress_end(server: Endpoint, url: str, waits: bool) -> None:
    coach = rf.Reflector(server.url, store=url, unadvised=0.0)
    begun, go_on = threading.Event(), threading.Event()

    with ThreadPoolExecutor(2) as pool:

        @coach.improve(trials=2, score=opens)
        def agent(task: str, advice: str = "") -> str:
            begun.set()
            if waits:
                pool.submit(coach.close).result(60)
            go_on.wait(60)
            return enter(task, advice)

        said = pool.submit(agent, "5")
        assert begun.wait(60)
        coach.close()
        go_on.set()
        assert said.result(60) == "5 opens it"
    assert facts(url)[1] == [1.0]


def test_a_key_that_an_agents_error_shows_is_not_stored(
    server: Endpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-proj-AAAABBBBCCCCDDDDEEEE1234567890"
    monkeypatch.setenv("MY_KEY", key)
    with rf.Reflector(server.url, store=url, api_key_env="MY_KEY", unadvised=0.0) as coach:

        @coach.improve(trials=1, score=opens)
        def agent(task: str, advice: str = "") -> str:
            raise RuntimeError(f"401 Incorrect API key: {key}")

        with pytest.raises(RuntimeError):
            agent("Open 1")
    (cause,) = facts(url)[2]
    assert "401 Incorrect API key" in cause
    assert key not in cause


def test_a_seed_of_the_agents_own_does_not_decide_who_is_advised(server: Endpoint, url: str) -> None:
    with rf.Reflector(server.url, store=url, unadvised=0.5) as coach:

        @coach.improve(trials=1, score=opens)
        def agent(task: str, advice: str = "") -> str:
            random.seed(0)
            return "0 fails"

        for _ in range(60):
            agent("Open 1")
    # Half of 60, by chance: more than 10 is five standard deviations.
    assert min(len(facts(url, arm)[0]) for arm in ("collect", "unadvised")) > 10


@pytest.mark.parametrize("name", ["refund-2", "owner/repo@0123456789ab"])
def test_tasks_that_an_agent_lived_through_are_not_evaluated_on(coach: rf.Reflector, url: str, name: str) -> None:
    coach.improve(trials=2, score=lambda task, answer: 0.0)(lambda task, advice="": "x")({"id": name})
    tasks = [Task(id=other, environment="agent", split="held_out") for other in (name, "owner/repo", "refund-3")]
    with (
        closing(Store(url, "agent")) as store,
        pytest.raises(ConfigError, match=f"1 of 3 evaluation tasks were used for training, such as '{name}'"),
    ):
        refuse_trained_tasks(store, tasks)


def test_an_asynchronous_object_is_awaited_and_a_hidden_coroutine_refused(coach: rf.Reflector) -> None:
    class Agent:
        async def __call__(self, task: str, advice: str = "") -> str:
            return enter(task, advice)

    improved: Any = coach.improve(trials=2, score=opens)(Agent())
    assert asyncio.run(improved("7")) == "7 opens it"
    with pytest.raises(ConfigError, match="make it an `async def` function"):
        coach.improve(trials=2, score=opens)(lambda task, advice="": Agent()(task, advice))("7")


def test_an_agent_whose_answer_can_be_read_only_once_is_refused(coach: rf.Reflector) -> None:
    def pieces(task: str, advice: str = "") -> Iterator[str]:
        yield "opens it"

    async def later(task: str, advice: str = "") -> AsyncIterator[str]:
        yield "opens it"

    for agent in (pieces, later):
        with pytest.raises(ConfigError, match="is a generator, but only a complete answer can be rated"):
            coach.improve(score=opens)(agent)
    with pytest.raises(ConfigError, match="returned a generator, which can be read only once: return a list"):
        coach.improve(score=opens)(lambda task, advice="": pieces(task))("Open 7")


def test_a_decorator_in_the_wrong_place_and_an_asynchronous_score_are_refused(coach: rf.Reflector) -> None:
    async def score(task: str, said: str) -> float:
        return 1.0

    with pytest.raises(ConfigError, match="of type classmethod: decorate a function, and put @improve below"):
        coach.improve(score=opens)(classmethod(lambda cls, task, advice="": "opens it"))  # type: ignore[type-var]
    with pytest.raises(ConfigError, match=r"opens has no parameter `advice`: .* passed by name, as `score=`"):
        coach.improve(opens)

    @functools.wraps(opens)
    def wrapper(task: str, advice: str = "") -> str:
        return "opens it"

    assert coach.improve(score=opens)(wrapper)("Open 7") == "opens it"
    with pytest.raises(ConfigError, match="The score function is async"):
        coach.improve(score=score)(lambda task, advice="": "opens it")


def test_advice_names_its_adapter_if_the_server_says_it_to_this_key(
    server: Endpoint, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ServedModel(base_sha256="b" * 64, adapter_sha256="a" * 64, chat_template_sha256="c" * 64)
    server.provenance = Provenance(models={"reflector": model}, dtype="float32", versions={}).model_dump_json()
    server.key = "right"
    for key, code in (("right", "7"), ("wrong", "8")):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        with rf.Reflector(server.url, store=url, unadvised=0.0) as coach:
            assert coach.improve(trials=2, score=opens)(lambda task, advice="": enter(task, advice))(code)
    with closing(Store(url, "agent")) as store:
        named = {
            stored.reflection.text: stored.reflection.author.adapter_sha256
            for stored in store.stream_reflections("collect")
        }
    assert named == {"Enter 7.": "a" * 64, "Enter 8.": None}


def test_what_cannot_work_is_refused_at_once(server: Endpoint, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unadvised is 2: it must be a share"):
        rf.Reflector(server.url, store=url, unadvised=2)
    with pytest.raises(MissingInput, match="No prompt pack 'mine' for agent"):
        rf.Reflector(server.url, store=url, prompts="mine")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        rf.Reflector(server.url, store=f"sqlite:///{tmp_path}/file/mine.db")
    with rf.Reflector(server.url, store=url) as coach:
        with pytest.raises(ConfigError, match="trials is 0: it must be at least 1"):
            coach.improve(trials=0)
        server.behaviour = Behaviour.UNAUTHORIZED
        with pytest.raises(EndpointFailure):
            coach.advise("Open 9", "0 fails")
