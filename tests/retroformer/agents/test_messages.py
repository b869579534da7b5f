"""Tests that messages of agents become steps, in the forms of the OpenAI API, its client and LangChain."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict
from openai.types.chat import ChatCompletionMessage

from retroformer.agents.messages import clean_messages, steps_of
from retroformer.method.records import ContentPart, Step, content_text

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
    assert steps_of(messages) == (
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
    assert steps_of(messages) == (
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
    assert steps_of(messages) == (
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
    assert [step.observation for step in steps_of(messages)] == ["A key.", "It is locked."]


def test_parts_that_are_objects_keep_their_text_and_lose_their_thinking() -> None:
    parts = [SimpleNamespace(type="thinking", thinking="8?"), SimpleNamespace(type="text", text="7")]
    assert steps_of([{"role": "assistant", "content": parts}]) == (Step(action="7", observation=""),)


def test_thinking_is_left_out() -> None:
    message = {"role": "assistant", "content": "<think>8?</think>7", "reasoning_content": "Perhaps 8."}
    assert steps_of([message]) == (Step(action="7", observation=""),)


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
    assert steps_of(langchain) == steps_of(client) == wanted


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
        steps_of([{"role": "user", "content": "Go."}, message])


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


RESPONSES: list[Any] = [
    {"role": "user", "content": [{"type": "input_text", "text": "Refund order 1."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
    {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "I look.", "annotations": []}],
    },
    {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "find", "arguments": '{"order": 1}'},
    {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "find", "arguments": '{"order": 1}'},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "output_text", "text": "It is paid."}]},
    {"type": "function_call_output", "call_id": "call_1", "output": "It is open."},
    {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot refund it."}]},
]
ANTHROPIC: list[Any] = [
    {"role": "user", "content": "Refund order 1."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"order": 1}},
            {"type": "tool_use", "id": "toolu_2", "name": "find", "input": {"order": 1}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_2", "content": [{"type": "text", "text": "It is paid."}]},
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "It is open.", "is_error": False},
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": "I cannot refund it."}]},
]
GEMINI: list[Any] = [
    {"role": "user", "parts": [{"text": "Refund order 1."}]},
    {
        "role": "model",
        "parts": [
            {"text": "Hm.", "thought": True},
            {"text": "I look."},
            {"functionCall": {"name": "find", "args": {"order": 1}}, "thoughtSignature": "c2ln"},
            {"function_call": {"name": "find", "args": {"order": 1}}},
        ],
    },
    {
        "role": "function",
        "parts": [
            {"functionResponse": {"name": "find", "response": {"output": "It is open."}}},
            {"function_response": {"name": "find", "response": {"result": "It is paid."}}},
        ],
    },
    {"role": "model", "parts": [{"text": "I cannot refund it."}]},
]
BEDROCK: list[Any] = [
    {"role": "user", "content": [{"text": "Refund order 1."}]},
    {
        "role": "assistant",
        "content": [
            {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "s"}}},
            {"text": "I look."},
            {"toolUse": {"toolUseId": "tooluse_1", "name": "find", "input": {"order": 1}}},
            {"toolUse": {"toolUseId": "tooluse_2", "name": "find", "input": {"order": 1}}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "It is open."}], "status": "success"}},
            {"toolResult": {"toolUseId": "tooluse_2", "content": [{"json": "It is paid."}]}},
        ],
    },
    {"role": "assistant", "content": [{"text": "I cannot refund it."}]},
]
MISTRAL: list[Any] = [
    {"role": "user", "content": "Refund order 1."},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
            {"type": "text", "text": "I look."},
        ],
        "tool_calls": [
            {"id": "D681PevKs", "function": {"name": "find", "arguments": {"order": 1}}},
            {"id": "a1B2c3D4e", "function": {"name": "find", "arguments": '{"order": 1}'}},
        ],
        "prefix": False,
    },
    {"role": "tool", "name": "find", "tool_call_id": "D681PevKs", "content": "It is open."},
    {"role": "tool", "name": "find", "tool_call_id": "a1B2c3D4e", "content": [{"type": "text", "text": "It is paid."}]},
    {"role": "assistant", "content": "I cannot refund it."},
]
AI_SDK: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "Refund order 1."}]},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"order": 1}},
            {"type": "tool-call", "toolCallId": "c2", "toolName": "find", "args": {"order": 1}},
        ],
    },
    {
        "role": "tool",
        "content": [
            {
                "type": "tool-result",
                "toolCallId": "c1",
                "toolName": "find",
                "output": {"type": "text", "value": "It is open."},
            },
            {"type": "tool-result", "toolCallId": "c2", "toolName": "find", "result": "It is paid."},
        ],
    },
    {"role": "assistant", "content": "I cannot refund it."},
]
LANGCHAIN = [
    HumanMessage("Refund order 1."),
    AIMessage(
        [{"type": "text", "text": "I look."}, ANTHROPIC[1]["content"][3], ANTHROPIC[1]["content"][4]],
        tool_calls=[{"id": f"toolu_{number}", "name": "find", "args": {"order": 1}} for number in (1, 2)],
    ),
    ToolMessage("It is open.", tool_call_id="toolu_1"),
    ToolMessage("It is paid.", tool_call_id="toolu_2"),
    AIMessage("I cannot refund it."),
]
AI_SDK_UI: list[Any] = [
    {"id": "1", "role": "user", "parts": [{"type": "text", "text": "Refund order 1."}]},
    {
        "id": "2",
        "role": "assistant",
        "parts": [
            {"type": "step-start"},
            {"type": "reasoning", "text": "Hm.", "state": "done"},
            {"type": "text", "text": "I look.", "state": "done"},
            {"type": "tool-find", "toolCallId": "c1", "input": {"order": 1}, "output": "It is open."},
            {
                "type": "dynamic-tool",
                "toolName": "find",
                "toolCallId": "c2",
                "input": {"order": 1},
                "errorText": "Paid.",
            },
            {"type": "text", "text": "I cannot refund it."},
        ],
    },
]
SERVER_TOOLS: list[Any] = [
    {"role": "user", "content": "Refund order 1."},
    {
        "role": "assistant",
        "content": [
            {"type": "text", "text": "I look."},
            {"type": "mcp_tool_use", "id": "m1", "name": "find", "server_name": "s", "input": {"order": 1}},
            {"type": "mcp_tool_result", "tool_use_id": "m1", "content": [{"type": "text", "text": "It is open."}]},
            {"type": "server_tool_use", "id": "s1", "name": "find", "input": {"order": 1}},
            {"type": "web_search_tool_result", "tool_use_id": "s1", "content": "Paid."},
            {"type": "text", "text": "I cannot"},
            {"type": "text", "text": " refund it."},
        ],
    },
]
RESPONSES_WITH_MCP: list[Any] = [
    {"role": "user", "content": "Refund order 1."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {
        "type": "mcp_call",
        "id": "m1",
        "name": "find",
        "arguments": '{"order": 1}',
        "output": "It is open.",
        "error": None,
    },
    {"type": "mcp_call", "id": "m2", "name": "find", "arguments": '{"order": 1}', "output": None, "error": "Paid."},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I cannot refund it."}]},
]


@pytest.mark.parametrize(
    "messages", [AI_SDK_UI, SERVER_TOOLS, RESPONSES_WITH_MCP], ids=["ai sdk", "anthropic", "responses"]
)
def test_what_a_model_says_after_the_result_of_a_providers_tool_is_a_turn_of_its_own(messages: list[Any]) -> None:
    look, find, say = steps_of(messages)
    assert look == Step(thought="I look.", action='find({"order": 1})', observation="It is open.")
    assert find == Step(action='find({"order": 1})', observation="Paid.")
    assert say.action.replace("\n", "") == "I cannot refund it."
    kept = clean_messages(messages)
    assert "Hm." not in str(kept)
    assert clean_messages(kept) == kept


FORMS: dict[str, list[Any]] = {
    "responses": RESPONSES,
    "anthropic": ANTHROPIC,
    "gemini": GEMINI,
    "bedrock": BEDROCK,
    "mistral": MISTRAL,
    "ai sdk": AI_SDK,
    "langchain": list(LANGCHAIN),
    "langchain's dicts": [message_to_dict(message) for message in LANGCHAIN],
    "langchain's fields": [message.model_dump() for message in LANGCHAIN],
    "langchain's dumps": [dumpd(message) for message in LANGCHAIN],
}


@pytest.mark.parametrize("form", FORMS)
def test_the_messages_of_every_api_become_the_same_steps(form: str) -> None:
    assert steps_of(FORMS[form]) == (
        Step(thought="I look.", action='find({"order": 1})', observation="It is open."),
        Step(action='find({"order": 1})', observation="It is paid."),
        Step(action="I cannot refund it.", observation=""),
    )
    kept = clean_messages(FORMS[form])
    assert "Hm." not in str(kept)
    assert clean_messages(kept) == kept
    assert content_text(kept[0].content) == "Refund order 1."


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": [{"foo": {"bar": 1}}]}, r"messages\[0\].content\[0\] \(foo\) holds no text"),
        ({"role": "user", "content": [{"type": "hologram", "data": "x"}]}, r"content\[0\] \(hologram\) holds no text"),
        ({"role": "assistant", "content": [{"text": 5}]}, r"messages\[0\].content\[0\] \(nothing\) holds no text"),
        ({"role": "assistant", "parts": [{"type": "text", "text": 5}]}, r"parts\[0\] \(text\) holds no text"),
        ({"id": [], "kwargs": {"content": "x"}}, r"messages\[0\] has no role"),
        ({"role": "user", "parts": [{"foo": 1}]}, r"messages\[0\].parts\[0\] \(foo\) holds no text"),
        (
            {"type": "item_reference", "id": "msg_1"},
            r"messages\[0\] is of the type 'item_reference', which is no message",
        ),
        ({"role": "user", "blocks": [{"block_type": "text", "text": "x"}]}, r"messages\[0\].blocks cannot be read"),
        (
            {"role": "assistant", "content": "", "toolInvocations": [{}]},
            r"messages\[0\].toolInvocations cannot be read",
        ),
        ({"role": "user", "text": "x"}, r"messages\[0\].text cannot be read: give the message its content"),
        ({"role": "user", "content": {"text": "x"}}, r"messages\[0\].content is neither text nor a list of parts"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(message: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        clean_messages([message])


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "User", "content": "Go."}, "Go."),
        (("human", "Go."), "Go."),
        ({"role": "user", "content": [{"type": "text", "text": {"value": "Go.", "annotations": []}}]}, "Go."),
        ({"role": "user", "content": [{"guardContent": {"text": {"text": "Go.", "qualifiers": []}}}]}, "Go."),
        ({"role": "user", "content": [{"citationsContent": {"content": [{"text": "Go."}], "citations": [{}]}}]}, "Go."),
        ({"role": "user", "content": [{"type": "search_result", "content": [{"type": "text", "text": "Go."}]}]}, "Go."),
        ({"role": "user", "content": [{"image": {"format": "png"}}, {"text": "Go."}]}, "[image]\nGo."),
        ({"role": "user", "content": [{"type": "hologram"}, {"type": "text", "text": "Go."}]}, "[hologram]\nGo."),
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "I will not."),
        ({"role": "tool", "tool_call_id": "1", "content": [{"type": "image_url", "image_url": {}}]}, "[image_url]"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "content": []}, ""),
    ],
)
def test_text_is_read_from_whatever_holds_some(message: Any, text: str) -> None:
    (kept,) = clean_messages([message])
    assert content_text(kept.content) == text


def test_a_message_with_thousands_of_calls_takes_a_moment() -> None:
    calls = [{"id": str(number), "function": {"name": "look", "arguments": "{}"}} for number in range(20_000)]
    answers = [{"role": "tool", "tool_call_id": str(number), "content": str(number)} for number in range(20_000)]
    begun = time.monotonic()
    steps = steps_of([{"role": "assistant", "content": None, "tool_calls": calls}, *answers])
    assert [step.observation for step in steps] == [str(number) for number in range(20_000)]
    assert time.monotonic() - begun < 20
