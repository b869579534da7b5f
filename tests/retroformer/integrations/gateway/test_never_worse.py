"""Tests that no call is worse for the gateway: refused advice, agents that leave, busy stores, unusual requests."""

import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.codes import advise, facts
from tests.support.endpoint import Endpoint
from tests.support.gateway import RunningGateway, environment, gateway, write_gateway_config
from tests.support.raw_server import RawServer, Request, Write, http
from tests.support.vault_provider import CODE
from tests.support.waiting import becomes_true

ANSWER = b'{"choices": [{"message": {"role": "assistant", "content": "I enter 0000."}, "finish_reason": "stop"}]}'
HELLO = [{"role": "user", "content": f"Open the vault. The note says {CODE}."}]


@pytest.fixture(autouse=True)
def _answers(provider: RawServer) -> Iterator[None]:
    provider.answer = lambda request, write: write(http("200 OK", ANSWER))
    yield
    provider.requests.clear()


def call(base: str, **sent: object) -> httpx.Response:
    return httpx.post(f"{base}/chat/completions", json={"messages": HELLO} | sent, timeout=60)


def score(host: str, run: str, value: float = 0.0) -> httpx.Response:
    return httpx.post(f"http://{host}/runs/{run}/score", json={"score": value}, timeout=60)


def test_a_call_whose_advice_the_provider_refuses_is_made_again_without_it(
    running: RunningGateway, provider: RawServer
) -> None:
    def takes_no_system_message(request: Request, write: Write) -> None:
        refused = b"system" in request.body
        write(http("400 Bad Request", b'{"error": "no system message"}') if refused else http("200 OK", ANSWER))

    provider.answer = takes_no_system_message
    assert call(running.of_run("strict")).status_code == 200
    assert score(running.host, "strict").json()["advice"]
    for _ in range(2):
        answer = call(running.of_run("strict"))
        assert (answer.status_code, answer.content) == (200, ANSWER)
    roles = [[message["role"] for message in json.loads(request.body)["messages"]] for request in provider.requests]
    assert roles == [["user"], *[["system", "user"], ["user"]] * 2]
    assert score(running.host, "strict", 1.0).status_code == 409, "the agent has read no advice, so nothing is rated"


def test_an_answer_that_the_agent_does_not_wait_for_is_stopped_and_not_part_of_the_attempt(
    running: RunningGateway, provider: RawServer, url: str
) -> None:
    asked, left = threading.Event(), threading.Event()

    def slow(request: Request, write: Write) -> None:
        asked.set()
        try:
            write(b"HTTP/1.1 200 OK\r\n")
            for _ in range(600):
                time.sleep(0.05)
                write(b"X-Wait: 1\r\n")
        except OSError:
            left.set()

    provider.answer = slow
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{running.of_run('hasty')}/chat/completions", json={"messages": HELLO}, timeout=0.5)
    assert asked.wait(10)
    assert left.wait(20), "the provider goes on although nobody waits"
    provider.answer = lambda request, write: write(http("200 OK", ANSWER))
    assert call(running.of_run("hasty")).status_code == 200
    score(running.host, "hasty")
    [attempt] = [attempt for attempt in facts(url)[0].values() if attempt.task.id == "hasty"]
    assert [step.action for step in attempt.steps] == ["I enter 0000."]


def test_of_two_answers_to_one_prompt_the_one_that_goes_on_is_continued(
    running: RunningGateway, provider: RawServer, url: str
) -> None:
    said = iter(("ONE", "TWO", "done"))

    def say(request: Request, write: Write) -> None:
        write(http("200 OK", ANSWER.replace(b"I enter 0000.", next(said).encode())))

    provider.answer = say
    for _ in range(2):
        call(running.of_run("best of two"))
    going_on = [*HELLO, {"role": "assistant", "content": "TWO"}, {"role": "user", "content": "result of TWO"}]
    call(running.of_run("best of two"), messages=going_on)
    score(running.host, "best of two")
    [attempt] = [attempt for attempt in facts(url)[0].values() if attempt.task.id == "best of two"]
    assert [step.action for step in attempt.steps] == ["ONE", "TWO", "done"]


@pytest.mark.parametrize("kind", ["text/plain", "application/vnd.api+json"])
def test_a_call_of_any_content_type_is_forwarded_and_recorded(running: RunningGateway, kind: str) -> None:
    body = json.dumps({"messages": HELLO})
    sent = httpx.post(f"{running.of_run(kind[:4])}/chat/completions", content=body, headers={"Content-Type": kind})
    assert (sent.status_code, sent.content) == (200, ANSWER)
    assert score(running.host, kind[:4]).status_code == 200
    plain = httpx.post(f"http://{running.host}/runs/x/score", content='{"score": 0}', headers={"Content-Type": kind})
    assert plain.status_code == 415, "a web page may send this"


def test_the_command_of_the_documentation_gives_a_score(running: RunningGateway) -> None:
    call(running.of_run("refund-1"))
    page = (Path(__file__).parents[4] / "docs/gateway.md").read_text()
    [line] = [line.strip() for line in page.splitlines() if line.strip().startswith("curl -s")]
    line = line.replace("127.0.0.1:8100", running.host).replace("./is-refunded 4711", "echo 0.5")
    given = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
    assert json.loads(given.stdout)["trial"] == 0


def test_a_store_that_is_busy_holds_no_call_up_and_is_used_again_later(tmp_path: Path, provider: RawServer) -> None:
    with Endpoint(advise) as reflector, gateway(write_gateway_config(tmp_path, reflector.url), provider.url) as running:
        call(running.of_run("known"))
        store = sqlite3.connect(tmp_path / "mine.db", isolation_level=None)
        store.execute("BEGIN IMMEDIATE")
        writing = threading.Thread(target=call, args=(running.of_run("writes"),))
        writing.start()
        time.sleep(1)
        begun = time.monotonic()
        assert [call(running.of_run(name)).status_code for name in ("known", "new")] == [200, 200]
        assert time.monotonic() - begun < 40, "each waits five seconds at most, where a locked store takes ninety"
        store.execute("ROLLBACK")
        store.close()
        writing.join()
        becomes_true(lambda: call(running.of_run("later")).status_code == 200)
        becomes_true(lambda: score(running.host, "later").status_code == 200)


@pytest.mark.parametrize("upstream", ["", "notaurl", "127.0.0.1:9911/v1", "ftp://x/v1", "http://"])
def test_an_upstream_that_is_no_address_is_one_sentence(tmp_path: Path, upstream: str) -> None:
    config = write_gateway_config(tmp_path, "http://127.0.0.1:9/v1")
    words = [sys.executable, "-m", "retroformer", "gateway", str(config), "--upstream", upstream, "--port", "0"]
    ended = subprocess.run(words, env=environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    sentence = "--upstream is not the address of a provider: It must begin with http:// or https://.\n"
    assert (ended.returncode, ended.stderr) == (1, sentence)
