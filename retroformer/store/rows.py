"""Facts on their way into the store, and the columns of facts on their way out."""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from retroformer.records import Key, Outcome, Reflection, Trajectory, Usage
from retroformer.store.schema import INVALIDS, REFLECTIONS, TRAJECTORIES, USAGE
from retroformer.store.text import clean, serialised


class NewTrajectory(NamedTuple):
    """A valid attempt to be stored under its key."""

    key: Key
    trajectory: Trajectory


class NewReflection(NamedTuple):
    """Advice to be stored under the key of the trial that will use it."""

    key: Key
    previous_candidate: int
    """Which candidate of the trial before it looked at."""
    reflection: Reflection


class NewInvalid(NamedTuple):
    """A rollout or reflection that the infrastructure spoiled; its key stays free."""

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
    """What the row holds, with only characters that can be stored."""
    usage: Usage


def prepared(fact: NewFact) -> Prepared:
    """The row of a fact, without experiment and conditions."""
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
            return _row(key, INVALIDS, {"cause": clean(cause)}, None, usage)


def _row(
    key: Key, table: sa.Table, row: dict[str, Any], record: Trajectory | Reflection | None, usage: Usage
) -> Prepared:
    spent = {name: getattr(usage, name) for name in USAGE}
    stored_at = {"stored_at": datetime.now(UTC).isoformat(timespec="seconds")}
    return Prepared(key, table, key.model_dump() | row | spent | stored_at, record, usage)


class StoredReflection(NamedTuple):
    """A reflection under the key of the trial that used it, and which candidate of the trial before it looked at."""

    key: Key
    previous_candidate: int
    reflection: Reflection
    stored_at: datetime | None = None
    """When it was written, in UTC."""


class AttemptRow(NamedTuple):
    """The columns of an attempt: what can be known without reading its steps."""

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
        """Whether the agent tries again, as `Trajectory.failed` says."""
        return self.outcome == Outcome.FAILURE if self.judged is None else not self.judged


class AdviceRow(NamedTuple):
    """The columns of a reflection."""

    task_id: str
    trial: int
    candidate: int
    previous_candidate: int


class RatingRow(NamedTuple):
    """A reflection beside the returns of the trial before it and of one repeat of the trial after it."""

    task_id: str
    trial: int
    candidate: int
    previous_candidate: int
    text: str
    return_before: float
    return_after: float
    record: str | None
    """The reflection as JSON, where it was asked for."""
