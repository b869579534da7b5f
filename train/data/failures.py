"""Reads failed attempts from the store, with all that is needed to retry them with another reflection."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from retroformer.experiment.sections.loop import Loop
from retroformer.records import Key, Memory, Trajectory
from retroformer.store import Store, StoredReflection

from .samples import Prompt


class Failure(NamedTuple):
    """A failed attempt, the actor's memory in it, and the reflector's prompt about it."""

    attempt: Trajectory
    memory: Memory
    trial: int
    """Number of the retry, from 1."""
    accepted: int
    """Candidate number of the failed attempt within its own trial."""
    prompt: Prompt

    @property
    def facts(self) -> dict[str, Any]:
        """Everything that the rating of a reflection on this failure depends on, in JSON's types."""
        return {
            "attempt": self.attempt.model_dump(mode="json", exclude={"usage"}),
            "memory": list(self.memory.reflections),
            "trial": self.trial,
            "prompt": [message.model_dump() for message in self.prompt],
        }

    def advised(self, text: str, loop: Loop) -> Memory:
        """Return the actor's memory in the retry after the reflection `text`."""
        return self.memory.remember(text, loop.memory, self.attempt if loop.last_attempt else None)


def stored_failures(store: Store, arms: Iterable[str], loop: Loop) -> list[Failure]:
    """Read the failures of `arms`; each trial of a task once, from the first arm that has it."""
    failures: dict[tuple[str, int], Failure] = {}
    for arm in arms:
        attempts = dict(store.stream_trajectories(arm))
        advice = {stored.key: stored for stored in store.stream_reflections(arm)}
        for key, accepted, reflection, _ in advice.values():
            attempt = attempts[_previous(key, accepted)]
            memory = _memory(advice, key, accepted, loop)
            failure = Failure(attempt, memory, key.trial, accepted, reflection.prompt)
            failures.setdefault((key.task_id, key.trial), failure)
    return list(failures.values())


def _memory(advice: dict[Key, StoredReflection], key: Key, accepted: int, loop: Loop) -> Memory:
    """Return the actor's memory in the trial before that of `key`: the reflections accepted until then."""
    if key.trial == 1:
        return Memory()
    previous = advice.get(_previous(key, accepted))
    if previous is None:
        return Memory()  # An imported case may begin at any trial.
    earlier = _memory(advice, previous.key, previous.previous_candidate, loop)
    return earlier.remember(previous.reflection.text, loop.memory)


def _previous(key: Key, candidate: int) -> Key:
    return key.model_copy(update={"trial": key.trial - 1, "candidate": candidate})
