"""Tests that messages of agents become steps, in the forms of the OpenAI API, its client and LangChain."""

from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from openai.types.chat import ChatCompletionMessage

from retroformer.agents.messages import clean_messages, steps_of
from retroformer.method.records import ContentPart, Step

CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "desk"}'}}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "A key."}


def test_a_tool_call_is_an_action_and_the_text_beside_it_the_thought() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Find the key."},
        {"role": "assistant", "content": "It may be on the desk.", "tool_calls": [CALL]},
        ANSWER,
        {"role": "assistant", "content": "The key is on the desk."},
    ]
    assert steps_of(clean_messages(messages)) == (
        Step(thought="It may be on the desk.", action='look({"at": "desk"})', observation="A key."),
        Step(action="The key is on the desk.", observation=""),
    )


def test_calls_made_at_once_keep_their_own_answers() -> None:
    second = {"id": "c2", "function": {"name": "open", "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [CALL, second]},
        {"role": "tool", "tool_call_id": "c2", "content": "It is locked."},
        ANSWER,
    ]
    assert steps_of(clean_messages(messages)) == (
        Step(action='look({"at": "desk"})', observation="A key."),
        Step(action="open({})", observation="It is locked."),
    )


def test_the_users_next_message_is_the_observation_of_a_text() -> None:
    messages = [
        {"role": "user", "content": "Which number?"},
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": [{"type": "text", "text": "Higher."}, {"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "content": "9"},
    ]
    assert steps_of(clean_messages(messages)) == (
        Step(action="7", observation="Higher.\n[image_url]"),
        Step(action="9", observation=""),
    )


def test_calls_without_ids_are_answered_in_their_order() -> None:
    calls = [{"function": {"name": name, "arguments": "{}"}} for name in ("look", "open")]
    messages = [
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "A key."},
        {"role": "tool", "content": "It is locked."},
    ]
    assert [step.observation for step in steps_of(clean_messages(messages))] == ["A key.", "It is locked."]


def test_parts_that_are_objects_keep_their_text_and_lose_their_thinking() -> None:
    parts = [SimpleNamespace(type="thinking", thinking="8?"), SimpleNamespace(type="text", text="7")]
    assert steps_of(clean_messages([{"role": "assistant", "content": parts}])) == (Step(action="7", observation=""),)


def test_thinking_is_left_out() -> None:
    message = {"role": "assistant", "content": "<think>8?</think>7", "reasoning_content": "Perhaps 8."}
    assert steps_of(clean_messages([message])) == (Step(action="7", observation=""),)


def test_messages_of_langchain_and_of_the_openai_client_become_the_same_steps() -> None:
    wanted = (
        Step(thought="Look.", action='look({"at": "desk"})', observation="A key."),
        Step(action="On the desk.", observation=""),
    )
    call: Any = {"name": "look", "args": {"at": "desk"}, "id": "c1"}
    langchain = [
        SystemMessage("Be brief."),
        HumanMessage("Find the key."),
        AIMessage("Look.", tool_calls=[call]),
        ToolMessage("A key.", tool_call_id="c1"),
        AIMessage("On the desk."),
    ]
    client = [
        {"role": "user", "content": "Find the key."},
        ChatCompletionMessage.model_validate({"role": "assistant", "content": "Look.", "tool_calls": [CALL]}),
        ANSWER,
        ChatCompletionMessage(role="assistant", content="On the desk."),
    ]
    assert steps_of(clean_messages(langchain)) == steps_of(clean_messages(client)) == wanted


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"content": "x"}, r"messages\[1\] has no role"),
        ("x", r"messages\[1\] has no role"),
        ({"role": "narrator", "content": "x"}, r"messages\[1\]\.role: 'narrator' is not a role"),
        (None, r"messages\[1\] has no role"),
        ({"role": "assistant", "content": 3}, r"messages\[1\]\.content is neither text nor a list of parts"),
        ({"role": "assistant", "tool_calls": 3}, r"messages\[1\]\.tool_calls is not a list"),
        ({"role": "assistant", "tool_calls": [{}]}, r"messages\[1\]\.tool_calls\[0\] has no name"),
        ({"role": "assistant", "tool_calls": ["x"]}, r"messages\[1\]\.tool_calls\[0\] has no name"),
    ],
)
def test_a_message_of_another_form_is_named_by_its_place(message: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        clean_messages([{"role": "user", "content": "Go."}, message])


THOUGHT = "<think>The secret thought.</think>"


def test_kept_messages_have_their_roles_calls_and_parts_but_no_thinking() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    kept = clean_messages(
        [
            SystemMessage("Be brief."),
            {"role": "user", "content": [{"type": "text", "text": "Find it."}, image, "Now."]},
            AIMessage(f"{THOUGHT}Look.", tool_calls=[{"id": "c1", "name": "look", "args": {"at": "desk"}}]),
            ToolMessage("A key.", tool_call_id="c1"),
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "The secret thought."}, {"text": "7"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "reasoning_text", "text": "The secret thought."},
                    {"text": "The secret thought.", "thought": True},
                    ContentPart(type="part", data={"reasoningContent": {"text": "The secret thought."}}),
                    {"type": "text", "text": "7", "reasoning_content": "The secret thought."},
                ],
            },
            {"role": "assistant", "content": None, "reasoning_content": "The secret thought.", "refusal": None},
        ]
    )
    assert [message.model_dump() for message in kept] == [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": (
                {"type": "text", "text": "Find it."},
                {"type": "image_url", "data": {"image_url": {"url": "https://example.org/a.png"}}},
                {"type": "text", "text": "Now."},
            ),
        },
        {
            "role": "assistant",
            "content": "Look.",
            "tool_calls": ({"id": "c1", "type": "function", "function": CALL["function"]},),
        },
        {"role": "tool", "content": "A key.", "tool_call_id": "c1"},
        {"role": "assistant", "content": ({"type": "text", "text": "7"},)},
        {"role": "assistant", "content": ({"type": "text", "text": "7"},)},
        {"role": "assistant", "content": None},
    ]
    assert steps_of(kept)[0] == Step(thought="Look.", action='look({"at": "desk"})', observation="A key.")


def test_messages_with_characters_that_no_store_holds_are_kept() -> None:
    (kept,) = clean_messages([{"role": "user", "content": [{"type": "text", "text": "a\0b"}]}])
    assert isinstance(kept.content, tuple)
    assert kept.content[0].text == "a\N{REPLACEMENT CHARACTER}b"
