"""Other returns of stored attempts, computed from the answer of each and the gold answer."""

from collections.abc import Callable

from retroformer.environments.hotpotqa.action import parse
from retroformer.environments.hotpotqa.metrics import RETURNS, ReturnName
from retroformer.protocols import ReturnOf
from retroformer.records import Task, Trajectory


def answer_return(name: ReturnName, gold: Callable[[Task], str]) -> ReturnOf:
    """Return the function that computes this return of an attempt; an attempt without an answer has a return of 0.

    `gold` returns the gold answer of a task; the function raises what it raises.
    """
    score = RETURNS[name]

    def returned(attempt: Trajectory) -> float:
        last = parse(attempt.steps[-1].action) if attempt.steps else None
        if last is None or last.verb != "finish":
            return 0.0
        return float(score(last.argument, gold(attempt.task)))

    return returned
