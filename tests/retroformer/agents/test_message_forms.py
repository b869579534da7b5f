"""Tests that the messages of every API become the same steps, and that what cannot be read is refused by its name."""

import time
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, message_to_dict

from retroformer.agents.messages import clean_messages, steps_of
from retroformer.method.records import Step, content_text

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
    look, find, say = steps_of(clean_messages(messages))
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
    assert steps_of(clean_messages(FORMS[form])) == (
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
    steps = steps_of(clean_messages([{"role": "assistant", "content": None, "tool_calls": calls}, *answers]))
    assert [step.observation for step in steps] == [str(number) for number in range(20_000)]
    assert time.monotonic() - begun < 20
