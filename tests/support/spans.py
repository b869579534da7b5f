"""Traces of agents in OTLP's JSON encoding, as instrumented programs export them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Json = dict[str, Any]
BASE_NS = 1_790_000_000_000_000_000


def attribute(name: str, value: Any) -> Json:
    return {"key": name, "value": _value(value)}


def span(number: int, attributes: Mapping[str, Any], *, trace: int = 1, parent: int = 0, name: str = "attempt") -> Json:
    """Return a span; its start follows from its number and trace."""
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(BASE_NS + trace * 1_000_000 + number),
        "endTimeUnixNano": str(BASE_NS + trace * 1_000_000 + number + 500),
        "attributes": [attribute(name, value) for name, value in attributes.items()],
        "status": {},
    }


def request(spans: Sequence[Json]) -> Json:
    scope = {"scope": {"name": "test"}, "spans": list(spans)}
    return {
        "resourceSpans": [{"resource": {"attributes": [attribute("service.name", "agent")]}, "scopeSpans": [scope]}]
    }


def openinference(said: str) -> Json:
    """Return the attributes of a model call that uses a tool's result, in the convention of OpenInference."""
    call = "llm.input_messages.2.message.tool_calls.0.tool_call"
    return {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Handle refunds.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": "Refund the order.",
        "llm.input_messages.2.message.role": "assistant",
        f"{call}.id": "call-1",
        f"{call}.function.name": "find",
        f"{call}.function.arguments": '{"order": 1}',
        "llm.input_messages.3.message.role": "tool",
        "llm.input_messages.3.message.tool_call_id": "call-1",
        "llm.input_messages.3.message.content": "Order 1 of Ada",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": said,
        "llm.token_count.prompt": 20,
        "llm.token_count.completion": 5,
    }


def gen_ai(said: str) -> Json:
    """Return the attributes of the same model call in OpenTelemetry's own convention."""
    call = {"type": "tool_call", "id": "call-1", "name": "find", "arguments": {"order": 1}}
    result = {"type": "tool_call_response", "id": "call-1", "response": "Order 1 of Ada"}
    asked = [
        {"role": "system", "parts": [{"type": "text", "content": "Handle refunds."}]},
        {"role": "user", "parts": [{"type": "text", "content": "Refund the order."}]},
        {"role": "assistant", "parts": [{"type": "reasoning", "content": "Hm."}, call]},
        {"role": "tool", "parts": [result]},
    ]
    answered = [{"role": "assistant", "parts": [{"type": "text", "content": said}], "finish_reason": "stop"}]
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps(answered),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 5,
    }


def attempt(trace: int, call: Mapping[str, Any], **facts: Any) -> list[Json]:
    """Return the spans of an attempt: one for the attempt, with facts such as `score`, and one for the call in it."""
    names = {f"retroformer.{name.replace('_', '.')}": value for name, value in facts.items()}
    return [span(1, names, trace=trace), span(2, call, trace=trace, parent=1, name="chat")]


def write_lines(path: Path, requests: Sequence[Json]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in requests))
    return path


def _value(value: Any) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": [attribute(name, item) for name, item in value.items()]}}
    raise TypeError(f"OTLP has no value {value!r}")
