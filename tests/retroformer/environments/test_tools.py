"""Tests that a tool call becomes an action of its environment, and the action the same call again."""

from typing import Any

import pytest

from retroformer.environments.tools import ToolAction, ToolFault, action_of, call_of, read_arguments
from retroformer.method.records import Tool

SEARCH = Tool(name="Search", form="Search[{title}]")
ADD = Tool(name="add")
MOVE = Tool(name="move", form="put {thing} in {place}")
TOOLS = (SEARCH, ADD, MOVE)


@pytest.mark.parametrize(
    ("call", "action"),
    [
        (ToolAction("Search", {"title": "Paris"}), "Search[Paris]"),
        (ToolAction("Search", {"title": "a [b]\nc"}), "Search[a [b]\nc]"),
        (ToolAction("move", {"thing": "mug 1", "place": "shelf 2"}), "put mug 1 in shelf 2"),
        (ToolAction("add", {"a": 1, "b": [2, "é"]}), 'add({"a": 1, "b": [2, "é"]})'),
        (ToolAction("add", {}), "add({})"),
    ],
)
def test_a_call_becomes_an_action_and_the_action_the_same_call(call: ToolAction, action: str) -> None:
    assert action_of(call, TOOLS) == action
    assert call_of(action, TOOLS) == call


def test_an_argument_that_is_no_text_is_written_as_json() -> None:
    assert action_of(ToolAction("Search", {"title": 7}), TOOLS) == "Search[7]"


def test_characters_that_no_store_holds_are_replaced() -> None:
    assert action_of(ToolAction("Search", {"title": "half \ud800"}), TOOLS) == "Search[half \ufffd]"


@pytest.mark.parametrize("action", ["look", "subtract({})", "add(1)", 'add({"a": )', "add", "Search Paris", ""])
def test_an_action_that_is_no_call_is_none(action: str) -> None:
    assert call_of(action, TOOLS) is None


def test_an_argument_that_comes_twice_in_a_form_must_be_the_same() -> None:
    twice = (Tool(name="echo", form="{word} and {word}"),)
    assert call_of("go and go", twice) == ToolAction("echo", {"word": "go"})
    assert call_of("go and come", twice) is None


@pytest.mark.parametrize(
    ("text", "arguments"), [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (" ", {}), (None, {}), ("{}", {})]
)
def test_arguments_come_as_text_as_an_object_or_not_at_all(text: object, arguments: dict[str, Any]) -> None:
    assert read_arguments("add", text) == arguments


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": ', "The arguments of add are not JSON"),
        ('{"a": NaN}', "The arguments of add are not JSON (NaN is no number of JSON)"),
        ("[" * 100_000, "The arguments of add are not JSON"),
        ("[1]", "The arguments of add are not a JSON object"),
        (7, "The arguments of add are not a JSON object"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_read_are_one_sentence(text: object, words: str) -> None:
    with pytest.raises(ToolFault) as fault:
        read_arguments("add", text)
    assert words in str(fault.value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (ToolAction("dance", {}), "There is no tool 'dance': call one of Search, add, move."),
        (ToolAction("move", {"thing": "x"}), "The call of move lacks place: give all of its arguments."),
    ],
)
def test_a_call_that_cannot_be_done_is_one_sentence(call: ToolAction, sentence: str) -> None:
    with pytest.raises(ToolFault) as fault:
        action_of(call, TOOLS)
    assert str(fault.value) == sentence
