"""Tests of an endpoint call: its limits in time and bytes, its retries, and its cost when it fails."""

import asyncio
import gzip
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import Completion, LanguageModel
from retroformer.endpoint.retries import requested_pause
from retroformer.errors import EndpointBusy, EndpointFailure, EndpointRefusal, usage_of
from retroformer.method.records import Usage
from tests.support.endpoint import Behaviour, Endpoint
from tests.support.raw_server import Answer, RawServer, Request, Write, http

GOOD = {"choices": [{"message": {"role": "assistant", "content": "Good day."}}]}
PROMPT = "Hello there?"  # 12 characters, about 4 tokens
LOST = Usage(calls=1, prompt_tokens=4)


def section(url: str, seconds: float = 30.0) -> EndpointSection:
    return EndpointSection(base_url=url, model="big", timeout_seconds=seconds)


def ask(endpoint: EndpointSection) -> Completion:
    async def once() -> Completion:
        model = LanguageModel(endpoint, str(endpoint.base_url))
        try:
            return await model.complete(PROMPT, temperature=0.0, max_new_tokens=20)
        finally:
            await model.close()

    return asyncio.run(once())


def failure_of(endpoint: EndpointSection) -> EndpointFailure:
    with pytest.raises(EndpointFailure) as failure:
        ask(endpoint)
    return failure.value


@contextmanager
def server_that_answers(*answers: bytes) -> Iterator[RawServer]:
    """Start a server that gives one answer after the other and repeats the last one."""

    def answer(request: Request, write: Write) -> None:
        write(answers[min(len(server.requests), len(answers)) - 1])

    with RawServer(answer) as server:
        yield server


def good(**more: Any) -> bytes:
    return http("200 OK", json.dumps(GOOD | more).encode())


def test_a_slow_response_times_out_after_the_time_of_the_whole_call() -> None:
    def trickle(request: Request, write: Write) -> None:
        for byte in good():
            write(bytes([byte]))
            time.sleep(0.05)  # All of it takes 10 s; no pause between two bytes is as long as the limit.

    with RawServer(trickle) as server:
        failure = failure_of(section(server.url, seconds=1.0))
        assert "gave no answer within 1 s" in str(failure)
        assert len(server.requests) == 1
        assert server.left.wait(30), "the connection is still open"


def test_retries_and_their_pauses_are_within_the_time_of_the_call() -> None:
    with server_that_answers(http("503 Service Unavailable", b"{}"), good()) as server:
        # The first pause is at least .375 s.
        failure_of(section(server.url, seconds=0.3))
        assert len(server.requests) <= 1


def test_the_failure_before_a_timeout_is_reported() -> None:
    def answer(request: Request, write: Write) -> None:
        if len(server.requests) == 1:
            write(http("500 Oops", b'{"error": {"message": "out of memory"}}', "retry-after-ms: 1"))
        else:
            server.left.wait(30)

    with RawServer(answer) as server:
        failure = failure_of(section(server.url, seconds=1.0))
        server.left.set()
    assert "gave no answer within 1 s (before that it answered 500: out of memory)" in str(failure)


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_a_pause_longer_than_the_call_ends_it_at_once_with_the_pause_recorded(status: str) -> None:
    with server_that_answers(http(status, b'{"error": {"message": "later"}}', "retry-after: 3600")) as server:
        failure = failure_of(section(server.url, seconds=20.0))
        assert isinstance(failure, EndpointBusy)
        assert failure.retry_after_seconds == 3600
        assert f"answered {status[:3]}: later, and asks for a pause of 3600 s" in str(failure)
        assert len(server.requests) == 1


def test_a_pause_within_the_time_of_the_call_is_waited_for() -> None:
    asked: list[float] = []

    def answer(request: Request, write: Write) -> None:
        asked.append(time.monotonic())
        write(good() if len(asked) > 1 else http("429 Too Many Requests", b"{}", "retry-after: 1"))

    with RawServer(answer) as server:
        assert ask(section(server.url)).text == "Good day."
    assert asked[1] - asked[0] >= 1  # Without it the first pause is half a second.


def test_the_failure_of_a_busy_endpoint_holds_the_requested_pause() -> None:
    with server_that_answers(http("429 Too Many Requests", b"{}", "retry-after: 0.25")) as server:
        failure = failure_of(section(server.url))
        assert isinstance(failure, EndpointBusy)
        assert failure.retry_after_seconds == 0.25
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7.0),
        ({"retry-after": "0"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "later"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 99999 07:28:00 GMT"}, None),
        ({"retry-after": "9" * 5000}, 604_800.0),
        ({"retry-after": "inf"}, 604_800.0),
    ],
)
def test_a_pause_is_read_from_the_headers_of_servers(headers: dict[str, str], seconds: float | None) -> None:
    assert requested_pause(headers) == seconds


def test_a_pause_may_be_given_as_a_date() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    for said in (format_datetime(later), format_datetime(later.replace(tzinfo=None))):
        seconds = requested_pause({"retry-after": said})
        assert seconds is not None
        assert 3000 < seconds <= 3600


@pytest.mark.parametrize("status", ["401 Unauthorized", "402 Payment Required", "403 Forbidden", "404 Not Found"])
def test_a_permanent_refusal_is_not_retried_and_has_its_own_error(status: str) -> None:
    with server_that_answers(http(status, b'{"error": {"message": "no"}}', "retry-after: 1")) as server:
        assert isinstance(failure_of(section(server.url)), EndpointRefusal)
        assert len(server.requests) == 1


def test_a_spent_quota_is_a_refusal_despite_its_busy_status() -> None:
    spent = b'{"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}'
    with server_that_answers(http("429 Too Many Requests", spent)) as server:
        assert isinstance(failure_of(section(server.url)), EndpointRefusal)
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", ["400 Bad Request", "413 Too Large", "422 Unprocessable"])
def test_an_error_of_one_prompt_is_not_a_refusal_of_all(status: str) -> None:
    with server_that_answers(http(status, b'{"error": {"message": "too long"}}')) as server:
        assert type(failure_of(section(server.url))) is EndpointFailure
        assert len(server.requests) == 1


def endless(status: str) -> Answer:
    def answer(request: Request, write: Write) -> None:
        write(f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 100000000\r\n\r\n".encode())
        for _ in range(100):
            write(b'"' + b"a" * 999_999)

    return answer


@pytest.mark.parametrize("status", ["200 OK", "400 Bad Request", "500 Internal Server Error"])
def test_an_answer_of_100_megabytes_is_not_read_completely(status: str) -> None:
    with RawServer(endless(status)) as server:
        failure = failure_of(section(server.url))
        assert "answered with more than 16,000,000 bytes." in str(failure)
        assert server.left.wait(30), "all of it was read"
        assert len(server.requests) == 1


def test_a_compressed_answer_is_not_unpacked_beyond_the_limit() -> None:
    packed = gzip.compress(b'"' + b"a" * 100_000_000 + b'"')
    assert len(packed) < 200_000
    with server_that_answers(http("200 OK", packed, "content-encoding: gzip")) as server:
        assert "answered with more than 16,000,000 bytes." in str(failure_of(section(server.url)))


def test_a_compressed_answer_is_read() -> None:
    packed = gzip.compress(json.dumps(GOOD).encode())
    with server_that_answers(http("200 OK", packed, "content-encoding: gzip")) as server:
        assert ask(section(server.url)).text == "Good day."


@pytest.mark.parametrize(
    "content",
    [
        b'{"choices": [{"message": {"content": ' + b"9" * 5000 + b"}}]}",
        b'{"usage": {"prompt_tokens": ' + b"9" * 5000 + b"}}",
        b"9" * 5000,
        b'{"choices": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"choices": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"choices": [{"message": {"content": NaN}}]}',
    ],
)
def test_json_that_python_cannot_hold_is_a_failure_of_the_endpoint(content: bytes) -> None:
    with server_that_answers(http("200 OK", content)) as server:
        sentence = str(failure_of(section(server.url)))
        assert sentence.startswith(f"The model 'big' at {server.url} ")
        assert len(sentence) < 500


@pytest.mark.parametrize("count", [10**7 + 1, 10**18, True, 7.5, "7"])
def test_implausible_token_counts_are_replaced_by_estimates(count: object) -> None:
    with server_that_answers(good(usage={"prompt_tokens": count, "completion_tokens": 1})) as server:
        # "Good day." has 9 characters, about 3 tokens.
        assert ask(section(server.url)).usage == Usage(calls=1, prompt_tokens=4, completion_tokens=3)


def test_a_bad_answer_is_charged_with_its_reported_tokens() -> None:
    bad = {"choices": [{"message": {"content": None}}], "usage": {"prompt_tokens": 1000, "completion_tokens": 500}}
    with server_that_answers(http("200 OK", json.dumps(bad).encode())) as server:
        priced = section(server.url).model_copy(update={"dollars_per_million": (3.0, 15.0)})
        # 1000 * 3 / 1e6 + 500 * 15 / 1e6
        paid = Usage(calls=1, prompt_tokens=1000, completion_tokens=500, dollars=0.0105)
        assert failure_of(priced).usage == paid


def test_a_lost_answer_is_charged_in_every_attempt() -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.CUT
        assert failure_of(section(server.url)).usage == Usage(calls=3, prompt_tokens=12)


def test_lost_answers_are_charged_to_a_call_that_succeeds() -> None:
    with Endpoint(reply=lambda body: "Good day.") as server:
        server.script.append(Behaviour.CUT)
        assert ask(section(server.url)).usage == LOST + Usage(calls=1, prompt_tokens=7, completion_tokens=3)


@pytest.mark.parametrize("behaviour", [Behaviour.BROKEN_JSON, Behaviour.NESTED, Behaviour.SILENT])
def test_an_unreadable_or_late_answer_is_charged(behaviour: Behaviour) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        assert failure_of(section(server.url, seconds=1.0)).usage == LOST


@pytest.mark.parametrize("behaviour", [Behaviour.ERROR, Behaviour.BUSY, Behaviour.REFUSED])
def test_an_error_status_costs_nothing(behaviour: Behaviour) -> None:
    with Endpoint() as server:
        server.behaviour = behaviour
        assert failure_of(section(server.url)).usage == Usage()


def test_a_call_without_a_connection_costs_nothing() -> None:
    assert failure_of(section("http://127.0.0.1:1/v1")).usage == Usage()


def test_a_call_that_is_cancelled_after_it_was_sent_is_charged() -> None:
    with Endpoint() as server:
        server.behaviour = Behaviour.SILENT

        async def cancelled() -> Usage:
            asked, loop = asyncio.Event(), asyncio.get_running_loop()
            server.before_answer = lambda number: loop.call_soon_threadsafe(asked.set) and None
            model = LanguageModel(section(server.url), server.url)
            call = asyncio.create_task(model.complete(PROMPT, temperature=0.0, max_new_tokens=20))
            try:
                await asked.wait()
                call.cancel()
                await call
            except asyncio.CancelledError as stopped:
                return usage_of(stopped)
            finally:
                await model.close()
            raise AssertionError("it was not cancelled")

        assert asyncio.run(cancelled()) == LOST


def test_an_error_without_usage_has_cost_nothing() -> None:
    assert usage_of(ValueError("a bug")) == Usage()
