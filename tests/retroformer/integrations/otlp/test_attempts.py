"""Tests of attempts in OTLP traces: what the agent did, and which task, advice and score it had."""

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.proto")

from retroformer.cases.case import Case
from retroformer.cases.traced import Omission, TracedAttempt, cases_of
from retroformer.errors import MissingInput
from retroformer.integrations.otlp.attempts import attempts_of
from retroformer.integrations.otlp.files import read_spans
from tests.support import spans

CONVENTIONS = {"openinference": spans.openinference, "gen_ai": spans.gen_ai}


def read_all(folder: Path, *exported: list[spans.Json], score: str | None = None) -> list[TracedAttempt]:
    path = spans.write_lines(folder / "traces.jsonl", [spans.request(members) for members in exported])
    entries = list(attempts_of(read_spans(path), score))
    assert not [entry for entry in entries if isinstance(entry, Omission)]
    return [entry for entry in entries if isinstance(entry, TracedAttempt)]


def skipped(folder: Path, *exported: list[spans.Json]) -> list[str]:
    path = spans.write_lines(folder / "traces.jsonl", [spans.request(members) for members in exported])
    return [entry.reason for entry in attempts_of(read_spans(path)) if isinstance(entry, Omission)]


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_conversation_with_a_tool_is_read(tmp_path: Path, convention: str) -> None:
    [attempt] = read_all(
        tmp_path, spans.attempt(1, CONVENTIONS[convention]("Refunded."), task_id="refund-1", score=0.5, task_split="a")
    )
    assert (attempt.task.id, attempt.task.input, attempt.task.split) == ("refund-1", "Refund the order.", "a")
    assert attempt.attempt.score == 0.5
    messages = attempt.attempt.messages or ()
    assert [message.role for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    [call] = messages[2].tool_calls
    assert (call.id, call.function.name, call.function.arguments) == ("call-1", "find", '{"order": 1}')
    assert messages[2].content is None
    assert (messages[3].tool_call_id, messages[3].content) == ("call-1", "Order 1 of Ada")
    assert messages[4].content == "Refunded."
    usage = attempt.attempt.usage
    assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (1, 20, 5)


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_a_task_tried_twice_with_advice_between_is_rated(tmp_path: Path, convention: str) -> None:
    call = CONVENTIONS[convention]
    attempts = read_all(
        tmp_path,
        spans.attempt(1, call("No."), task_id="refund-1", score=0.0),
        spans.attempt(2, call("Yes."), task_id="refund-1", score=1.0, advice="Search first.", advice_model="sft"),
        spans.attempt(3, call("No."), task_id="refund-2", score=False),
    )
    rated, waiting = cases_of(attempts)
    assert isinstance(rated, Case)
    assert rated.advice is not None
    assert (rated.advice.text, rated.advice.model, rated.rating) == ("Search first.", "sft", 1.0)
    assert (waiting.task.id, waiting.advice, waiting.attempt.score) == ("refund-2", None, 0.0)


def test_metadata_of_openinference_holds_the_facts_too(tmp_path: Path) -> None:
    metadata = '{"task_id": 7, "advice": ["Search first.", "Then pay."], "score": true, "trial": 3, "user": "ada"}'
    call = spans.span(1, spans.openinference("Yes.") | {"metadata": metadata})
    [attempt] = read_all(tmp_path, [call])
    assert (attempt.task.id, attempt.trial, attempt.attempt.score) == ("7", 3, 1.0)
    assert attempt.advice == ("Search first.", "Then pay.")


def test_a_task_without_an_id_is_known_by_its_text(tmp_path: Path) -> None:
    one, other = read_all(
        tmp_path,
        spans.attempt(1, spans.openinference("No."), score=0.0),
        spans.attempt(2, spans.gen_ai("Yes."), score=1.0, advice="Search first."),
    )
    assert one.task == other.task
    assert len(one.task.id) == 16


def test_attempts_within_one_trace_are_told_apart_by_their_tasks(tmp_path: Path) -> None:
    job = [spans.span(1, {"retroformer.task.split": "nightly"}, name="job")]
    for first, name in ((2, "a"), (4, "b")):
        facts = {"retroformer.task.id": name, "retroformer.score": 0.0}
        job.append(spans.span(first, facts, parent=1))
        # An instrument may copy the task to every span below.
        call = spans.gen_ai(f"I did {name}.") | {"retroformer.task.id": name}
        job.append(spans.span(first + 1, call, parent=first))
    attempts = read_all(tmp_path, job)
    assert [attempt.task.id for attempt in attempts] == ["a", "b"]
    assert [(attempt.attempt.messages or ())[-1].content for attempt in attempts] == ["I did a.", "I did b."]


def test_calls_that_repeat_the_conversation_are_merged(tmp_path: Path) -> None:
    facts = {"retroformer.task.id": "a", "retroformer.score": 0.0}
    first = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "system",
        "llm.input_messages.0.message.content": "Handle refunds.",
        "llm.input_messages.1.message.role": "user",
        "llm.input_messages.1.message.content": "Refund the order.",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "find",
    }
    critic = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Is it right?",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "It is.",
    }
    calls = [first, spans.openinference("Refunded."), critic]
    members = [spans.span(1, facts), *(spans.span(n, call, parent=1) for n, call in enumerate(calls, start=2))]
    # The same call again, as a second instrument saw it inside the first.
    members.append(spans.span(9, spans.gen_ai("Refunded."), parent=3))
    [attempt] = read_all(tmp_path, members)
    contents = [message.content for message in attempt.attempt.messages or ()]
    assert contents == [
        "Handle refunds.",
        "Refund the order.",
        None,
        "Order 1 of Ada",
        "Refunded.",
        "Is it right?",
        "It is.",
    ]
    assert attempt.attempt.usage.calls == 3


def test_spans_may_come_in_any_order_and_twice(tmp_path: Path) -> None:
    parent, call = spans.attempt(1, spans.gen_ai("No."), task_id="a", score=0.0)
    [attempt] = read_all(tmp_path, [call], [parent, call], [parent])
    assert attempt.attempt.usage.calls == 1


def test_a_child_that_starts_with_its_parent_is_inside_it(tmp_path: Path) -> None:
    """Clocks that count milliseconds make such ties, and children are exported first."""
    parent, call = spans.attempt(1, spans.gen_ai("No."), task_id="a", score=0.0)
    parent["attributes"].append({"key": "output.value", "value": {"stringValue": "all of it"}})
    del call["attributes"][:]
    call["attributes"].append({"key": "output.value", "value": {"stringValue": "a part"}})
    call["startTimeUnixNano"] = parent["startTimeUnixNano"]
    [attempt] = read_all(tmp_path, [call, parent])
    assert attempt.attempt.output == "all of it"


@pytest.mark.parametrize(
    "tool",
    [
        {"openinference.span.kind": "TOOL", "tool.name": "find", "input.value": "order 1", "output.value": "Ada"},
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "find",
            "gen_ai.tool.call.arguments": "order 1",
            "gen_ai.tool.call.result": "Ada",
        },
    ],
)
def test_tools_are_the_steps_of_a_trace_without_messages(tmp_path: Path, tool: dict[str, Any]) -> None:
    facts = {"retroformer.score": 0.0, "input.value": "Refund order 1.", "output.value": "Sorry."}
    [attempt] = read_all(tmp_path, [spans.span(1, facts), spans.span(2, tool, parent=1)])
    assert attempt.task.input == "Refund order 1."
    assert attempt.attempt.output == "Sorry."
    [step] = attempt.attempt.steps or ()
    assert (step.action, step.observation) == ("find(order 1)", "Ada")


EVALUATIONS: dict[str, dict[str, Any]] = {
    "OpenInference's evaluation": {"evaluations.0.evaluation.name": "right", "evaluations.0.evaluation.score": 0.5},
    "OpenInference's annotation": {
        "trace.annotations.3.annotation.name": "right",
        "trace.annotations.3.annotation.score": 0.5,
    },
    "gen_ai's evaluation": {"gen_ai.evaluation.name": "right", "gen_ai.evaluation.score.value": 0.5},
}


@pytest.mark.parametrize("given", EVALUATIONS)
@pytest.mark.parametrize("score", ["right", None])
def test_the_score_of_an_evaluator_is_used(tmp_path: Path, given: str, score: str | None) -> None:
    [attempt] = read_all(tmp_path, spans.attempt(1, spans.gen_ai("No.") | EVALUATIONS[given]), score=score)
    assert attempt.attempt.score == 0.5


def test_an_evaluation_may_be_an_event_and_a_score_any_attribute(tmp_path: Path) -> None:
    parent, call = spans.attempt(1, spans.gen_ai("No.") | {"resolved": True})
    given = [spans.attribute("gen_ai.evaluation.name", "right"), spans.attribute("gen_ai.evaluation.score.value", 0.25)]
    parent["events"] = [{"name": "gen_ai.evaluation.result", "timeUnixNano": "1", "attributes": given}]
    by_name = {name: read_all(tmp_path, [parent, call], score=name)[0].attempt.score for name in ("right", "resolved")}
    assert by_name == {"right": 0.25, "resolved": 1.0}


def test_several_scores_without_a_choice_are_refused(tmp_path: Path) -> None:
    given = {
        f"evaluations.{n}.evaluation.{field}": value
        for n, name in enumerate(("kind", "right"))
        for field, value in (("name", name), ("score", 1.0))
    }
    with pytest.raises(MissingInput, match=r"Line 1 of .* was given the scores kind, right: choose one, as in"):
        read_all(tmp_path, spans.attempt(1, spans.gen_ai("No.") | given))


def test_traces_that_are_no_attempts_are_counted(tmp_path: Path) -> None:
    failed = spans.attempt(3, spans.gen_ai("No."))
    failed[0]["status"] = {"code": 2, "message": "timeout"}
    reasons = skipped(
        tmp_path, [spans.span(1, {"http.route": "/health"})], spans.attempt(2, spans.gen_ai("No.")), failed
    )
    assert reasons == [
        "traces without a model call, a tool call or an output",
        "traces without a score",
        "traces that ended in an error, without a score",
    ]


def test_spans_that_are_nested_thousands_deep_or_in_a_circle_take_a_moment(tmp_path: Path) -> None:
    depth = 4000
    nested = [spans.span(number, {}, parent=number - 1) for number in range(2, depth)]
    first = spans.span(1, {"retroformer.task.id": "deep", "retroformer.score": 0.0})
    last = spans.span(depth, spans.gen_ai("No."), parent=depth - 1)
    scored = spans.gen_ai("No.") | {"retroformer.score": 0.0}
    circle = [spans.span(2, scored, parent=3, trace=2), spans.span(3, {}, parent=2, trace=2)]
    begun = time.monotonic()
    attempt, _ = read_all(tmp_path, [first, *nested, last], circle)
    assert (attempt.task.id, attempt.attempt.usage.calls) == ("deep", 1)
    assert time.monotonic() - begun < 20
