"""Tests that any agent is improved however it takes its task, and that no attempt changes the task of the next one."""

import asyncio
import threading
from typing import Any

import pytest

import retroformer as rf
from tests.support.codes import enter, opens


class Safe:
    """Agent as a class with a method."""

    def __init__(self, coach: rf.Reflector) -> None:
        self.read = list[str]()
        self.solve = coach.improve(trials=2, score=opens)(self.attempt)

    def attempt(self, task: str, advice: str = "") -> str:
        self.read.append(advice)
        return enter(task, advice)


def test_a_method_is_improved_in_its_class_and_on_its_object(coach: rf.Reflector) -> None:
    class Decorated:
        code = "7"

        @coach.improve(trials=2, score=opens)
        def solve(self, task: str, advice: str = "") -> str:
            return enter(self.code, advice)

        @coach.improve(trials=2, score=opens)
        async def solve_later(self, question: str, advice: str = "") -> str:
            return enter(self.code, advice)

        @staticmethod
        @coach.improve(trials=2, score=opens)
        def solve_alone(task: str, advice: str = "") -> str:
            return enter(task, advice)

        @classmethod
        @coach.improve(trials=2, score=opens)
        def solve_for_all(cls, task: str, advice: str = "") -> str:
            return enter(cls.code, advice)

    decorated = Decorated()
    assert decorated.solve("7") == decorated.solve(task="7") == "7 opens it"
    assert asyncio.run(decorated.solve_later("7")) == asyncio.run(decorated.solve_later(question="7")) == "7 opens it"
    assert decorated.solve_alone("7") == Decorated.solve_for_all("7") == "7 opens it"
    safe = Safe(coach)
    assert safe.solve("8") == "8 opens it"
    assert safe.read == ["", "Enter 8."]


def test_a_task_is_passed_by_name_or_behind_other_arguments(coach: rf.Reflector) -> None:
    @coach.improve(trials=2, score=opens)
    def agent(question: str, advice: str = "") -> str:
        return enter(question, advice)

    @coach.improve(trials=2, score=opens)
    def named(*, task: str, advice: str = "") -> str:
        return enter(task, advice)

    @coach.improve(trials=2, score=opens)
    def second(style: str, task: str, advice: str = "") -> str:
        return enter(task, advice)

    anything: Any = coach.improve(trials=2, score=opens)(lambda **named: enter(named["task"], named["advice"]))
    assert agent(question="5") == agent("5") == "5 opens it"
    assert named(task="5") == second("brief", "5") == second("brief", task="5") == anything(task="5") == "5 opens it"
    with pytest.raises(TypeError, match="called without a task: pass it as the argument 'question'"):
        agent()  # type: ignore[call-arg]


def test_an_attempt_that_changes_its_task_does_not_change_the_next_one(coach: rf.Reflector) -> None:
    seen = []

    @coach.improve(trials=2, score=lambda task, said: float(task == {"codes": [1]} and said == "2"))
    def agent(task: dict[str, list[int]], advice: str = "") -> str:
        seen.append(list(task["codes"]))
        task["codes"].append(2)
        return str(len(task["codes"])) if advice else "0 fails; the note says 2"

    task = {"codes": [1]}
    assert agent(task) == "2"
    assert seen == [[1], [1]]
    assert task == {"codes": [1]}


def test_a_task_that_cannot_be_copied_is_passed_as_it_is(coach: rf.Reflector) -> None:
    lock = threading.Lock()
    agent = coach.improve(trials=1, score=lambda task, said: 1.0)(lambda task, advice="": task is lock)
    assert agent(lock) is True
