"""Other returns of stored attempts, on answers scored by hand."""

import pytest

from retroformer.environments.hotpotqa import answer_return
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory


def attempt(*actions: str) -> Trajectory:
    steps = tuple(Step(action=action, observation="Noted.", reward=0.125) for action in actions)
    task = Task(id="5a", environment="hotpotqa", split="all")
    return Trajectory(task=task, opening="Who?", steps=steps, outcome=Outcome.FAILURE, ending=Ending.TERMINATED)


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("em", "the Duke of York!", 1.0),
        ("em", "Duke of Kent", 0.0),
        # duke of york against duke of kent: 2 of 3 words; without the stop word `of` 1 of 2.
        ("f1_with_stop_words", "Duke of Kent", 2 / 3),
        ("f1", "Duke of Kent", 1 / 2),
        ("f1", "Nobody", 0.0),
    ],
)
def test_the_last_answer_is_scored_against_the_gold_answer(name: str, answer: str, expected: float) -> None:
    returned = answer_return(name, lambda task: "Duke of York")
    assert returned(attempt("Search[duke]", f"Finish[{answer}]")) == pytest.approx(expected)


@pytest.mark.parametrize("actions", [(), ("Search[duke]",), ("Finish[]",), ("Duke of York",)])
def test_an_attempt_without_an_answer_returns_0(actions: tuple[str, ...]) -> None:
    assert answer_return("f1", lambda task: "Duke of York")(attempt(*actions)) == 0.0
