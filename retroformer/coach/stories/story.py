"""One story: the attempts at a task, the advice between them, and what each piece of advice was worth."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from statistics import fmean

from retroformer.method.records import Key, Outcome, Reflection, Step, Task, Trajectory
from retroformer.method.repetition import RESTATEMENT_SHARE, copied_share, text_before, words_of

FLAGS = {
    "blank": "The advice is empty.",
    "truncated": "The advice was cut at the token limit.",
    "copy": f"At least {RESTATEMENT_SHARE:.0%} of the advice repeats the reflector's prompt word for word.",
    "repeated plan": "The advice is the same as an earlier piece of advice in this story.",
    "same steps": "The retry did the same, step by step.",
    "leak": "The advice gives away a part of the solution that the agent could not know.",
}
"""All flags, with their meaning."""

Leaks = Callable[[str, Sequence[Trajectory]], bool]
"""Function that says whether advice, after these attempts, gives the solution away."""


@dataclass(frozen=True)
class Turn:
    """One node of a story: an attempt and the advice that it read.

    The first attempt has no advice; advice that nobody has tried yet has no attempt.
    """

    key: Key
    """Trial and candidate, under the arm in which they are stored; its repeat is 0."""
    previous: Key | None
    """Key of the attempt that the advice is about; None for a first attempt."""
    reflection: Reflection | None
    attempts: tuple[Trajectory, ...]
    """One attempt for each repeat."""
    written_at: datetime | None = None
    """Time when the advice was stored, in UTC."""
    memory: tuple[str, ...] = ()
    """Advice that the actor read, oldest first."""
    rating: float | None = None
    """Gain over the attempt before, a mean over the repeats (Retroformer, section 4.2); None without both returns."""
    differs_at: int | None = None
    """Number of the first step that differs from the attempt before, from 0; None if no step does."""
    flags: tuple[str, ...] = ()
    """Problems of the advice or of the retry, keys of `FLAGS`."""

    @property
    def attempt(self) -> Trajectory | None:
        """The first repeat; None if the advice was not tried."""
        return self.attempts[0] if self.attempts else None

    @property
    def advice(self) -> str:
        return self.reflection.text if self.reflection is not None else ""

    @property
    def episode_return(self) -> float | None:
        """Mean return of the repeats; None without an attempt."""
        return fmean(attempt.episode_return for attempt in self.attempts) if self.attempts else None

    @property
    def solved(self) -> bool:
        return any(attempt.outcome is Outcome.SUCCESS for attempt in self.attempts)

    @property
    def place(self) -> str:
        """Trial and candidate as in a URL: `1.0` is the first candidate of the first retry."""
        return f"{self.key.trial}.{self.key.candidate}"


@dataclass(frozen=True)
class Story:
    """All turns at one task of an arm, in the order of their keys, and the causes of invalid attempts."""

    experiment: str
    arm: str
    task: Task
    turns: tuple[Turn, ...]
    causes: tuple[str, ...] = ()
    blocked: bool = False
    """True if an attempt or its advice failed because of the infrastructure, and was not made again yet."""

    @cached_property
    def chain(self) -> tuple[Turn, ...]:
        """Turns on the path that the method went: from each failure to its retry with the highest return.

        Among equal returns it is the first candidate, as in `retroformer.method.rollout.improve`.
        """
        turns = [turn for turn in self.turns if turn.previous is None][:1]
        while turns and (retries := self.retries(turns[-1])):
            turns.append(max(retries, key=lambda retry: retry.attempt.episode_return if retry.attempt else -math.inf))
        return tuple(turns)

    @property
    def columns(self) -> int:
        """Number of trials."""
        return 1 + max((turn.key.trial for turn in self.turns), default=-1)

    def retries(self, turn: Turn) -> list[Turn]:
        """Return the turns after this one, in the order of their candidates."""
        return [other for other in self.turns if other.previous == turn.key]

    def turn(self, place: str) -> Turn | None:
        """Return the turn at a place such as `1.0`; None if there is none."""
        return next((turn for turn in self.turns if turn.place == place), None)

    def path_to(self, turn: Turn) -> tuple[Turn, ...]:
        """Return the turns from the first attempt to this one."""
        by_key = {other.key: other for other in self.turns}
        path = [turn]
        while path[0].previous is not None and path[0].previous in by_key:
            path.insert(0, by_key[path[0].previous])
        return tuple(path)


def first_difference(before: tuple[Step, ...], after: tuple[Step, ...]) -> int | None:
    """Return the number of the first step with another action or observation, from 0; None if all are the same.

    A step that only one of the attempts has is a difference.
    """
    for number, (one_step, other_step) in enumerate(zip(before, after, strict=False)):
        if (one_step.action, one_step.observation) != (other_step.action, other_step.observation):
            return number
    return None if len(before) == len(after) else min(len(before), len(after))


def flags_of(turn: Turn, path: Sequence[Turn], leaks: Leaks | None = None) -> tuple[str, ...]:
    """Return the flags of a turn, given the turns before it from the first attempt on."""
    if turn.reflection is None:
        return ()
    reflection, attempt = turn.reflection, turn.attempt
    before = [earlier.attempt for earlier in path if earlier.attempt is not None]
    failure = before[-1] if before else None
    checks = {
        "blank": not turn.advice.strip(),
        "truncated": reflection.is_cut,
        "copy": copied_share(turn.advice, text_before(reflection, failure)) >= RESTATEMENT_SHARE,
        "repeated plan": words_of(turn.advice) in [words_of(earlier.advice) for earlier in path if earlier.reflection],
        "same steps": failure is not None
        and attempt is not None
        and attempt.outcome is not Outcome.INVALID
        and turn.differs_at is None,
        "leak": leaks is not None and bool(before) and bool(turn.advice.strip()) and leaks(turn.advice, before),
    }
    return tuple(name for name in FLAGS if checks[name])
