"""Tests of the reflector in a user's program, against a real server and a real store."""

import asyncio
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import retroformer as rf
from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Outcome, Step
from retroformer.run.store import Store
from tests.support.codes import enter, facts, opens
from tests.support.endpoint import Endpoint, prompt_of
from train.data.inputs import rated


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


def test_an_agent_that_rates_itself_is_decorated_without_brackets(coach: rf.Reflector) -> None:
    @coach.improve
    def agent(task: str, advice: str = "") -> dict[str, object]:
        said = enter(task.split()[-1], advice)
        return {"output": said, "score": opens(task, said)}

    assert agent("Open 4711") == {"output": "4711 opens it", "score": 1.0}


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
    # The paper's 0.9 is too much for the default model, which is the one that writes without any argument.
    assert {request["temperature"] for request in server.requests} == {0.5}


def test_an_agent_reads_as_much_advice_as_its_reflector_remembers(server: Endpoint, url: str) -> None:
    read = []
    with rf.Reflector(server.url, store=url, unadvised=0, memory=1, prompt_characters=1000) as coach:

        @coach.improve(trials=3, score=lambda task, said: 0.0)
        def agent(task: str, advice: str = "") -> dict[str, Any]:
            read.append(advice)
            tried = [{"role": "assistant", "content": "look"}, {"role": "user", "content": "nothing " * 3000}]
            return {"messages": [*tried, {"role": "assistant", "content": f"0 fails; the note says {len(read)}"}]}

        agent("Count")
    assert read == ["", "Enter 1.", "Enter 2."]
    assert len(prompt_of(server.requests[1])) < 3000


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


def test_two_stories_of_one_task_are_kept_apart(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=1, score=opens)
    def agent(task: dict[str, str], advice: str = "") -> str:
        return enter(task["code"], advice)

    agent({"id": "vault", "code": "1"})
    agent({"id": "vault", "code": "1"})
    attempts, _, _ = facts(url)
    assert [key.task_id.partition("@")[0] for key in attempts] == ["vault", "vault"]
    assert len({key.task_id for key in attempts}) == 2


@pytest.mark.slow
def test_a_teacher_writes_in_place_of_the_reflector(server: Endpoint, url: str) -> None:
    teacher = {"base_url": server.url, "model": "big", "extra_body": {"temperature": None}}
    with rf.Reflector("http://127.0.0.1:1/v1", teacher=teacher, store=url, unadvised=0.0) as coach:
        agent = coach.improve(trials=2, score=opens)(enter)
        assert agent(code="4711", advice="") == "4711 opens it"
    (asked,) = server.requests
    assert asked["model"] == "big"
    assert "temperature" not in asked
    with closing(Store(url, "agent")) as store:
        (stored,) = store.stream_reflections("collect")
        assert (stored.reflection.author.model, stored.reflection.author.endpoint) == ("big", server.url)
    for wrong in ({"teacher": {"base_url": server.url}}, {"memory": 0}, {"run": "../mine"}):
        with pytest.raises(
            ConfigError, match=rf"^An argument of rf\.Reflector cannot be used: .*\b{next(iter(wrong))}: "
        ):
            rf.Reflector(server.url, store=url, **wrong)  # type: ignore[arg-type]


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
    with pytest.raises(ValueError, match="already has a different outcome"):
        coach.outcome(advice.run, 1.0)
    second = coach.advise("Open 9", {"output": "0 fails", "score": 42}, score=0.5)
    coach.outcome(second.run, 1.0, {"output": "9 opens it", "score": 0.0})
    assert sorted(facts(url)[1]) == [0.5, 0.5]
    with pytest.raises(ValueError, match="ask for advice on a failure"):
        coach.advise("Open 9", "9 opens it", score=1.0)
    with pytest.raises(ValueError, match="score is 2"):
        coach.outcome(advice.run, 2)


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
