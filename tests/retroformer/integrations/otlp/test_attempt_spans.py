"""Tests of steps from spans: with real instruments, in threads and tasks, and when spans are missing or unreadable."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import retroformer as rf
from tests.support.codes import advise, enter, facts, opens
from tests.support.endpoint import Endpoint
from tests.support.runs import ROOT

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace import TracerProvider

from retroformer.integrations.otlp.attempt_spans import AttemptSpans

PROGRAM = """
import sys, retroformer as rf, openai
from opentelemetry.sdk.trace import TracerProvider
from retroformer.integrations.otlp.attempt_spans import AttemptSpans
from tests.support.instrumented_agent import answer, instrument

convention, reflector, model, store = sys.argv[1:]
provider = TracerProvider()
instrument(convention, provider)
client = openai.OpenAI(base_url=model, api_key="none")
with rf.Reflector(reflector, store=store, unadvised=0.0) as coach, client:
    @coach.improve(trials=2, score=lambda task, said: float(said == "Refunded."), watch=AttemptSpans(provider))
    def agent(task, advice=""):
        return answer(client, task, advice)
    print(agent("Refund 1."))
"""


@pytest.fixture
def coach(url: str) -> Iterator[rf.Reflector]:
    with Endpoint(advise) as server, rf.Reflector(server.url, store=url, unadvised=0.0) as coach:
        yield coach


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mine.db"


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


def chat(provider: TracerProvider, asked: str, said: str) -> None:
    """Make the span of a model call, as an instrument does."""
    with provider.get_tracer("agent").start_as_current_span("chat") as span:
        span.set_attribute("openinference.span.kind", "LLM")
        span.set_attribute("llm.input_messages.0.message.role", "user")
        span.set_attribute("llm.input_messages.0.message.content", asked)
        span.set_attribute("llm.output_messages.0.message.role", "assistant")
        span.set_attribute("llm.output_messages.0.message.content", said)
        span.set_attribute("llm.token_count.prompt", 7)


@pytest.mark.parametrize("convention", ["openinference", "gen_ai"])
def test_an_instrumented_agent_that_returns_a_text_has_its_real_steps(convention: str, url: str) -> None:
    def refund(body: dict[str, object]) -> str:
        return "Refunded." if "Search first." in str(body) else "I cannot."

    with Endpoint(lambda _: "Search first.") as reflector, Endpoint(refund) as model:
        words = [sys.executable, "-c", PROGRAM, convention, reflector.url, model.url, url]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1:] == ["Refunded."], done.stderr
    attempts, ratings, _ = facts(url)
    assert ratings == [1.0]
    first, second = attempts.values()
    assert [message.role for message in first.messages] == ["system", "user", "assistant"]
    assert second.messages[0].content == "Handle refunds. Search first."
    assert [(step.action, step.observation) for step in second.steps] == [("Refunded.", "")]
    assert second.usage.calls == 1
    assert second.usage.prompt_tokens > 0


def test_attempts_in_threads_and_tasks_do_not_mix(coach: rf.Reflector, provider: TracerProvider, url: str) -> None:
    watch = AttemptSpans(provider)

    @coach.improve(trials=2, score=opens, watch=watch)
    def agent(task: str, advice: str = "") -> str:
        said = enter(task, advice)
        chat(provider, f"in a thread {task}", said)
        return said

    @coach.improve(trials=2, score=opens, watch=watch)
    async def later(task: str, advice: str = "") -> str:
        said = enter(task, advice)
        await asyncio.sleep(0)
        chat(provider, f"in a task {task}", said)
        return said

    async def all_of_them() -> None:
        await asyncio.gather(*(later(str(code)) for code in range(2000, 2008)))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(agent, [str(code) for code in range(1000, 1008)]))
    asyncio.run(all_of_them())
    attempts, ratings, _ = facts(url)
    assert ratings == [1.0] * 16
    for key, attempt in attempts.items():
        code = attempt.opening
        where = "thread" if code < "2000" else "task"
        assert attempt.messages is not None
        assert attempt.messages[0].content == f"in a {where} {code}", key
        assert len(attempt.messages) == 2
        assert attempt.usage.prompt_tokens == 7
    assert not watch._attempts


def test_without_spans_what_the_agent_returns_counts(coach: rf.Reflector, provider: TracerProvider, url: str) -> None:
    # A span that was made outside of the attempt is of none.
    @coach.improve(trials=1, score=opens, watch=AttemptSpans(provider))
    def agent(task: str, advice: str = "") -> str:
        return enter(task, advice)

    chat(provider, "elsewhere", "nothing")
    agent("1234")
    (attempt,) = facts(url)[0].values()
    assert attempt.steps[0].action == "0000 fails; the note says 1234"
    assert attempt.messages is None


def test_spans_that_cannot_be_read_are_warned_about_once(
    coach: rf.Reflector, provider: TracerProvider, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @coach.improve(trials=2, score=opens, watch=AttemptSpans(provider))
    def agent(task: str, advice: str = "") -> str:
        with provider.get_tracer("agent").start_as_current_span("chat") as span:
            span.set_attribute("gen_ai.operation.name", "chat")
            span.set_attribute("gen_ai.input.messages", "[{]")
        return enter(task, advice)

    with caplog.at_level(logging.WARNING):
        assert agent("1234") == "1234 opens it"
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "Spans of an attempt cannot be read, so what the agent returned counts"
    ]
    assert facts(url)[1] == [1.0]


def test_a_crash_ends_the_watch(coach: rf.Reflector, provider: TracerProvider) -> None:
    watch = AttemptSpans(provider)

    @coach.improve(trials=2, score=opens, watch=watch)
    def agent(task: str, advice: str = "") -> str:
        chat(provider, task, "")
        raise OSError("broken pipe")

    with pytest.raises(OSError, match="broken pipe"):
        agent("1234")
    assert not watch._attempts
