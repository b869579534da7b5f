"""Tests of the listener, a process of its own, with real instruments and the real exporter."""

import gzip
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

pytest.importorskip("opentelemetry.proto")
pytest.importorskip("starlette")

from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from retroformer.cases.traced import TracedAttempt, cases_of
from retroformer.integrations.otlp.attempts import attempts_of
from retroformer.integrations.otlp.files import read_spans
from tests.support import spans
from tests.support.endpoint import Body, Endpoint
from tests.support.protobuf import as_protobuf

ROOT = Path(__file__).parents[4]
JSON, PROTOBUF = {"content-type": "application/json"}, {"content-type": "application/x-protobuf"}


class ModelThatObeysAdvice(Endpoint):
    """Calls a tool if its system message holds advice, and answers rightly after that."""

    def _completion(self, path: str, body: Body) -> Body:
        completion = super()._completion(path, body)
        first, last = body["messages"][0]["content"], body["messages"][-1]["role"]
        call = {"id": "call-1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
        message: Body = {"role": "assistant", "content": "Refunded." if last == "tool" else "I cannot."}
        if "Search first." in first and last != "tool":
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
        completion["choices"] = [{"index": 0, "finish_reason": "stop", "message": message}]
        return completion


class Listening:
    """A listener that runs, and its inbox."""

    def __init__(self, folder: Path) -> None:
        (folder / "mine.yaml").write_text("run: mine\nenvironment: {name: agent}\n")
        self.inbox = folder / "runs/mine/traces"
        self._folder = folder
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "retroformer", "collect", "listen", "mine.yaml", "--port", "0"]
        self.process = subprocess.Popen(
            command, cwd=self._folder, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        self.url = line.split()[0]

    def stop(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate()

    def attempts(self) -> list[TracedAttempt]:
        return [entry for entry in attempts_of(read_spans(self.inbox)) if isinstance(entry, TracedAttempt)]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    listening = Listening(tmp_path_factory.mktemp("listening"))
    yield listening
    listening.stop()


def an_attempt(trace: int) -> spans.Json:
    return spans.request(spans.attempt(trace, spans.gen_ai("No."), task_id=f"task-{trace}", score=0.0))


@pytest.mark.parametrize("convention", ["openinference", "gen_ai"])
def test_an_instrumented_agent_exports_attempts(convention: str, tmp_path: Path) -> None:
    listening = Listening(tmp_path)
    with ModelThatObeysAdvice(lambda body: "") as model:
        words = [sys.executable, "-m", "tests.support.instrumented_agent", convention, model.url, listening.url, "4"]
        done = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=True)
    listening.stop()
    assert not done.stderr, done.stderr
    cases = list(cases_of(listening.attempts()))
    assert [(case.task.id, case.rating, case.advice and case.advice.text) for case in cases] == [
        ("refund-0", 1.0, "Search first."),
        ("refund-1", 1.0, "Search first."),
    ]
    retry = cases[1].retry
    assert retry is not None
    assert retry.usage.calls == 2
    roles = [(message.role, message.content) for message in retry.messages or ()]
    assert roles[1:] == [
        ("user", "Refund 1."),
        ("assistant", None),
        ("tool", "Order of Refund 1."),
        ("assistant", "Refunded."),
    ]


def test_json_and_protobuf_plain_and_compressed_are_kept_once(shared: Listening) -> None:
    request = an_attempt(101)
    for headers, body in ((JSON, json.dumps(request, indent=2).encode()), (PROTOBUF, as_protobuf(request))):
        for _ in range(2):
            answer = httpx.post(shared.url, content=body, headers=headers)
            assert (answer.status_code, answer.headers["content-type"]) == (200, headers["content-type"])
            assert answer.content == (b"{}" if headers is JSON else b"")
        packed = httpx.post(shared.url, content=gzip.compress(body), headers=headers | {"content-encoding": "gzip"})
        assert packed.status_code == 200
    assert len([attempt for attempt in shared.attempts() if attempt.task.id == "task-101"]) == 1
    kept = [path.suffix for path in shared.inbox.iterdir() if b"task-101" in path.read_bytes()]
    assert sorted(kept) == [".json", ".pb"]


def test_all_members_of_a_gzip_are_kept(shared: Listening) -> None:
    packed = b"".join(gzip.compress(as_protobuf(an_attempt(trace))) for trace in (201, 202))
    answer = httpx.post(shared.url, content=packed, headers=PROTOBUF | {"content-encoding": "gzip"})
    assert answer.status_code == 200
    assert {"task-201", "task-202"} <= {attempt.task.id for attempt in shared.attempts()}


REFUSED: dict[str, tuple[dict[str, str], bytes, int, str]] = {
    "no content type": ({}, b"{}", 415, "content type"),
    "another type": ({"content-type": "text/plain"}, b"{}", 415, "text/plain"),
    "another encoding": (JSON | {"content-encoding": "br"}, b"{}", 415, "br"),
    "no gzip": (JSON | {"content-encoding": "gzip"}, b"{}", 400, "not gzip"),
    "something behind a gzip": (JSON | {"content-encoding": "gzip"}, gzip.compress(b"{}") + b"{}", 400, "not gzip"),
    "half of a gzip": (JSON | {"content-encoding": "gzip"}, gzip.compress(b"{}" * 99)[:-9], 400, "cut short"),
    "a bomb": (JSON | {"content-encoding": "gzip"}, gzip.compress(bytes(65 * 2**20)), 413, "64 MiB"),
    "no JSON": (JSON, b"{", 400, "The request is not JSON"),
    "no text": (JSON, b"\xff", 400, "UTF-8"),
    "no traces": (JSON, b'{"resourceLogs": []}', 400, "resourceSpans"),
    "no protobuf": (PROTOBUF, b"\x0a\xff", 400, "not OTLP"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_malformed_request_is_refused_and_not_kept(shared: Listening, fault: str) -> None:
    headers, body, status, words = REFUSED[fault]
    before = sorted(shared.inbox.iterdir())
    answer = httpx.post(shared.url, content=body, headers=headers)
    assert answer.status_code == status
    message = Status.FromString(answer.content).message if headers is PROTOBUF else answer.json()["message"]
    assert words in message
    assert sorted(shared.inbox.iterdir()) == before


@pytest.mark.parametrize("signal", ["metrics", "logs"])
@pytest.mark.parametrize("headers", [JSON, PROTOBUF])
def test_another_signal_is_told_to_send_traces_alone(shared: Listening, signal: str, headers: dict[str, str]) -> None:
    answer = httpx.post(shared.url.replace("traces", signal), content=b"{}", headers=headers)
    message = Status.FromString(answer.content).message if headers is PROTOBUF else answer.json()["message"]
    assert answer.status_code == 404
    assert "OTEL_METRICS_EXPORTER=none and OTEL_LOGS_EXPORTER=none" in message


def test_a_score_out_of_bounds_is_refused_with_its_field(shared: Listening) -> None:
    request = spans.request(spans.attempt(7, spans.gen_ai("No."), task_id="a", score=7.0)[:1])
    answer = httpx.post(shared.url, content=as_protobuf(request), headers=PROTOBUF)
    assert answer.status_code == 400
    assert "spans[0].attributes['retroformer.score'] is 7.0" in Status.FromString(answer.content).message


def test_what_was_acknowledged_survives_kills(tmp_path: Path) -> None:
    listening, acknowledged = Listening(tmp_path), set[str]()
    for life in range(3):
        for number in range(20):
            trace = 1 + life * 100 + number
            assert httpx.post(listening.url, json=an_attempt(trace)).status_code == 200
            acknowledged.add(f"task-{trace}")
        listening.stop(signal.SIGKILL)
        if life < 2:
            listening.start()
    assert {attempt.task.id for attempt in listening.attempts()} == acknowledged


def test_a_port_that_is_taken_is_one_sentence(shared: Listening) -> None:
    port = httpx.URL(shared.url).port
    command = [sys.executable, "-m", "retroformer", "collect", "listen", "mine.yaml", "--port", str(port)]
    done = subprocess.run(
        command, cwd=shared.inbox.parents[2], env=_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Port {port} of 127.0.0.1 cannot be used (")


ODD: dict[str, tuple[str, object]] = {
    "NUL": ("input.value", "a\0b"),
    "half of a character": ("input.value", "half \ud800"),
    "JSON that is cut": ("metadata", '{"task_id": "a'),
    "a role of a judge": ("gen_ai.input.messages", '[{"role": "judge", "parts": []}]'),
    "a score of 7": ("retroformer.score", 7.0),
}


@pytest.mark.parametrize("odd", [None, 7, [], {"name": "a"}])
def test_a_span_that_is_none_does_not_lose_the_others(shared: Listening, odd: object) -> None:
    name = f"beside {odd}"
    request = spans.request(spans.attempt(hash(name) % 10**9 + 1000, spans.gen_ai("No."), task_id=name, score=0.0))
    resource = request["resourceSpans"][0]
    resource["scopeSpans"][0]["spans"].append(odd)
    resource["scopeSpans"].append({"scope": None, "spans": None})
    answer = httpx.post(shared.url, content=json.dumps(request).encode(), headers=JSON)
    assert (answer.status_code, int(answer.json()["partialSuccess"]["rejectedSpans"])) == (200, 1)
    assert [attempt.attempt.score for attempt in shared.attempts() if attempt.task.id == name] == [0.0]


@pytest.mark.parametrize("kind", [JSON, PROTOBUF], ids=["json", "protobuf"])
@pytest.mark.parametrize("odd", ODD)
def test_one_odd_span_does_not_lose_the_others(shared: Listening, odd: str, kind: dict[str, str]) -> None:
    if odd == "half of a character" and kind is PROTOBUF:
        pytest.skip("Protobuf cannot hold it.")
    name = f"batch {odd} {kind['content-type']}"
    good = spans.attempt(hash(name) % 10**9 + 1000, spans.gen_ai("No."), task_id=name, score=0.0)
    bad = spans.span(9, dict([ODD[odd]]), trace=hash(name) % 10**9 + 5)
    bad["attributes"].append(spans.attribute("openinference.span.kind", "LLM"))
    bad["attributes"].append(spans.attribute("gen_ai.operation.name", "chat"))
    request = spans.request([*good, bad])
    body = json.dumps(request).encode() if kind is JSON else as_protobuf(request)
    answer = httpx.post(shared.url, content=body, headers=kind)
    assert answer.status_code == 200
    if kind is JSON:
        told = answer.json()["partialSuccess"]
        rejected, sentence = int(told["rejectedSpans"]), told["errorMessage"]
    else:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        rejected, sentence = partial.rejected_spans, partial.error_message
    assert rejected == 1
    assert "spans[2]" in sentence
    assert [attempt.attempt.score for attempt in shared.attempts() if attempt.task.id == name] == [0.0]
