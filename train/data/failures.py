"""Reads failed attempts from the store, with all that is needed to retry them with another reflection."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from retroformer.config.sections.base import Loop
from retroformer.method.ancestors import ancestors, key_before, memory_of
from retroformer.method.records import Memory, Trajectory
from retroformer.run.store import Store

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
        return self.memory.remember(text, loop.memory, self.attempt, shows_attempt=loop.last_attempt)


def stored_failures(store: Store, arms: Iterable[str], loop: Loop, leave_out: Sequence[str] = ()) -> list[Failure]:
    """Read the failures of `arms`; of those of a trial that look the same to the reflector, the first.

    Stories with a mark of `leave_out` are left out.
    """
    failures: dict[tuple[str, int, Prompt], Failure] = {}
    for arm in arms:
        attempts = dict(store.stream_trajectories(arm))
        advice = {stored.key: stored for stored in store.stream_reflections(arm)}
        left_out = store.marks.tasks(arm, leave_out)
        for stored in advice.values():
            failed, trial = key_before(stored), stored.key.trial
            if failed.task_id in left_out:
                continue
            memory = memory_of(ancestors(failed, attempts, advice), loop.memory)
            failure = Failure(attempts[failed], memory, trial, failed.candidate, stored.reflection.prompt)
            failures.setdefault((failed.task_id, trial, failure.prompt), failure)
    return list(failures.values())
