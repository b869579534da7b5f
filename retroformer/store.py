"""The store of experience: immutable facts under natural keys, in SQLite (WAL) or PostgreSQL.

A fact is written once. A second writer of the same key changes nothing, so a restart that finds a fact skips the
work, and nothing is stored twice. Rollouts and reflections that the infrastructure spoiled are kept apart in
`invalids`, so that their keys stay free for the next try.
"""

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy import event, exc

from retroformer.config import Experiment
from retroformer.errors import ConfigError, StoreError
from retroformer.records import Key, Reflection, Trajectory, Usage
from retroformer.secret_url import SecretUrl

_METADATA = sa.MetaData()
_PATIENCE_SECONDS = 30
"""How long a writer waits for another one."""


def _key_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("experiment", sa.String, primary_key=True),
        sa.Column("arm", sa.String, primary_key=True),
        sa.Column("task_id", sa.String, primary_key=True),
        *(sa.Column(name, sa.Integer, primary_key=True) for name in ("trial", "candidate", "repeat")),
    ]


_TRAJECTORIES = sa.Table(
    "trajectories",
    _METADATA,
    *_key_columns(),
    sa.Column("split", sa.String, nullable=False),
    sa.Column("outcome", sa.String, nullable=False),
    sa.Column("ending", sa.String, nullable=False),
    sa.Column("episode_return", sa.Float, nullable=False),
    sa.Column("actions", sa.Integer, nullable=False),
    sa.Column("record", sa.JSON, nullable=False),
    sa.Column("stored_at", sa.String, nullable=False),
)
_REFLECTIONS = sa.Table(
    "reflections",
    _METADATA,
    *_key_columns(),
    sa.Column("previous_candidate", sa.Integer, nullable=False),
    sa.Column("text", sa.String, nullable=False),
    sa.Column("model", sa.String, nullable=False),
    sa.Column("adapter_sha256", sa.String),
    sa.Column("record", sa.JSON, nullable=False),
    sa.Column("stored_at", sa.String, nullable=False),
)
_INVALIDS = sa.Table(
    "invalids",
    _METADATA,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
    *(sa.Column(name, sa.String, nullable=False) for name in ("experiment", "arm", "task_id")),
    *(sa.Column(name, sa.Integer, nullable=False) for name in ("trial", "candidate", "repeat")),
    sa.Column("cause", sa.String, nullable=False),
    sa.Column("usage", sa.JSON, nullable=False),
    sa.Column("stored_at", sa.String, nullable=False),
)
_CONDITIONS = sa.Table(
    "conditions",
    _METADATA,
    sa.Column("experiment", sa.String, primary_key=True),
    sa.Column("arm", sa.String, primary_key=True),
    sa.Column("record", sa.JSON, nullable=False),
)


class StoredReflection(NamedTuple):
    """A reflection under the key of the trial that used it, and which candidate of the trial before it looked at."""

    key: Key
    previous_candidate: int
    reflection: Reflection
    stored_at: datetime | None = None
    """When it was written, in UTC."""


class Store:
    """The facts of one experiment."""

    def __init__(self, url: str, experiment: str) -> None:
        self.url = SecretUrl(url)
        self.experiment = experiment
        with self._translated():
            parsed = sa.make_url(self.url.secret_url())
            if parsed.get_backend_name() == "sqlite" and parsed.database:
                Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(parsed)
            if self._engine.dialect.name == "sqlite":
                event.listen(self._engine, "connect", _tune_sqlite)
            try:
                self._create_tables()
            except exc.IntegrityError:
                # PostgreSQL lets two stages that start at once both create a table, and tells one of them off.
                self._create_tables()

    def trajectory(self, key: Key) -> Trajectory | None:
        """The attempt under this key, if it has been made."""
        row = self._one(_TRAJECTORIES, key)
        return Trajectory.model_validate(row["record"]) if row else None

    def reflection(self, key: Key) -> Reflection | None:
        """The advice that the trial under this key was given, if it has been written."""
        row = self._one(_REFLECTIONS, key)
        return Reflection.model_validate(row["record"]) if row else None

    def add_trajectory(self, key: Key, trajectory: Trajectory) -> Trajectory:
        """Keep a valid attempt, and return the one that counts: of two writers, the first one's."""
        kept = self._insert(
            _TRAJECTORIES,
            key,
            split=trajectory.task.split,
            outcome=trajectory.outcome.value,
            ending=trajectory.ending.value,
            episode_return=trajectory.episode_return,
            actions=len(trajectory.steps),
            record=trajectory.model_dump(mode="json"),
        )
        return trajectory if kept else self.trajectory(key) or trajectory

    def add_reflection(self, key: Key, previous_candidate: int, reflection: Reflection) -> Reflection:
        """Keep advice under the key of the trial that will use it, and return what counts: the first writer's."""
        kept = self._insert(
            _REFLECTIONS,
            key,
            previous_candidate=previous_candidate,
            text=reflection.text,
            model=reflection.author.model,
            adapter_sha256=reflection.author.adapter_sha256,
            record=reflection.model_dump(mode="json"),
        )
        return reflection if kept else self.reflection(key) or reflection

    def add_invalid(self, key: Key, cause: str, usage: Usage) -> None:
        """Count a rollout or reflection that the infrastructure spoiled; its key stays free."""
        with self._transaction() as connection:
            row = self._row(key) | {"cause": cause, "usage": usage.model_dump(), "stored_at": _now()}
            connection.execute(_INVALIDS.insert().values(**row))

    def trajectories(self, arm: str) -> dict[Key, Trajectory]:
        """All attempts of an arm, in the order of their keys."""
        return {_key(row): Trajectory.model_validate(row["record"]) for row in self._all(_TRAJECTORIES, arm)}

    def reflections(self, arm: str) -> list[StoredReflection]:
        """All advice of an arm, in the order of their keys."""
        return [
            StoredReflection(
                _key(row),
                row["previous_candidate"],
                Reflection.model_validate(row["record"]),
                datetime.fromisoformat(row["stored_at"]),
            )
            for row in self._all(_REFLECTIONS, arm)
        ]

    def arms(self) -> list[str]:
        """Names of the arms that have facts."""
        with self._transaction() as connection:
            mine = [sa.select(t.c.arm).where(t.c.experiment == self.experiment) for t in (_TRAJECTORIES, _REFLECTIONS)]
            return sorted(connection.execute(sa.union(*mine)).scalars())

    def invalid_causes(self, arm: str) -> list[str]:
        """Why attempts of an arm came to nothing, oldest first."""
        chosen = sa.select(_INVALIDS.c.cause).where(self._mine(_INVALIDS, arm)).order_by(_INVALIDS.c.id)
        with self._transaction() as connection:
            return list(connection.execute(chosen).scalars())

    def usage(self, arm: str) -> Usage:
        """All that an arm consumed so far, spoiled attempts included."""
        total = Usage()
        for table in (_TRAJECTORIES, _REFLECTIONS):
            for row in self._all(table, arm):
                total += Usage.model_validate(row["record"]["usage"])
        with self._transaction() as connection:
            for usage in connection.execute(sa.select(_INVALIDS.c.usage).where(self._mine(_INVALIDS, arm))).scalars():
                total += Usage.model_validate(usage)
        return total

    def bind(self, arm: str, conditions: BaseModel | Mapping[str, Any]) -> None:
        """Say under which conditions the facts of an arm are made; other facts must never mix with them.

        Raises:
            ConfigError: the arm already holds facts made under other conditions.
        """
        wanted = conditions.model_dump(mode="json") if isinstance(conditions, BaseModel) else dict(conditions)
        try:
            with self._transaction() as connection:
                connection.execute(_CONDITIONS.insert().values(experiment=self.experiment, arm=arm, record=wanted))
            return
        except exc.IntegrityError:
            with self._transaction() as connection:
                where = (_CONDITIONS.c.experiment == self.experiment) & (_CONDITIONS.c.arm == arm)
                found = connection.execute(sa.select(_CONDITIONS.c.record).where(where)).scalar_one()
        if found != wanted:
            changed = ", ".join(_differences(found, wanted))
            raise ConfigError(
                f"The run {self.experiment!r} already holds {arm!r} facts made with {changed}: "
                "give this experiment another name with run=NAME, or set the old values back."
            )

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def _create_tables(self) -> None:
        with self._engine.begin() as connection:
            for table in _METADATA.sorted_tables:
                connection.execute(sa.schema.CreateTable(table, if_not_exists=True))

    def _insert(self, table: sa.Table, key: Key, **values: Any) -> bool:
        """Whether this was the first fact under its key; a later one changes nothing."""
        row = self._row(key) | values | {"stored_at": _now()}
        try:
            with self._transaction() as connection:
                connection.execute(table.insert().values(**row))
        except exc.IntegrityError:
            return False
        return True

    def _row(self, key: Key) -> dict[str, Any]:
        return {"experiment": self.experiment} | key.model_dump()

    def _one(self, table: sa.Table, key: Key) -> sa.RowMapping | None:
        where = sa.and_(*(table.c[name] == value for name, value in self._row(key).items()))
        with self._transaction() as connection:
            return connection.execute(sa.select(table).where(where)).mappings().first()

    def _all(self, table: sa.Table, arm: str) -> list[sa.RowMapping]:
        order = [table.c[name] for name in ("task_id", "trial", "candidate", "repeat")]
        with self._transaction() as connection:
            chosen = sa.select(table).where(self._mine(table, arm)).order_by(*order)
            return list(connection.execute(chosen).mappings())

    def _mine(self, table: sa.Table, arm: str) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.experiment == self.experiment, table.c.arm == arm)

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            raise
        except (exc.SQLAlchemyError, ModuleNotFoundError, OSError) as error:
            what = getattr(error, "orig", None) or error
            hint = "free some space" if "full" in str(what) else "check that it can be reached and written"
            raise StoreError(f"The store {self.url} cannot be used ({what}): {hint} and run again.") from error


def open_store(experiment: Experiment) -> Store:
    """The store that an experiment names."""
    return Store(experiment.store_url, experiment.run)


def _tune_sqlite(connection: Any, _: object) -> None:
    connection.execute(f"PRAGMA busy_timeout={_PATIENCE_SECONDS * 1000}")
    # WAL lets readers look while a stage writes; a killed process loses nothing that was committed. At the switch to
    # it SQLite does not wait for others, so two stages that open a new store at once would refuse each other.
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > give_up:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=NORMAL")


def _key(row: sa.RowMapping) -> Key:
    return Key(**{name: row[name] for name in Key.model_fields})


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _differences(found: Any, wanted: Any, at: str = "") -> Iterator[str]:
    if isinstance(found, dict) and isinstance(wanted, dict):
        for name in sorted(found.keys() | wanted.keys()):
            yield from _differences(found.get(name), wanted.get(name), f"{at}.{name}" if at else name)
    elif found != wanted:
        yield f"{at}={found!r}, not {wanted!r}"
