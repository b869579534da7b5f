"""Tests of malformed OTLP traces: each is refused in one sentence with its line and field."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")

from retroformer.errors import MissingInput
from retroformer.integrations.otlp.attempts import attempts_of
from retroformer.integrations.otlp.files import read_spans
from tests.support import spans

SPAN = "resourceSpans[0].scopeSpans[0].spans[1]"
Change = Callable[[spans.Json], Any]


def field(name: str, value: Any) -> Change:
    return lambda span: span.update({name: value})


def without(name: str) -> Change:
    return lambda span: span.pop(name)


def attribute(name: str, value: Any) -> Change:
    return lambda span: span["attributes"].append(spans.attribute(name, value))


def messages(value: Any) -> Change:
    return attribute("gen_ai.input.messages", value if isinstance(value, str) else json.dumps(value))


def part(**fields: Any) -> Change:
    return messages([{"role": "user", "parts": [fields]}])


INPUT, ROLE = "llm.input_messages", "message.role"
FAULTS: dict[str, tuple[Change, str]] = {
    "no trace id": (without("traceId"), "traceId"),
    "a short trace id": (field("traceId", "ab"), "traceId"),
    "a trace id of zeros": (field("traceId", "0" * 32), "traceId"),
    "a trace id in base64": (field("traceId", "AAAAAAAAAAAAAAAAAAAAAQ=="), "traceId"),
    "no span id": (without("spanId"), "spanId"),
    "a number as span id": (field("spanId", 7), "spanId"),
    "a parent of letters": (field("parentSpanId", "x" * 16), "parentSpanId"),
    "no start": (without("startTimeUnixNano"), "startTimeUnixNano"),
    "a start of words": (field("startTimeUnixNano", "noon"), "startTimeUnixNano"),
    "a start before 1970": (field("startTimeUnixNano", "-5"), "startTimeUnixNano"),
    "a start without end": (field("startTimeUnixNano", "9" * 30), "startTimeUnixNano"),
    "a name that is none": (field("name", ["a"]), "name"),
    "a name with NUL": (field("name", "a\0"), "name"),
    "attributes that are no list": (field("attributes", {"a": 1}), "attributes"),
    "an attribute without a key": (field("attributes", [{"value": {"intValue": "1"}}]), "attributes[0].key"),
    "an integer of words": (
        field("attributes", [{"key": "a", "value": {"intValue": "x"}}]),
        "[0].value.intValue",
    ),
    "a text that is a number": (field("attributes", [{"key": "a", "value": {"stringValue": 1}}]), "stringValue"),
    "a truth value of words": (field("attributes", [{"key": "a", "value": {"boolValue": "so"}}]), "boolValue"),
    "a list that is none": (field("attributes", [{"key": "a", "value": {"arrayValue": []}}]), "arrayValue"),
    "events that are no list": (field("events", 7), "events"),
    "a status of 7": (field("status", {"code": 7}), "status.code"),
    "a status of words": (field("status", {"code": "BAD"}), "status.code"),
    "a status in a list": (field("status", {"code": [2]}), "status.code"),
    "an empty task": (attribute("retroformer.task.id", ""), "'retroformer.task.id'"),
    "a list of tasks": (attribute("retroformer.task.id", ["a"]), "'retroformer.task.id'"),
    "a score above 1": (attribute("retroformer.score", 1.5), "'retroformer.score'"),
    "a score below 0": (attribute("retroformer.score", -1), "'retroformer.score'"),
    "a score of words": (attribute("retroformer.score", "good"), "'retroformer.score'"),
    "advice that is a number": (attribute("retroformer.advice", 7), "'retroformer.advice'"),
    "advice with a number in it": (attribute("retroformer.advice", ["a", 7]), "'retroformer.advice'"),
    "a trial below 0": (attribute("retroformer.trial", -1), "'retroformer.trial'"),
    "metadata that is no JSON": (attribute("metadata", "{"), "'metadata'"),
    "metadata that is a list": (attribute("metadata", "[]"), "'metadata'"),
    "a score in metadata of 9": (attribute("metadata", '{"score": 9}'), "'metadata'].score"),
    "metadata with two scores": (
        attribute("metadata", '{"score": 0, "score": 1}'),
        "'metadata'] is not JSON ('score' app",
    ),
    "messages that are no JSON": (messages("["), "'gen_ai.input.messages'"),
    "messages that are no list": (messages({"role": "user"}), "'gen_ai.input.messages'"),
    "a message without a role": (messages([{"parts": []}]), "'gen_ai.input.messages'][0] has no role"),
    "a message of a judge": (messages([{"role": "judge", "parts": []}]), "[0].role"),
    "a message whose parts are no list": (messages([{"role": "user", "parts": 7}]), "[0].parts"),
    "a part without a type": (part(content="a"), "[0].parts[0] (content) holds no text"),
    "a text without content": (part(type="text"), "[0].parts[0] (text) holds no text"),
    "a call without a name": (part(type="tool_call", id="1"), "[0].tool_calls[0] has no name"),
    "a role that is a number": (attribute(f"{INPUT}.0.{ROLE}", 7), f"'{INPUT}'][0]"),
    "a role of a judge": (attribute(f"{INPUT}.0.{ROLE}", "judge"), f"'{INPUT}'][0].role"),
    "a message without a number": (attribute(f"{INPUT}.x.{ROLE}", "user"), f"'{INPUT}'].x"),
    "tokens below 0": (attribute("gen_ai.usage.input_tokens", -1), "'gen_ai.usage.input_tokens'"),
    "tokens of words": (attribute("gen_ai.usage.output_tokens", "many"), "'gen_ai.usage.output_tokens'"),
}


def exported(change: Change) -> list[spans.Json]:
    """Return three requests, of which the second has a malformed span."""
    requests = [spans.request(spans.attempt(trace, spans.gen_ai("No."), score=0.0)) for trace in (1, 2, 3)]
    change(requests[1]["resourceSpans"][0]["scopeSpans"][0]["spans"][1])
    return requests


@pytest.mark.parametrize("fault", FAULTS)
def test_a_malformed_span_is_refused_with_line_and_field(fault: str, tmp_path: Path) -> None:
    change, place = FAULTS[fault]
    path = spans.write_lines(tmp_path / "traces.jsonl", exported(change))
    with pytest.raises(MissingInput) as refused:
        list(attempts_of(read_spans(path)))
    sentence = str(refused.value)
    assert sentence.startswith(f"Line 2 of {path}: {SPAN}")
    assert place in sentence
    assert "\n" not in sentence


def test_null_is_a_field_that_is_not_set(tmp_path: Path) -> None:
    (request,) = exported(lambda _: None)[:1]
    wanted = list(attempts_of(read_spans(spans.write_lines(tmp_path / "traces.jsonl", [request]))))
    for span in request["resourceSpans"][0]["scopeSpans"][0]["spans"]:
        unset = ("parentSpanId", "events", "status", "attributes", "traceState", "links", "flags")
        span |= {name: None for name in unset if name not in span}
    request["resourceSpans"] += [{"resource": None, "scopeSpans": None}, {"scopeSpans": [{"spans": None}]}]
    assert list(attempts_of(read_spans(spans.write_lines(tmp_path / "traces.jsonl", [request])))) == wanted


GOOD = json.dumps(spans.request(spans.attempt(1, spans.gen_ai("No."), score=0.0))).encode() + b"\n"
FILES: dict[str, tuple[str, bytes, str]] = {
    "half a line": ("a.jsonl", GOOD + GOOD[:100], "Line 2 of "),
    "no text": ("a.jsonl", GOOD + b"\xff\n", "Line 2 of "),
    "a kind twice": ("a.jsonl", GOOD + GOOD.replace(b'"name":', b'"name": "a", "name":'), "Line 2 of "),
    "another object": ("a.jsonl", GOOD + b'{"resourceLogs": []}\n', "Line 2 of "),
    "a number": ("a.jsonl", b"7\n", "Line 1 of "),
    "half of a gzip": ("a.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00", "a.jsonl.gz"),
    "protobuf cut short": ("a.pb", b"\x00\x00\x00\x09abc", "Message 1 of "),
    "protobuf of another kind": ("a.pb", b"\x0a\xff\xff", "Message 1 of "),
    "a huge message": ("a.pb", b"\x7f\xff\xff\xff", "Message 1 of "),
    "another name": ("a.txt", GOOD, "does not have the extension of a trace file"),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_damaged_file_is_refused_in_one_sentence(fault: str, tmp_path: Path) -> None:
    name, content, words = FILES[fault]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MissingInput) as refused:
        list(attempts_of(read_spans(tmp_path / name)))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
