"""Tests of native tool calling on the wire: how an attempt is shown to a model, and how its answer is read."""

from typing import Any

import pytest

from retroformer.agents.actors import conversation, read_answer, tools_of_request
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Message, Step, Task, Tool
from tests.support.tool_model import called

SEARCH = Tool(
    name="Search",
    description="Search a page.",
    parameters={"type": "object", "properties": {"title": {"type": "string"}}},
    form="Search[{title}]",
)
BEGINNING = (Message(role="system", content="Use tools."), Message(role="user", content="Where is Paris?"))


def scene(*steps: Step, answers: tuple[dict[str, Any] | None, ...] = ()) -> Scene:
    task = Task(id="1", environment="hotpotqa", split="train")
    return Scene(task=task, opening="", steps=steps, memory=Memory(), answers=answers)


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
    assert conversation(BEGINNING, scene(*steps), (SEARCH,))[2:] == [
        {
            "role": "assistant",
            "content": "I search.",
            "tool_calls": [
                {
                    "id": "call00000",
                    "type": "function",
                    "function": {"name": "Search", "arguments": '{"title": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "call00000", "content": "A city."},
        {"role": "assistant", "content": "In France."},
        {"role": "user", "content": "Use a tool."},
    ]


def test_a_call_with_unreadable_arguments_is_shown_as_text_since_servers_refuse_it() -> None:
    (said, heard) = conversation((), scene(Step(action='Search({"title": )', observation="Not JSON.")), (SEARCH,))
    assert said == {"role": "assistant", "content": 'Search({"title": )'}
    assert heard == {"role": "user", "content": "Not JSON."}


def test_text_and_calls_are_read_without_thinking() -> None:
    message = called(("Search", {"title": "Paris"}), text="<think>Hm.</think>I search.")
    text, calls = read_answer(message | {"reasoning_content": "Hm."})
    assert text == "I search."
    assert [(call.name, call.arguments) for call in calls] == [("Search", '{"title": "Paris"}')]


@pytest.mark.parametrize(
    ("message", "text", "names"),
    [
        ({}, "", []),
        ({"content": None, "tool_calls": None}, "", []),
        ({"content": [{"type": "text"}], "tool_calls": {}}, "", []),
        ({"content": [{"type": "text", "text": 5}, {"type": "text", "text": "x"}]}, "x", []),
        ({"content": " done ", "tool_calls": []}, "done", []),
        ({"tool_calls": [None, {"function": None}, {"function": {"name": 3}}]}, "", ["", "", ""]),
        ({"tool_calls": [{"function": {"name": "half \ud800", "arguments": {}}}]}, "", ["half \ufffd"]),
    ],
)
def test_whatever_a_server_sends_is_read(message: dict[str, Any], text: str, names: list[str]) -> None:
    said, calls = read_answer(message)
    assert said == text
    assert [call.name for call in calls] == names


MISTRAL: dict[str, Any] = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}], "signature": "s"},
        {"type": "text", "text": "I search."},
    ],
    "tool_calls": [
        {"id": "D681PevKs", "function": {"name": "Search", "arguments": '{"title": "Paris"}'}},
        {"id": "a1B2c3D4e", "function": {"name": "Search", "arguments": {"title": "Bergen"}}},
    ],
}
GEMINI: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "function-call-1",
            "type": "function",
            "extra_content": {"google": {"thought_signature": "c2ln"}},
            "function": {"name": "Search", "arguments": '{"title": "Paris"}'},
        }
    ],
}
DEEPSEEK: dict[str, Any] = {**GEMINI, "content": "<think>No.</think>I look.", "reasoning_content": "Hm."}


@pytest.mark.parametrize("message", [MISTRAL, GEMINI, DEEPSEEK])
def test_the_message_of_the_provider_is_sent_back_as_it_came(message: dict[str, Any]) -> None:
    steps = [Step(action=f"Search[{title}]", observation=f"{title}.") for title in ("Paris", "Bergen")]
    steps = steps[: len(message["tool_calls"])]
    then = Step(action="Done.", observation="Use a tool.")
    answers = (message, *[None] * (len(steps) - 1), {"role": "assistant", "content": "Done.", "refusal": None})
    said, *results, done, last = conversation((), scene(*steps, then, answers=answers), (SEARCH,))
    thought = "I look." if message is DEEPSEEK else message["content"]
    assert said == {**message, "content": thought}
    assert results == [
        {"role": "tool", "tool_call_id": call["id"], "content": step.observation}
        for call, step in zip(message["tool_calls"], steps, strict=True)
    ]
    assert (done, last) == (answers[-1], {"role": "user", "content": "Use a tool."})


def test_calls_that_a_proxy_leaves_in_the_content_are_read() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "Search", "input": {"title": "Paris"}}
    text, (call,) = read_answer({"content": [{"type": "text", "text": "I search."}, use], "tool_calls": None})
    assert (text, call.written, call.id) == ("I search.", 'Search({"title": "Paris"})', "toolu_1")


def test_a_call_with_blank_arguments_is_sent_back_with_an_object() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    step = Step(action="look({})", observation="A key.")
    said, heard = conversation((), scene(step, answers=(message,)), (Tool(name="look"),))
    assert said["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert heard["content"] == "A key."
