"""Tests of the gateway with OpenAI's client: an agent that is not changed fails, and succeeds with advice."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from retroformer.coach.recorder import ADVISED_SPLIT
from retroformer.method.records import Key, Outcome, Step
from tests.support.codes import advise, facts
from tests.support.endpoint import Behaviour, Endpoint
from tests.support.gateway import RunningGateway, gateway, write_gateway_config
from tests.support.raw_server import RawServer, http
from tests.support.vault_provider import CODE, KEY, chunk, chunked, head, play, sse

TOOLS: Any = [{"type": "function", "function": {"name": "enter", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(autouse=True)
def _vault(provider: RawServer) -> Iterator[None]:
    provider.answer = play
    yield
    provider.requests.clear()


def agent(base_url: str, system: str = "You open vaults.", **headers: str) -> bool:
    """Open a vault with a tool, over streams; return True if it opens. It knows nothing of the gateway."""
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": "Open the vault."})
    opened = False
    with OpenAI(base_url=base_url, api_key=KEY, default_headers=headers, max_retries=0) as client:
        while not messages[-1].get("content", "").endswith("done."):
            with client.chat.completions.stream(model="small", messages=messages, tools=TOOLS) as stream:
                said = stream.get_final_completion().choices[0].message
            messages.append(said.model_dump(exclude_none=True, exclude={"parsed"}))
            for call in said.tool_calls or ():
                opened = json.loads(call.function.arguments)["code"] == CODE
                seen = "The vault opens." if opened else f"It stays shut; the note says {CODE}."
                messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})
    return opened


def score(host: str, run: str, **given: Any) -> Any:
    return httpx.post(f"http://{host}/runs/{run}/score", json=given, timeout=60).json()


def of_task(url: str, name: str, arm: str = "collect") -> dict[Key, Any]:
    return {key: attempt for key, attempt in facts(url, arm)[0].items() if attempt.task.id == name}


def test_an_unchanged_agent_succeeds_with_advice_and_its_attempts_are_rated(
    running: RunningGateway, provider: RawServer, url: str
) -> None:
    assert not agent(running.of_run("vault"))
    failed = score(running.host, "vault", score=0)
    assert (failed["trial"], failed["advice"], failed["over"]) == (0, f"Enter {CODE}.", False)
    assert agent(running.of_run("vault"))
    assert score(running.host, "vault", score=1)["over"]
    ratings = facts(url)[1]
    first, second = of_task(url, "vault").values()
    assert (first.outcome, second.outcome, ratings) == (Outcome.FAILURE, Outcome.SUCCESS, [1.0])
    assert first.opening == "Open the vault."
    assert first.steps == (
        Step(
            thought="I enter it.",
            action='enter({"code": "0000"})',
            observation=f"It stays shut; the note says {CODE}.",
        ),
        Step(action="I am done.", observation=""),
    )
    assert (first.usage.calls, first.usage.prompt_tokens, first.usage.completion_tokens) == (2, 11, 5)
    systems = [json.loads(request.body)["messages"][0]["content"] for request in provider.requests]
    advised = f"You open vaults.\n\nAdvice from earlier attempts at this task:\n- Enter {CODE}."
    assert systems == ["You open vaults."] * 2 + [advised] * 2


def test_an_agent_without_a_system_message_gets_one(running: RunningGateway) -> None:
    assert not agent(running.of_run("bare"), system="")
    score(running.host, "bare", score=0)
    assert agent(running.of_run("bare"), system="")


def test_a_run_may_be_named_in_a_header_and_works_on_many_tasks(running: RunningGateway, url: str) -> None:
    base = f"http://{running.host}/v1"
    for task in ("red", "blue"):
        assert not agent(base, **{"X-Retroformer-Run": "worker", "X-Retroformer-Task": task})
    score(running.host, "worker", score=0, task="red")
    assert agent(base, **{"X-Retroformer-Run": "worker", "X-Retroformer-Task": "red"})
    assert not agent(base, **{"X-Retroformer-Run": "worker", "X-Retroformer-Task": "blue"})
    assert len(of_task(url, "red")) == 1
    assert not of_task(url, "blue")


def test_a_score_whose_answer_was_lost_can_be_given_again_until_the_next_call(
    running: RunningGateway, url: str
) -> None:
    for run, value in (("lost", 0.5), ("lost-last", 1)):
        agent(running.of_run(run))
        first = score(running.host, run, score=value)
        assert first["over"] is (value == 1)
        assert score(running.host, run, score=value) == first
        assert "was recorded since its last score" in score(running.host, run, score=0)["error"]["message"]
        agent(running.of_run(run), system="Be brief.")
        assert score(running.host, run, score=value) != first
    assert [key.trial for key in of_task(url, "lost")] == [0, 1]
    assert [key.trial for key in of_task(url, "lost-last")] == [0, 0]


def test_a_crash_is_counted_and_never_rated(running: RunningGateway, url: str) -> None:
    agent(running.of_run("crash"))
    told = score(running.host, "crash", invalid=True, cause="the browser died")
    assert (told["trial"], told["over"]) == (0, False)
    assert any("the browser died" in cause for cause in facts(url)[2])
    assert not of_task(url, "crash")
    agent(running.of_run("crash"))
    assert score(running.host, "crash", score=0)["trial"] == 0
    assert [key.trial for key in of_task(url, "crash")] == [0]


@pytest.mark.parametrize("streamed", [False, True])
def test_thinking_in_parts_of_an_answer_is_not_stored(
    running: RunningGateway, provider: RawServer, url: str, streamed: bool
) -> None:
    parts = [{"type": "reasoning_text", "text": "Secret musings."}, {"type": "text", "text": "I give up."}]
    whole = json.dumps({"choices": [{"index": 0, "message": {"role": "assistant", "content": parts}}]}).encode()
    stream = b"".join([head(), *chunked(sse([chunk({"content": [part]}) for part in parts]))])
    provider.answer = lambda _, write: write(stream if streamed else http("200 OK", whole))
    run = f"parts-{streamed}"
    asked = {"messages": [{"role": "user", "content": "Open the vault."}]}
    httpx.post(f"{running.of_run(run)}/chat/completions", json=asked)
    score(running.host, run, score=0)
    (attempt,) = of_task(url, run).values()
    assert attempt.steps == (Step(action="I give up.", observation=""),)


def test_the_story_begins_again_after_three_attempts(running: RunningGateway, provider: RawServer) -> None:
    overs = []
    for _ in range(3):
        agent(running.of_run("thrice"))
        overs.append(score(running.host, "thrice", score=0.5)["over"])
    assert overs == [False, False, True]
    provider.requests.clear()
    agent(running.of_run("thrice"))
    assert json.loads(provider.requests[0].body)["messages"][0]["content"] == "You open vaults."


def test_a_reflector_that_does_not_answer_ends_the_story_only(running: RunningGateway, reflector: Endpoint) -> None:
    agent(running.of_run("alone"))
    reflector.behaviour = Behaviour.REFUSED
    try:
        told = score(running.host, "alone", score=0)
    finally:
        reflector.behaviour = Behaviour.WELL
    assert told["over"]
    assert "400" in told["error"]
    assert not agent(running.of_run("alone"))


@pytest.mark.parametrize(
    ("given", "status", "sentence"),
    [
        ({"score": 0}, 409, "No call of the run 'nobody' was recorded since its last score."),
        ({"score": 2}, 422, "The score cannot be read: score is 2: it must be a number from 0 to 1."),
        ({}, 422, "The score cannot be read: score is None: it must be a number from 0 to 1."),
        ({"scroe": 1}, 422, "The score cannot be read: scroe: Extra inputs are not permitted."),
        ('{"score": 0, "score": 1}', 422, "The score cannot be read: 'score' appears twice in one object."),
        ("[" * 100_000, 422, "The score cannot be read"),
    ],
)
def test_a_wrong_score_is_refused_in_one_sentence(
    running: RunningGateway, given: dict[str, Any] | str, status: int, sentence: str
) -> None:
    body = given if isinstance(given, str) else json.dumps(given)
    headers = {"Content-Type": "application/json"}
    answer = httpx.post(f"http://{running.host}/runs/nobody/score", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["message"].startswith(sentence)


def test_a_killed_gateway_goes_on_with_the_attempt_and_the_advice(tmp_path: Path) -> None:
    pytest.importorskip("retroformer.integrations.gateway.service")
    url = f"sqlite:///{tmp_path}/mine.db"
    with RawServer(play) as provider, Endpoint(advise) as reflector:
        config = write_gateway_config(tmp_path, reflector.url)
        with gateway(config, provider.url) as first:
            agent(first.of_run("advised"))
            told = score(first.host, "advised", score=0)
            agent(first.of_run("unscored"))
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        with gateway(config, provider.url) as second:
            assert score(second.host, "advised", score=0) == told
            assert agent(second.of_run("advised"))
            assert score(second.host, "advised", score=1)["trial"] == 1
            assert score(second.host, "unscored", score=0)["advice"] == f"Enter {CODE}."
    assert facts(url)[1] == [1.0]
    assert {attempt.task.split for attempt in of_task(url, "advised").values()} == {ADVISED_SPLIT}, "monitor counts it"
    (unscored,) = of_task(url, "unscored").values()
    assert len(unscored.steps) == 2
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert CODE.encode() in written
    assert KEY.encode() not in written
    assert b"musings" not in written


def test_unadvised_tasks_are_retried_without_advice_in_an_arm_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("retroformer.integrations.gateway.service")
    with RawServer(play) as provider, Endpoint(advise) as reflector:
        config = write_gateway_config(tmp_path, reflector.url)
        with gateway(config, provider.url, "--unadvised", "1") as running:
            for _ in range(2):
                assert not agent(running.of_run("luck"))
                assert score(running.host, "luck", score=0)["advice"] == ""
        assert not reflector.requests
    assert len(of_task(f"sqlite:///{tmp_path}/mine.db", "luck", "unadvised")) == 2
