"""Tests that what an agent returned is read in each of its forms, and that anything else is named by its field."""

import math
from typing import Any

import pytest

from retroformer.agents.attempt_result import AttemptResult, read_result
from retroformer.method.records import Step, Usage


def test_the_three_forms_of_an_attempt_are_read() -> None:
    step = {"thought": "Hm.", "action": "look", "observation": "A key."}
    calls = [{"id": "1", "function": {"name": "look", "arguments": "{}"}}]
    messages = [
        {"role": "assistant", "content": "Hm.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "A key."},
    ]
    wanted = (Step(thought="Hm.", action="look", observation="A key."),)
    assert read_result({"score": 0, "steps": [step]}, None) == AttemptResult(steps=wanted, output="look", score=0.0)
    assert read_result({"score": True, "messages": messages}, None).score == 1.0
    assert read_result({"score": True, "messages": messages}, None).steps[0].observation == "A key."
    alone = read_result({"score": 0.5, "output": "42", "usage": {"calls": 2}}, None)
    assert alone.steps == (Step(action="42", observation=""),)
    assert (alone.output, alone.usage) == ("42", Usage(calls=2))


def test_a_text_is_the_answer_and_a_list_the_messages_if_a_function_gives_the_score() -> None:
    rated = []

    def score(task: Any, output: str) -> float:
        rated.append((task, output))
        return 0.25

    assert read_result("42", {"id": "a"}, score).score == 0.25
    assert read_result([{"role": "assistant", "content": "43"}], {"id": "b"}, score).score == 0.25
    assert rated == [({"id": "a"}, "42"), ({"id": "b"}, "43")]


def test_the_agents_own_score_counts_before_the_function() -> None:
    assert read_result({"score": 1, "output": ""}, None, lambda task, output: 0.0).score == 1.0


def test_rewards_of_steps_do_not_count_beside_the_score() -> None:
    steps = [{"action": "a", "observation": "", "reward": 5.0}, {"action": "b", "observation": "", "reward": -1.0}]
    assert [step.reward for step in read_result({"score": 0.5, "steps": steps}, None).steps] == [0.0, 0.0]


def test_thinking_is_no_part_of_an_attempt() -> None:
    step = {"thought": "<think>x</think>Hm.", "action": "<think>go?</think>look", "observation": "<think>"}
    assert read_result({"score": 0, "steps": [step]}, None).steps == (
        Step(thought="Hm.", action="look", observation="<think>"),
    )
    assert read_result({"score": 0, "output": "<think>41</think>42"}, None).output == "42"
    assert read_result({"steps": [step]}, None, lambda task, output: output == "look").score == 1


def test_usage_as_servers_report_it_is_counted() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "details": {}}
    counted = Usage(prompt_tokens=3, completion_tokens=4)
    assert read_result({"score": 0, "output": "", "usage": usage}, None).usage == counted
    assert read_result({"score": 0, "output": "", "usage": None}, None).usage == Usage()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "the agent returned NoneType: return a text, messages or an object"),
        (7, "the agent returned int"),
        ({"output": "x"}, "score is missing"),
        ({"score": None}, "score is missing"),
        ({"score": -0.1}, "score is -0.1: it must be a number from 0 to 1"),
        ({"score": math.inf}, "score is inf"),
        ({"score": 10**400}, "score is 1000"),
        ({"score": "1"}, "score is '1'"),
        ({"score": [1]}, r"score is \[1\]"),
        ({"score": 0, "ouput": "x"}, "there is no answer to rate: .*; 'ouput' is none of them, did you mean output?"),
        ({"score": 0, "output": 3}, "output: Input should be a valid string"),
        ({"score": 0, "steps": [{"action": "a"}]}, r"steps\.0\.observation: Field required"),
        ({"score": 0, "usage": {"calls": -1}}, r"usage\.calls: Input should be greater than or equal to 0"),
        ({"score": 0, "messages": [{"role": "assistant", "content": 3}]}, r"messages\[0\]\.content is neither"),
    ],
)
def test_what_is_no_attempt_is_named_by_its_field(value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_result(value, None)


@pytest.mark.parametrize("value", [{}, {"error": "the backend is down"}, {"level": "info"}, {"output": None}])
def test_what_holds_no_answer_is_not_rated_as_an_empty_one(value: Any) -> None:
    with pytest.raises(ValueError, match="there is no answer to rate"):
        read_result(value, None, lambda task, output: 0.0)
    assert read_result({"output": ""}, None, lambda task, output: 0.0).score == 0
