"""Facts to be stored, the columns of stored facts, and the texts of both.

Every fact is cleaned here before it is stored, whatever model or environment its text came from: of what a database
cannot hold (NUL and unpaired surrogates) and of API keys that a model repeats.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from retroformer.endpoint.secrets.redaction import redact, redact_data
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import StoreError
from retroformer.files.bounded import MIB, size
from retroformer.files.text import storable
from retroformer.method.records import Key, Outcome, Record, Reflection, Trajectory, Usage
from retroformer.run.store.schema import INVALIDS, LONGEST_FACT_BYTES, REFLECTIONS, TRAJECTORIES, USAGE

SomeRecord = TypeVar("SomeRecord", bound=Record)

_KEY_BYTES = 1 << 16
"""Bytes of a row for its key, numbers and hashes."""
_CAUSE_CHARACTERS = 4000
"""Characters of a cause that are stored; an error may quote whatever it failed on."""


def serialise(record: SomeRecord) -> tuple[SomeRecord, str]:
    """Return the record as it can be stored, and its JSON; one that needs no cleaning is returned unchanged."""
    try:
        text = record.model_dump_json()
    except (PydanticSerializationError, UnicodeEncodeError):
        text = ""
    # JSON escapes NUL. The six characters may also come from a text with a backslash, which cleaning leaves unchanged.
    if text and "\\u0000" not in text:
        if (hidden := redact_data(text)) == text:
            return record, text
        return type(record).model_validate_json(hidden), hidden
    text = redact_data(type(record).model_validate(_cleaned(record.model_dump())).model_dump_json())
    return type(record).model_validate_json(text), text


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_cleaned(item) for item in value]
    return value


class UnstorableFact(StoreError):
    """A fact is too long for a store; others are not."""


class NewTrajectory(NamedTuple):
    """A valid attempt to be stored under its key."""

    key: Key
    trajectory: Trajectory
    stored_at: str | None = None
    """Time when another store has stored it; None: now."""


class NewReflection(NamedTuple):
    """Advice to be stored under the key of the trial that will use it; it is about `previous_candidate` before it."""

    key: Key
    previous_candidate: int
    reflection: Reflection


class NewInvalid(NamedTuple):
    """A rollout or reflection that failed because of the infrastructure; its key stays free."""

    key: Key
    cause: str
    usage: Usage


NewFact = NewTrajectory | NewReflection | NewInvalid


class FactRow(NamedTuple):
    """A fact as a row of its table."""

    key: Key
    table: sa.Table
    row: dict[str, Any]
    record: Trajectory | Reflection | None
    """The fact, with only characters that can be stored."""
    usage: Usage


def fact_row(fact: NewFact) -> FactRow:
    """Return the row of a fact, without experiment and conditions. Raises UnstorableFact if it is too long."""
    # The usage is a sum over calls; it is cut to the bounds by which it is read again.
    match fact:
        case NewTrajectory(key, trajectory, stored_at):
            trajectory, text = serialise(trajectory.model_copy(update={"usage": trajectory.usage.of_fact}))
            row = {
                "split": trajectory.task.split,
                "outcome": trajectory.outcome.value,
                "ending": trajectory.ending.value,
                "judged": trajectory.judged,
                "episode_return": trajectory.episode_return,
                "actions": len(trajectory.steps),
                "record": text,
            }
            return _row(key, TRAJECTORIES, row, trajectory, trajectory.usage, stored_at)
        case NewReflection(key, previous_candidate, reflection):
            reflection, text = serialise(reflection.model_copy(update={"usage": reflection.usage.of_fact}))
            row = {
                "previous_candidate": previous_candidate,
                "text": reflection.text,
                "model": reflection.author.model,
                "adapter_sha256": reflection.author.adapter_sha256,
                "record": text,
            }
            return _row(key, REFLECTIONS, row, reflection, reflection.usage)
        case NewInvalid(key, cause, usage):
            return _row(key, INVALIDS, {"cause": storable(redact(cause))[:_CAUSE_CHARACTERS]}, None, usage.of_fact)


def _row(
    key: Key,
    table: sa.Table,
    row: dict[str, Any],
    record: Trajectory | Reflection | None,
    usage: Usage,
    stored_at: str | None = None,
) -> FactRow:
    length = sum(len(value.encode()) for value in row.values() if isinstance(value, str))
    if length > LONGEST_FACT_BYTES - _KEY_BYTES:
        raise UnstorableFact(f"A fact of {length / MIB:.0f} MiB is too long: at most {size(LONGEST_FACT_BYTES)}.")
    spent = {name: getattr(usage, name) for name in USAGE}
    time = {"stored_at": stored_at or stored_time(datetime.now(UTC))}
    return FactRow(key, table, key.model_dump() | row | spent | time, record, usage)


def stored_time(time: datetime) -> str:
    """Return a time in the form whose order as text is that of the times."""
    return time.astimezone(UTC).isoformat(timespec="microseconds")


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
    episode_return: float

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

    advised: bool
    returned: float
    stored_at: datetime
    """Time when it was stored, in UTC."""
    adapter_sha256: str | None
    """Adapter that wrote the advice; None without advice, or if it is unknown."""


RatingRow = tuple[str, int, int, int, str, float, float, str | None]
"""A reflection with the returns of the trial before it and of one repeat of the trial after it.

The items are task id, trial, candidate, previous candidate, text, return before, return after, and the reflection as
JSON or None. It is a plain tuple because one loop reads a million of them.
"""


SomeModel = TypeVar("SomeModel", bound=BaseModel)


class Parser:
    """Parser of the texts of one store."""

    def __init__(self, url: SecretUrl) -> None:
        self._url = url

    def record(self, kind: type[SomeModel], fact: str | Mapping[str, Any]) -> SomeModel:
        """Parse a whole fact from its JSON, or from the columns of its row."""
        with self._of(kind.__name__.strip("_").lower()):
            return kind.model_validate_json(fact) if isinstance(fact, str) else kind.model_validate(fact)

    def time(self, text: str) -> datetime:
        """Parse the time when a fact was stored."""
        with self._of("time"):
            return datetime.fromisoformat(text)

    @contextmanager
    def _of(self, what: str) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            fault = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else str(error)
            raise StoreError(
                f"The store {self._url} holds a text that is no {what} ({fault}): restore a copy of it, or save "
                "its readable facts into a new file with `retroformer recover EXPERIMENT.yaml`."
            ) from error
