"""Failures in the store that were reflected on, with all that it takes to try another reflection on them."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from retroformer.config import Loop
from retroformer.records import Key, Memory, Trajectory
from retroformer.store import Store, StoredReflection
from train.dataset import Prompt


class Failure(NamedTuple):
    """A failed attempt, what the actor knew in it, and what the reflector was asked about it."""

    attempt: Trajectory
    memory: Memory
    trial: int
    """Of the retry, 1 being the first."""
    accepted: int
    """Which candidate of the trial before this attempt was."""
    prompt: Prompt

    @property
    def facts(self) -> dict[str, Any]:
        """All that the worth of a reflection on it depends on, in JSON's types."""
        return {
            "attempt": self.attempt.model_dump(mode="json", exclude={"usage"}),
            "memory": list(self.memory.reflections),
            "trial": self.trial,
            "prompt": [message.model_dump() for message in self.prompt],
        }

    def advised(self, text: str, loop: Loop) -> Memory:
        """What the actor carries into the retry after a reflection that says `text`."""
        return self.memory.remember(text, loop.memory, self.attempt if loop.last_attempt else None)


def stored_failures(store: Store, arms: Iterable[str], loop: Loop) -> list[Failure]:
    """Those of the arms, each trial of a task once, by its first arm."""
    found: dict[tuple[str, int], Failure] = {}
    for arm in arms:
        attempts = dict(store.stream_trajectories(arm))
        advice = {one.key: one for one in store.stream_reflections(arm)}
        for key, accepted, reflection, _ in advice.values():
            attempt = attempts[_before(key, accepted)]
            memory = _memory(advice, key, accepted, loop)
            failure = Failure(attempt, memory, key.trial, accepted, reflection.prompt)
            found.setdefault((key.task_id, key.trial), failure)
    return list(found.values())


def _memory(advice: dict[Key, StoredReflection], key: Key, accepted: int, loop: Loop) -> Memory:
    """What the actor carried into the trial before `key`'s: the accepted reflections up to there."""
    if key.trial == 1:
        return Memory()
    before = advice[_before(key, accepted)]
    earlier = _memory(advice, before.key, before.previous_candidate, loop)
    return earlier.remember(before.reflection.text, loop.memory)


def _before(key: Key, candidate: int) -> Key:
    return key.model_copy(update={"trial": key.trial - 1, "candidate": candidate})
