"""Tests of native tool calling on the wire: how an attempt is shown to a model, and how its answer is read."""

from typing import Any

import pytest

from retroformer.endpoint.answers import RequestedCall, conversation, read_answer, tools_of_request
from retroformer.method.records import Message, Step, Tool
from tests.support.tool_model import called

SEARCH = Tool(
    name="Search",
    description="Search a page.",
    parameters={"type": "object", "properties": {"title": {"type": "string"}}},
    form="Search[{title}]",
)
BEGINNING = (Message(role="system", content="Use tools."), Message(role="user", content="Where is Paris?"))


def test_a_tool_is_offered_without_its_form() -> None:
    (offered,) = tools_of_request([SEARCH])
    assert offered == {
        "type": "function",
        "function": {"name": "Search", "description": "Search a page.", "parameters": SEARCH.parameters},
    }


def test_every_step_is_a_turn_of_the_assistant_and_the_answer_to_it() -> None:
    steps = (
        Step(thought="I search.", action="Search[Paris]", observation="A city."),
        Step(action="In France.", observation="Use a tool."),
    )
    assert conversation(BEGINNING, steps, (SEARCH,))[2:] == [
        {
            "role": "assistant",
            "content": "I search.",
            "tool_calls": [
                {
                    "id": "call_0",
                    "type": "function",
                    "function": {"name": "Search", "arguments": '{"title": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call_0", "content": "A city."},
        {"role": "assistant", "content": "In France."},
        {"role": "user", "content": "Use a tool."},
    ]


def test_a_call_with_unreadable_arguments_is_shown_as_text_since_servers_refuse_it() -> None:
    (said, heard) = conversation((), (Step(action='Search({"title": )', observation="Not JSON."),), (SEARCH,))
    assert said == {"role": "assistant", "content": 'Search({"title": )'}
    assert heard == {"role": "user", "content": "Not JSON."}


def test_text_and_calls_are_read_without_thinking() -> None:
    message = called(("Search", {"title": "Paris"}), text="<think>Hm.</think>I search.")
    answer = read_answer(message | {"reasoning_content": "Hm."})
    assert answer.text == "I search."
    assert answer.calls == (RequestedCall("Search", '{"title": "Paris"}'),)


@pytest.mark.parametrize(
    ("message", "text", "names"),
    [
        ({}, "", []),
        ({"content": None, "tool_calls": None}, "", []),
        ({"content": [{"type": "text"}], "tool_calls": {}}, "", []),
        ({"content": " done ", "tool_calls": []}, "done", []),
        ({"tool_calls": [None, {"function": None}, {"function": {"name": 3}}]}, "", ["", "", ""]),
        ({"tool_calls": [{"function": {"name": "half \ud800", "arguments": {}}}]}, "", ["half \ufffd"]),
    ],
)
def test_whatever_a_server_sends_is_read(message: dict[str, Any], text: str, names: list[str]) -> None:
    answer = read_answer(message)
    assert answer.text == text
    assert [call.name for call in answer.calls] == names
