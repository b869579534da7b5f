"""Facts to be stored, and the columns of stored facts."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from retroformer.files.characters import storable
from retroformer.records import Key, Outcome, Reflection, Trajectory, Usage
from retroformer.secrets.redaction import redacted
from retroformer.store.schema import INVALIDS, REFLECTIONS, TRAJECTORIES, USAGE
from retroformer.store.text import serialised


class NewTrajectory(NamedTuple):
    """A valid attempt to be stored under its key."""

    key: Key
    trajectory: Trajectory


class NewReflection(NamedTuple):
    """Advice to be stored under the key of the trial that will use it."""

    key: Key
    previous_candidate: int
    """Candidate of the previous trial that it reflects on."""
    reflection: Reflection


class NewInvalid(NamedTuple):
    """A rollout or reflection that failed because of the infrastructure; its key stays free."""

    key: Key
    cause: str
    usage: Usage


NewFact = NewTrajectory | NewReflection | NewInvalid


class Prepared(NamedTuple):
    """A fact as a row of its table."""

    key: Key
    table: sa.Table
    row: dict[str, Any]
    record: Trajectory | Reflection | None
    """The fact, with only characters that can be stored."""
    usage: Usage


def prepared(fact: NewFact) -> Prepared:
    """Return the row of a fact, without experiment and conditions."""
    match fact:
        case NewTrajectory(key, trajectory):
            trajectory, text = serialised(trajectory)
            row = {
                "split": trajectory.task.split,
                "outcome": trajectory.outcome.value,
                "ending": trajectory.ending.value,
                "judged": trajectory.judged,
                "episode_return": trajectory.episode_return,
                "actions": len(trajectory.steps),
                "record": text,
            }
            return _row(key, TRAJECTORIES, row, trajectory, trajectory.usage)
        case NewReflection(key, previous_candidate, reflection):
            reflection, text = serialised(reflection)
            row = {
                "previous_candidate": previous_candidate,
                "text": reflection.text,
                "model": reflection.author.model,
                "adapter_sha256": reflection.author.adapter_sha256,
                "record": text,
            }
            return _row(key, REFLECTIONS, row, reflection, reflection.usage)
        case NewInvalid(key, cause, usage):
            return _row(key, INVALIDS, {"cause": storable(redacted(cause))}, None, usage)


def _row(
    key: Key, table: sa.Table, row: dict[str, Any], record: Trajectory | Reflection | None, usage: Usage
) -> Prepared:
    spent = {name: getattr(usage, name) for name in USAGE}
    stored_at = {"stored_at": datetime.now(UTC).isoformat(timespec="seconds")}
    return Prepared(key, table, key.model_dump() | row | spent | stored_at, record, usage)


class StoredReflection(NamedTuple):
    """A reflection under the key of the trial that used it, with the candidate of the previous trial it reflects on."""

    key: Key
    previous_candidate: int
    reflection: Reflection
    stored_at: datetime | None = None
    """Time when it was stored, in UTC."""


class AttemptRow(NamedTuple):
    """Columns of an attempt, which can be read without its steps."""

    task_id: str
    trial: int
    candidate: int
    repeat: int
    outcome: str
    judged: bool | None
    ending: str
    episode_return: float
    actions: int

    @property
    def failed(self) -> bool:
        """True if the agent should retry, as in `Trajectory.failed`."""
        return self.outcome == Outcome.FAILURE if self.judged is None else not self.judged


class AdviceRow(NamedTuple):
    """Columns of a reflection."""

    task_id: str
    trial: int
    candidate: int
    previous_candidate: int


class ArmCounts(NamedTuple):
    """Number of facts of an arm."""

    attempts: int = 0
    """Valid attempts."""
    advice: int = 0
    invalid: int = 0
    """Attempts and reflections that failed because of the infrastructure."""


class LiveRetry(NamedTuple):
    """First retry of a story, with or without advice as it was drawn."""

    task_id: str
    advised: bool
    returned: float
    stored_at: datetime
    """Time when it was stored, in UTC, without fractions of a second."""
    adapter_sha256: str | None
    """Adapter that wrote the advice; None without advice, or if it is unknown."""


RatingRow = tuple[str, int, int, int, str, float, float, str | None]
"""A reflection with the returns of the trial before it and of one repeat of the trial after it.

The items are task id, trial, candidate, previous candidate, text, return before, return after, and the reflection as
JSON or None. It is a plain tuple because one loop reads a million of them.
"""
