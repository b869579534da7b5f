"""Tests of the reflector in a user's program, against a real server and a real store."""

import asyncio
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

import retroformer as rf
from eval.play.overlap import refuse_trained_tasks
from retroformer.errors import ConfigError, EndpointFailure, MissingInput, StoreError
from retroformer.experiment.file import load
from retroformer.rating import rated_reflections
from retroformer.records import Key, Outcome, Step, Task
from retroformer.store import Store
from tests.support.codes import advise, enter, opens
from tests.support.endpoint import Behaviour, Endpoint, prompt_of
from tests.support.runs import ROOT
from train.data.inputs import rated


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(advise) as opened:
        yield opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mine.db"


@pytest.fixture
def coach(server: Endpoint, url: str) -> Iterator[rf.Reflector]:
    with rf.Reflector(server.url, store=url, unadvised=0.0) as opened:
        yield opened


def facts(url: str, arm: str = "collect") -> tuple[dict[Key, Any], list[float], list[str]]:
    """Return the attempts, the ratings and the causes of invalid attempts."""
    with closing(Store(url, "agent")) as store:
        ratings = [reflection.rating for reflection in rated_reflections(store, arm)]
        return store.trajectories(arm), ratings, store.invalid_causes(arm)


def test_an_agent_succeeds_with_advice_and_its_attempts_are_rated(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        return enter(task.split()[-1], advice)

    assert agent("Open 4711") == "4711 opens it"
    attempts, ratings, invalid = facts(url)
    assert [(key.trial, attempt.outcome, attempt.episode_return) for key, attempt in attempts.items()] == [
        (0, Outcome.FAILURE, 0.0),
        (1, Outcome.SUCCESS, 1.0),
    ]
    assert (ratings, invalid) == ([1.0], [])
    (first, _) = attempts.values()
    assert (first.opening, first.steps) == (
        "Open 4711",
        (Step(action="0000 fails; the note says 4711", observation=""),),
    )
    assert coach.gains() == (1.0, 1, 0.0, 0)


def test_an_asynchronous_agent_is_improved_in_its_own_event_loop(coach: rf.Reflector, url: str) -> None:
    loops = set()

    @coach.improve(trials=2, score=opens)
    async def agent(task: str, advice: str = "") -> str:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return enter(task.split()[-1], advice)

    async def all_at_once() -> list[str]:
        return await asyncio.gather(*(agent(f"Open {code}") for code in range(1000, 1020)))

    assert asyncio.run(all_at_once()) == [f"{code} opens it" for code in range(1000, 1020)]
    assert len(loops) == 1
    assert facts(url)[1] == [1.0] * 20


def test_a_retry_reads_all_earlier_advice(coach: rf.Reflector, server: Endpoint) -> None:
    read = []

    @coach.improve(trials=4, score=lambda task, said: 0.0)
    def agent(task: str, advice: str = "") -> str:
        read.append(advice)
        return f"{len(read)} fails; the note says {len(read)}"

    assert agent("Count") == "1 fails; the note says 1"
    assert read == ["", "Enter 1.", "Enter 1.\nEnter 2.", "Enter 1.\nEnter 2.\nEnter 3."]
    assert "Advice that this attempt was given:\n- Enter 1." in prompt_of(server.requests[1])


def test_the_best_attempt_is_returned_even_if_advice_makes_the_retries_worse(coach: rf.Reflector, url: str) -> None:
    scores = iter([0.5, 0.75, 0.25])

    @coach.improve(trials=3)
    def agent(task: str, advice: str = "") -> dict[str, Any]:
        return {"output": advice, "score": next(scores)}

    assert agent("Anything")["score"] == 0.75
    assert facts(url)[1] == [0.25, -0.5]


def test_a_share_of_the_tasks_is_retried_without_advice_in_an_arm_of_its_own(server: Endpoint, url: str) -> None:
    with rf.Reflector(server.url, store=url, unadvised=0.5) as coach:

        @coach.improve(trials=2, score=opens)
        def agent(task: str, advice: str = "") -> str:
            return enter(task.split()[-1], advice)

        said = [agent(f"Open {code}") for code in range(1000, 1100)]
        gains = coach.gains()
    solved = sum(text.endswith("opens it") for text in said)
    # Half of 100, by chance: 25 to 75 is five standard deviations.
    assert 25 < solved < 75
    assert gains == (1.0, solved, 0.0, 100 - solved)
    assert len(server.requests) == len(facts(url)[1]) == solved


def test_an_error_of_the_first_attempt_is_raised_and_counted_as_invalid(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=3, score=opens)
    def agent(task: str, advice: str = "") -> str:
        raise rf.Invalid("The bank is closed.")

    with pytest.raises(rf.Invalid, match=r"The bank is closed\."):
        agent("Open 1")
    attempts, ratings, invalid = facts(url)
    assert (attempts, ratings, invalid) == ({}, [], ["Invalid: The bank is closed."])


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


@pytest.mark.parametrize("task", ["half \ud800", {("a", 1): 2}, {"id": "\0"}, object()], ids=range(4))
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
    assert "An agent goes on without advice" in caplog.text


def test_closing_waits_for_the_calls_in_progress(server: Endpoint, url: str) -> None:
    coach = rf.Reflector(server.url, store=url, unadvised=0.0)
    begun, go_on = threading.Event(), threading.Event()

    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        begun.set()
        go_on.wait(60)
        return enter(task, advice)

    with ThreadPoolExecutor(2) as pool:
        said = pool.submit(agent, "5")
        assert begun.wait(60)
        closed = pool.submit(coach.close)
        go_on.set()
        assert said.result(60) == "5 opens it"
        closed.result(60)
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


def test_tasks_that_an_agent_lived_through_are_not_evaluated_on(coach: rf.Reflector, url: str) -> None:
    coach.improve(trials=2, score=lambda task, answer: 0.0)(lambda task, advice="": "x")({"id": "refund-2"})
    tasks = [Task(id=f"refund-{number}", environment="agent", split="held_out") for number in (2, 3)]
    with (
        closing(Store(url, "agent")) as store,
        pytest.raises(ConfigError, match="1 of 2 evaluation tasks were used for training, such as 'refund-2'"),
    ):
        refuse_trained_tasks(store, tasks)


def test_an_asynchronous_object_is_awaited_and_a_hidden_coroutine_refused(coach: rf.Reflector) -> None:
    class Agent:
        async def __call__(self, task: str, advice: str = "") -> str:
            return enter(task, advice)

    improved: Any = coach.improve(trials=2, score=opens)(Agent())
    assert asyncio.run(improved("7")) == "7 opens it"
    with pytest.raises(ConfigError, match="decorate an `async def` function"):
        coach.improve(trials=2, score=opens)(lambda task, advice="": Agent()(task, advice))("7")


def test_two_stories_of_one_task_are_kept_apart(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=1, score=opens)
    def agent(task: dict[str, str], advice: str = "") -> str:
        return enter(task["code"], advice)

    agent({"id": "vault", "code": "1"})
    agent({"id": "vault", "code": "1"})
    attempts, _, _ = facts(url)
    assert [key.task_id.partition("@")[0] for key in attempts] == ["vault", "vault"]
    assert len({key.task_id for key in attempts}) == 2


def test_many_threads_share_one_reflector(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        return enter(task, advice)

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(agent, map(str, range(200))))
    assert said == [f"{code} opens it" for code in range(200)]
    assert facts(url)[1] == [1.0] * 200


def _improve_some(coach: rf.Reflector, start: int) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        return enter(task, advice)

    for code in range(start, start + 5):
        assert agent(str(code)) == f"{code} opens it"
    os._exit(0)


def test_forked_processes_share_one_store(coach: rf.Reflector, url: str) -> None:
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=_improve_some, args=(coach, 10 * number)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert facts(url)[1] == [1.0] * 15


def test_advice_for_a_task_that_is_not_repeated_is_rated_by_its_outcome(coach: rf.Reflector, url: str) -> None:
    messages = [{"role": "assistant", "content": "0 fails; the note says 9"}]
    advice = coach.advise("Open 9", messages, score=0.25)
    assert advice.text == "Enter 9."
    coach.outcome(advice.run, 0.75)
    assert facts(url)[1] == [0.5]
    with pytest.raises(MissingInput, match="There is no story 'elsewhere' in this store"):
        coach.outcome("elsewhere", 1.0)
    coach.outcome(advice.run, 0.75)
    with pytest.raises(ValueError, match="has another outcome already"):
        coach.outcome(advice.run, 1.0)
    second = coach.advise("Open 9", {"output": "0 fails", "score": 1.0}, score=0.5)
    coach.outcome(second.run, 1.0, {"output": "9 opens it", "score": 0.0})
    assert sorted(facts(url)[1]) == [0.5, 0.5]
    with pytest.raises(ValueError, match="ask for advice on a failure"):
        coach.advise("Open 9", "9 opens it", score=1.0)
    with pytest.raises(ValueError, match="score is 2"):
        coach.outcome(advice.run, 2)


def test_what_cannot_work_is_refused_at_once(server: Endpoint, url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the share of the tasks, from 0 to 1"):
        rf.Reflector(server.url, store=url, unadvised=2)
    with pytest.raises(MissingInput, match="No prompt pack 'mine' for agent"):
        rf.Reflector(server.url, store=url, prompts="mine")
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        rf.Reflector(server.url, store=f"sqlite:///{tmp_path}/file/mine.db")
    with rf.Reflector(server.url, store=url) as coach:
        with pytest.raises(ConfigError, match="give at least 1"):
            coach.improve(trials=0)
        server.behaviour = Behaviour.UNAUTHORIZED
        with pytest.raises(EndpointFailure):
            coach.advise("Open 9", "0 fails")


def test_a_closed_reflector_opens_again(coach: rf.Reflector, url: str) -> None:
    coach.close()
    assert coach.advise("Open 3", "0 fails; the note says 3").text == "Enter 3."


def test_the_stages_train_on_what_an_agent_lived_through(
    coach: rf.Reflector, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        return enter(task, advice)

    for code in range(3):
        agent(str(code))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(f"run: agent\nstore: {url}\nenvironment: {{name: agent}}\n")
    texts = [reflection.text for reflection in rated(load(tmp_path / "mine.yaml"))]
    assert sorted(texts) == ["Enter 0.", "Enter 1.", "Enter 2."]


def test_the_public_names_are_complete_and_documented() -> None:
    assert set(rf.__all__) <= set(dir(rf))
    for name in rf.__all__:
        assert getattr(rf, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'Coach'"):
        rf.Coach  # noqa: B018


def test_importing_the_package_is_fast_and_needs_no_torch() -> None:
    code = "import sys, retroformer as rf; rf.Reflector; print({'torch', 'transformers', 'openai'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "set()\n"
