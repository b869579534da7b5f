"""Tests that the thinking of a reasoning model is separated from its answer."""

import asyncio
import json
from typing import Any

import pytest

from retroformer.agents.actors import ReactActor
from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.answers import strip_thinking, strip_thinking_from_part
from retroformer.endpoint.model import LanguageModel
from retroformer.errors import EndpointFailure
from retroformer.method.prompts import load_pack
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import Memory, Task
from tests.support.raw_server import RawServer, Request, Write, http


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think>guess 7?</think>guess 50", "guess 50"),
        ("<think>\n\n</think>\n\nguess 50\n", "guess 50\n"),
        ("<think>a</think> Look <think>b</think>up.", "Look up."),
        ("Perhaps 7.\n</think>\n\nguess 50", "guess 50"),
        ("<think>guess 7, cut off by the limit", ""),
        ("First this. <think>and then", "First this. "),
        ("<think>a <think> within</think>b</think>\n guess 50", "guess 50"),
        ("Use the tag </think> to end thinking.", "Use the tag </think> to end thinking."),
        ("Perhaps 7.</think>guess 50", "guess 50"),
        ('Perhaps "7"</think>{"guess": 50}', '{"guess": 50}'),
        ("<think>a <think> within</think>b</think>guess 50", "guess 50"),
        ("Quote `</think>`, '</think>' or \"</think>\".", "Quote `</think>`, '</think>' or \"</think>\"."),
        ("The answer ends with </think>.", "The answer ends with </think>."),
        ("<thought>\n7\n</thought>\nguess 50", "guess 50"),
        ('<thinking mode="deep">7</thinking >guess 50', "guess 50"),
        ("<|channel>thought\n7<channel|>guess 50", "guess 50"),
        ("<|channel>thought\n7, cut off", ""),
        ("[THINK]guess 7[/THINK]guess 50", "guess 50"),
        ("<thinking>\n7\n</thinking>\nguess 50", "guess 50"),
        ("<THINK>guess 7?</THINK>guess 50", "guess 50"),
        ("Perhaps 7.\n</Think>\nguess 50", "guess 50"),
        ("<think>7</THINK>guess 50", "guess 50"),
        ("<seed:think>7</seed:think>guess 50", "guess 50"),
        ("◁think▷guess 7?◁/think▷guess 50", "guess 50"),
        ("<|START_THINKING|>guess 7?<|END_THINKING|>guess 50", "guess 50"),
        ("<|begin_of_thought|>7<|end_of_thought|>\n\nguess 50", "guess 50"),
        ("<|inner_prefix|>guess 7?<|inner_suffix|>guess 50", "guess 50"),
        (
            "<|channel|>analysis<|message|>guess 7?<|end|>"
            "<|start|>assistant<|channel|>final<|message|>guess 50<|return|>",
            "guess 50",
        ),
        ("<|channel|>analysis<|message|>guess 7, cut off", ""),
        ("<|channel|>analysis<|message|>7?<|channel|>final <|constrain|>json<|message|>guess 50", "guess 50"),
        (
            "<|channel|>analysis<|message|>7?<|end|><|start|>assistant<|channel|>commentary<|message|>Next.<|end|>"
            "<|start|>assistant<|channel|>analysis<|message|>8?<|end|><|start|>assistant<|channel|>final<|message|> 50",
            "Next. 50",
        ),
        ("analysisWe could guess 7.assistantfinalguess 50", "guess 50"),
        ("analysisWe could guess 7, cut off", ""),
        ("analysis of the page: guess 50", "analysis of the page: guess 50"),
        ("x = a[<|b|>]", "x = a[<|b|>]"),
        ("  guess 50 ", "  guess 50 "),
        ("if a < think > b: pass", "if a < think > b: pass"),
        ("", ""),
    ],
)
def test_only_the_answer_is_left_of_a_text_with_thinking(text: str, answer: str) -> None:
    assert strip_thinking(text) == answer


@pytest.mark.parametrize(
    ("part", "left"),
    [
        ({"type": "thinking", "thinking": "7?"}, None),
        ({"type": "reasoning_text", "text": "7?"}, None),
        ({"type": "redacted_reasoning", "data": "7?"}, None),
        ({"text": "7?", "thought": True}, None),
        ({"reasoningContent": {"reasoningText": {"text": "7?"}}}, None),
        ({"type": "part", "data": {"reasoningContent": "7?"}}, None),
        ({"type": "text", "text": "50", "reasoning": "7?"}, {"type": "text", "text": "50"}),
        (
            {"type": "text", "text": "50", "data": {"thoughtSignature": "7?"}},
            {"type": "text", "text": "50", "data": {}},
        ),
        ({"type": "text", "text": ""}, {"type": "text", "text": ""}),
        ({"type": "image_url", "image_url": {"url": "a"}}, {"type": "image_url", "image_url": {"url": "a"}}),
    ],
)
def test_a_part_of_a_message_loses_its_thinking(part: dict[str, Any], left: dict[str, Any] | None) -> None:
    assert strip_thinking_from_part(part) == left


def act(message: dict[str, Any]) -> Move:
    """Return the move of a ReAct actor whose model answers with this message."""

    def answer(request: Request, write: Write) -> None:
        usage = {"prompt_tokens": 11, "completion_tokens": 90}
        write(http("200 OK", json.dumps({"choices": [{"message": message}], "usage": usage}).encode()))

    async def once(server: RawServer) -> Move:
        model = LanguageModel(EndpointSection(base_url=server.url, model="big"), server.url)
        actor = ReactActor(model, load_pack("default", "hotpotqa"), temperature=0.0, max_new_tokens=100)
        task = Task(id="1", environment="hotpotqa", split="train")
        try:
            return await actor.act(Scene(task=task, opening="Which number?", steps=(), memory=Memory()))
        finally:
            await model.close()

    with RawServer(answer) as server:
        return asyncio.run(once(server))


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>Action 1: search[seven]</think>\nA half.\nAction 1: search[fifty]"},
        {"content": "A half.\nAction 1: search[fifty]", "reasoning_content": "Action 1: search[seven]"},
        {"content": "A half.\nAction 1: search[fifty]", "reasoning": "Action 1: search[seven]"},
        {"content": "Action 1: search[seven]\n</think>\nA half.\nAction 1: search[fifty]"},
        {"content": "Action 1: search[seven]</think>A half.\nAction 1: search[fifty]"},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Action 1: search[seven]"}]},
                {"type": "text", "text": "A half.\nAction 1: search[fifty]"},
            ]
        },
    ],
)
def test_no_action_is_read_from_thinking(message: dict[str, Any]) -> None:
    move = act(message)
    assert (move.thought, move.action) == ("A half.", "search[fifty]")
    assert (move.usage.prompt_tokens, move.usage.completion_tokens) == (11, 90)


@pytest.mark.parametrize(
    "message",
    [
        {"content": None, "reasoning_content": "Action 1: search[seven]"},
        {"content": None, "tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]},
        {"content": None, "refusal": "I cannot help with that."},
        {"content": [], "tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]},
        {"content": [{"type": "text", "text": None}], "refusal": "I cannot help with that."},
        {"content": [{"type": "text", "text": 5}]},
        {"content": "<think>Action 1: search[seven]"},
    ],
)
def test_a_model_that_only_thinks_acts_with_an_empty_action(message: dict[str, Any]) -> None:
    assert act(message).action == ""


def test_a_message_without_text_or_anything_in_its_place_is_a_failure_of_the_endpoint() -> None:
    with pytest.raises(EndpointFailure, match="something that is not a completion"):
        act({"content": None, "reasoning_content": "", "tool_calls": []})
