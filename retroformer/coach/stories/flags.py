"""Flags: problems of a piece of advice, or of the retry that read it."""

import re
from collections.abc import Callable, Sequence
from itertools import chain

from retroformer.coach.stories.story import Turn
from retroformer.method.records import Outcome, Reflection, Trajectory
from retroformer.method.repetition import RESTATING, copied

FLAGS = {
    "blank": "The advice is empty.",
    "truncated": "The advice was cut at the token limit.",
    "copy": f"At least {RESTATING:.0%} of the advice repeats the reflector's prompt word for word.",
    "repeated plan": "The advice is the same as an earlier piece of advice in this story.",
    "same steps": "The retry did the same, step by step.",
    "leak": "The advice gives away a part of the solution that the agent could not know.",
}
"""All flags, with their meaning."""

Leaks = Callable[[str, Sequence[Trajectory]], bool]
"""Function that says whether advice, after these attempts, gives the solution away."""


def flags_of(turn: Turn, way: Sequence[Turn], leaks: Leaks | None = None) -> tuple[str, ...]:
    """Return the flags of a turn.

    Args:
        turn: the turn; its own `flags` are not read.
        way: the turns before it, from the first attempt on.
        leaks: the environment's check, if its data are at hand.
    """
    if turn.reflection is None:
        return ()
    before = [earlier.attempt for earlier in way if earlier.attempt is not None]
    failure = before[-1] if before else None
    checks = {
        "blank": not turn.advice.strip(),
        "truncated": _is_truncated(turn.reflection),
        "copy": copied(turn.advice, _source(turn.reflection, failure)) >= RESTATING,
        "repeated plan": _words(turn.advice) in [_words(earlier.advice) for earlier in way if earlier.reflection],
        "same steps": _is_the_same(turn, failure),
        "leak": leaks is not None and bool(before) and bool(turn.advice.strip()) and leaks(turn.advice, before),
    }
    return tuple(name for name in FLAGS if checks[name])


def _is_truncated(reflection: Reflection) -> bool:
    return reflection.usage.completion_tokens >= reflection.sampling.max_new_tokens and reflection.usage.calls == 1


def _is_the_same(turn: Turn, failure: Trajectory | None) -> bool:
    attempt = turn.attempt
    tried = attempt is not None and failure is not None and attempt.outcome is not Outcome.INVALID
    return tried and turn.differs_at is None


def _source(reflection: Reflection, failure: Trajectory | None) -> str:
    """Return what the reflector read last: the end of its prompt, else the failure."""
    if reflection.prompt:
        return reflection.prompt[-1].content
    if failure is None:
        return ""
    return "\n".join(chain.from_iterable((step.thought, step.action, step.observation) for step in failure.steps))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
