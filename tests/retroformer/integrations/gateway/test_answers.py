"""Tests of what the gateway reads of answers of providers: streams of all forms, errors and empty turns."""

import json
from typing import Any

import httpx
import pytest

from tests.support.gateway import RunningGateway
from tests.support.raw_server import RawServer
from tests.support.raw_server import http as response
from tests.support.vault_provider import chunk, head, sse

pytest.importorskip("aiohttp")

from retroformer.integrations.gateway.answers import RecordedAnswer

USAGE = {"prompt_tokens": 3, "completion_tokens": 5}


def read(*events: Any) -> RecordedAnswer:
    answer = RecordedAnswer("text/event-stream", "")
    answer.feed(sse(events))
    answer.end()
    return answer


def part(name: str = "", arguments: Any = None, **identity: Any) -> dict[str, Any]:
    function = ({"name": name} if name else {}) | ({} if arguments is None else {"arguments": arguments})
    return {**identity, "function": function}


def deltas(*parts: dict[str, Any] | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [chunk({"tool_calls": each if isinstance(each, list) else [each]}) for each in parts]


TIME = ("get_time", '{"in": "Oslo"}')
WEATHER = ("get_weather", '{"in": "Oslo"}')
STREAMS: dict[str, list[dict[str, Any]]] = {
    "as OpenAI's": deltas(
        part(WEATHER[0], "", index=0, id="a"),
        part("", '{"in":', index=0),
        part("", ' "Oslo"}', index=0),
        part(TIME[0], "", index=1, id="b"),
        part("", TIME[1], index=1),
    ),
    "in turns": deltas(
        [part(WEATHER[0], index=0, id="a"), part(TIME[0], index=1, id="b")],
        [part("", WEATHER[1], index=0), part("", TIME[1], index=1)],
    ),
    "whole calls of one index": deltas(part(*WEATHER, index=0, id="a"), part(*TIME, index=0, id="b")),
    "whole calls of one index without ids": deltas(part(*WEATHER, index=0), part(*TIME, index=0)),
    "whole calls without indices": deltas(part(*WEATHER, id="a"), part(*TIME, id="b")),
    "whole calls without ids or indices": deltas(part(*WEATHER), part(*TIME)),
    "in one delta without indices": deltas([part(*WEATHER, id="a"), part(*TIME, id="b")]),
    "in one delta without ids or indices": deltas(
        [part(WEATHER[0]), part(TIME[0])], [part("", WEATHER[1]), part("", TIME[1])]
    ),
    "whole calls that Mistral names null": deltas(
        [part(*WEATHER, index=0, id="null"), part(*TIME, index=0, id="null")]
    ),
    "pieces that repeat id and name": deltas(
        part(WEATHER[0], '{"in":', index=0, id="a"),
        part(WEATHER[0], ' "Oslo"}', index=0, id="a"),
        part(*TIME, index=0, id="b"),
    ),
    "pieces that repeat the name alone": deltas(
        part(WEATHER[0], '{"in":', index=0), part(WEATHER[0], ' "Oslo"}', index=0), part(*TIME, index=1)
    ),
    "pieces by id alone": deltas(
        part(WEATHER[0], "", id="a"), part(TIME[0], "", id="b"), part("", WEATHER[1], id="a"), part("", TIME[1], id="b")
    ),
    "empty ids after the first": deltas(
        part(WEATHER[0], "", index=0, id="a"), part("", WEATHER[1], index=0, id=""), part(*TIME, index=1, id="b")
    ),
    "arguments as objects": deltas(part(WEATHER[0], {"in": "Oslo"}, index=0), part(TIME[0], {"in": "Oslo"}, index=1)),
}


@pytest.mark.parametrize("form", STREAMS)
def test_streamed_calls_are_joined_by_id_or_else_by_a_new_name(form: str) -> None:
    message = read(*STREAMS[form]).message
    assert message is not None
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [WEATHER, TIME]


def test_a_call_without_arguments_ends_where_another_name_begins() -> None:
    message = read(*deltas(part("get_time", index=0), part(*WEATHER, index=0))).message
    assert message is not None
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("get_time", "{}"),
        WEATHER,
    ]


def test_two_calls_of_one_tool_without_ids_stay_two() -> None:
    first = [part("find", "", index=0, id="a"), part("", '{"a": 1}', index=0)]
    for second in (part("find", '{"a": 2}', index=0), part("", '{"a": 2}', index=0)):
        message = read(*deltas(*first, second)).message
        assert message is not None
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
            ("find", '{"a": 1}'),
            ("find", '{"a": 2}'),
        ]


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}, ""),
        ({"content": [{"type": "text", "text": "Yes."}]}, "Yes."),
        ({"refusal": "I will not."}, "I will not."),
        ({"content": "<think>Hm.</think>Yes.", "reasoning_content": "Hm."}, "Yes."),
        ({"reasoning": "Hm."}, ""),
        ({}, ""),
    ],
)
def test_text_of_all_forms_is_read_from_a_stream(delta: dict[str, Any], text: str) -> None:
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": USAGE}
    answer = read(chunk(delta), end)
    assert answer.message is not None
    assert (answer.message.content or "", answer.usage.completion_tokens) == (text, 5)
    old = {"choices": [{"index": 0, "delta": {"function_call": {"name": "find", "arguments": "{}"}}}]}
    called = read(chunk(delta), old).message
    assert called is not None
    assert [call.function.name for call in called.tool_calls] == ["find"]


def test_a_stream_whose_events_repeat_what_was_said_is_read_once() -> None:
    said = (("The", "The"), (" end.", "The end."))
    choices = ({"index": 0, "delta": {"content": new}, "message": {"content": whole}} for new, whole in said)
    message = read(*({"choices": [choice]} for choice in choices)).message
    assert message is not None
    assert message.content == "The end."


FAULT = {"code": 502, "message": "Provider returned error"}
FAULTS: dict[str, bytes] = {
    "an error in a chunk": sse([chunk({"content": "Yes"}), {"error": FAULT, "choices": []}]),
    "an error in a choice": sse([chunk({"content": "Yes"}), {"choices": [{"delta": {"content": ""}, "error": FAULT}]}]),
    "an end in error": sse([chunk({"content": "Yes"}), {"choices": [{"delta": {}, "finish_reason": "error"}]}]),
    "an event of an error": sse([chunk({"content": "Yes"})])[:-14] + b'event: error\ndata: {"message": "x"}\n\n',
    "an error in a message": json.dumps({"choices": [{"message": {"content": "Yes", "error": FAULT}}]}).encode(),
    "an error beside a choice": json.dumps({"error": FAULT, "choices": [{"message": {"content": "Yes"}}]}).encode(),
    "nothing": b'{"choices": []}',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_with_status_200_is_forwarded_and_not_recorded(
    running: RunningGateway, provider: RawServer, fault: str
) -> None:
    body, run = FAULTS[fault], f"fault-{list(FAULTS).index(fault)}"
    kind = "application/json" if body.startswith(b"{") else "text/event-stream"
    whole = (
        response("200 OK", body)
        if kind == "application/json"
        else head(kind) + b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    )
    provider.answer = lambda _, write: write(whole)
    asked = {"messages": [{"role": "user", "content": "Open."}]}
    answer = httpx.post(f"{running.of_run(run)}/chat/completions", json=asked)
    assert answer.content == body
    assert httpx.post(f"http://{running.host}/runs/{run}/score", json={"score": 0}).status_code == 409
    provider.requests.clear()


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": {"a": 1}}],
        [{"role": "user", "content": {"a": [None]}}],
        [{"role": "user", "content": [7, None]}],
        [{"role": "assistant", "tool_calls": 7}],
        [{"type": "item_reference"}],
        [7, None, "x", []],
    ],
)
def test_recording_never_fails_a_call(running: RunningGateway, provider: RawServer, messages: Any) -> None:
    billed = {"choices": [{"index": 0, "message": {"content": None}, "finish_reason": "stop"}], "usage": USAGE}
    provider.answer = lambda _, write: write(response("200 OK", json.dumps(billed).encode()))
    answer = httpx.post(f"{running.of_run('odd')}/chat/completions", json={"messages": messages})
    assert answer.json() == billed
    provider.requests.clear()
