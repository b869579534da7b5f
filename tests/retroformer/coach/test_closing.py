"""Tests of closing, forking and ending a program inside an attempt, and of what the reflector is shown."""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import attrs
import pytest

import retroformer as rf
from tests.support.codes import enter, facts, opens
from tests.support.endpoint import Endpoint, prompt_of
from tests.support.waiting import becomes_true


def test_a_closed_reflector_opens_again(coach: rf.Reflector, url: str) -> None:
    coach.close()
    assert coach.advise("Open 3", "0 fails; the note says 3").text == "Enter 3."


def test_a_score_that_ends_the_program_costs_only_the_retries(coach: rf.Reflector, url: str) -> None:
    agent = coach.improve(trials=2, score=lambda task, answer: sys.exit("wrong"))(lambda task, advice="": "good")
    assert agent("Anything") == "good"
    assert facts(url)[::2] == ({}, ["SystemExit: wrong"])


def test_a_reflector_that_is_closed_inside_an_attempt_closes_after_it(coach: rf.Reflector, url: str) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        coach.close()
        return enter(task, advice)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(agent, "5").result(60) == "5 opens it"
    assert facts(url)[1] == [1.0]
    assert not [thread for thread in threading.enumerate() if thread.name == "retroformer"]


@pytest.mark.parametrize("ending", ["return", "exit"])
def test_a_process_that_an_attempt_forks_leaves_the_call_to_its_parent(
    coach: rf.Reflector, url: str, ending: str
) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(task: str, advice: str = "") -> str:
        child = os.fork()
        if child == 0:
            if ending == "return":
                return "the child"
            raise SystemExit
        children.append(child)
        return enter(task, advice)

    children, parent = list[int](), os.getpid()
    try:
        said = agent("5")
    finally:
        if os.getpid() != parent:
            os._exit(7)  # The child has left the call.
    assert said == "5 opens it"
    for child in children:
        assert becomes_true(lambda child=child: os.waitpid(child, os.WNOHANG)[1])
    assert facts(url)[1] == [1.0]


@dataclass
class Sum:
    question: str
    gold: str


@attrs.define
class AttrsSum:
    numbers: list[int]
    final_answer: str


GOLD = (
    *("goldAnswer", "finalAnswer", "reference_answers", "references", "canonical_solution", "test", "test_list"),
    *("unit_tests", "FAIL_TO_PASS", "PASS_TO_PASS", "test_patch", "gold_sql", "ideal", "answerKey", "reward_model"),
    *("expectedoutput", "GROUND-TRUTH", "ground_truths", "Correct Choice", "oracle", "trueLabel", "best_answer"),
)
"""Names that benchmarks give to what is right."""


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ({"id": "a-1", "input": "What is 2 + 3?", "answer": "SECRET", "tests": ["SECRET"]}, "What is 2 + 3?"),
        ({"id": "a-1", "numbers": [2, {"n": 3, "Expected-Output": "SECRET"}], "label": "SECRET"}, '[2, {"n": 3}]'),
        ({"question": {"text": "What is 2 + 3?", "ground_truth": "SECRET"}}, "What is 2 + 3?"),
        (Sum("What is 2 + 3?", "SECRET"), "What is 2 + 3?"),
        ({"numbers": {(2, 3): 4}, "solution": "SECRET"}, "{'numbers': {(2, 3): 4}}"),
        (SimpleNamespace(numbers=[2, 3], answer="SECRET"), '{"numbers": [2, 3]}'),
        (AttrsSum([2, 3], "SECRET"), '{"numbers": [2, 3]}'),
        (dict.fromkeys(GOLD, "SECRET") | {"numbers": [2, 3], "requests": 1}, '{"numbers": [2, 3], "requests": 1}'),
    ],
    ids=str,
)
def test_the_reflector_is_shown_the_input_of_a_task_and_no_expected_answer(
    coach: rf.Reflector, server: Endpoint, url: str, task: Any, shown: str
) -> None:
    coach.improve(trials=2, score=lambda task, said: 0.0)(lambda task, advice="": "5")(task)
    (request,) = server.requests
    assert shown in prompt_of(request)
    assert "SECRET" not in json.dumps(request)
    openings = {attempt.opening for attempt in facts(url)[0].values()}
    assert not any("SECRET" in opening or "a-1" in opening for opening in openings)


def test_an_id_that_is_too_long_for_a_key_is_hashed(coach: rf.Reflector, url: str) -> None:
    coach.improve(trials=1, score=lambda task, said: 0.0)(lambda task, advice="": "5")({"id": "é" * 8000})
    assert [len(attempt.task.id) for attempt in facts(url)[0].values()] == [16]
