"""Queries on the store: single facts, streams of facts in the order of their keys, and counts by SQL."""

import hashlib
import json
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from pydantic import RootModel

from retroformer.method.records import Key, Reflection, Trajectory, Usage
from retroformer.run.store.database import Database
from retroformer.run.store.rows import AdviceRow, ArmCounts, AttemptRow, LiveRetry, Parser, RatingRow, StoredReflection
from retroformer.run.store.schema import (
    ACCOUNTS,
    ARMS,
    CHECKSUM,
    CONDITIONS,
    FACTS,
    INVALIDS,
    KEY,
    LEASES,
    REFLECTIONS,
    TRAJECTORIES,
    USAGE,
)

_MAYBE_STORY = re.compile(r"@[0-9a-f]{12}$")
"""End of the keys of stories, and of some ids of tasks."""
_IDS_AT_ONCE = 500
"""Number of task ids in one query; databases limit the number of parameters."""

Item = TypeVar("Item")


class _Conditions(RootModel[dict[str, Any]]):
    """Conditions of an arm."""


class FactReader:
    """Queries on the facts of one experiment."""

    def __init__(self, database: Database, experiment: str) -> None:
        self._database, self.experiment = database, experiment
        self._parser = Parser(database.url)

    def trajectory(self, key: Key) -> Trajectory | None:
        """Return the attempt under this key, or None."""
        record = self._record(TRAJECTORIES, key)
        return self._parser.record(Trajectory, record) if record else None

    def reflection(self, key: Key) -> Reflection | None:
        """Return the advice for the trial under this key, or None."""
        record = self._record(REFLECTIONS, key)
        return self._parser.record(Reflection, record) if record else None

    # Streams.

    def stream_trajectories(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[tuple[Key, Trajectory]]:
        """Yield the attempts of an arm, or of some of its tasks, in the order of their keys."""
        columns = [TRAJECTORIES.c[name] for name in (*KEY, "record")]
        for row in self._stream(TRAJECTORIES, columns, arm, task_ids):
            yield _key(row), self._parser.record(Trajectory, row.record)

    def stream_reflections(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[StoredReflection]:
        """Yield the advice of an arm, or of some of its tasks, in the order of its keys."""
        columns = [REFLECTIONS.c[name] for name in (*KEY, "previous_candidate", "record", "stored_at")]
        for row in self._stream(REFLECTIONS, columns, arm, task_ids):
            reflection = self._parser.record(Reflection, row.record)
            yield StoredReflection(_key(row), row.previous_candidate, reflection, self._parser.time(row.stored_at))

    def openings(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
        """Yield the keys of an arm's tasks with a hash, which is equal for tasks that begin with the same text."""
        columns = [TRAJECTORIES.c.task_id, TRAJECTORIES.c.record]
        for row in self._stream(TRAJECTORIES, columns, arm, task_ids, TRAJECTORIES.c.trial == 0):
            opening = " ".join(unicodedata.normalize("NFC", json.loads(row.record)["opening"]).casefold().split())
            if opening:
                yield row.task_id, hashlib.sha256(opening.encode()).hexdigest()

    def stored_times(self, arm: str, task_id: str) -> dict[Key, str]:
        """Return when the attempts at a task were stored."""
        columns = [TRAJECTORIES.c[name] for name in (*KEY, "stored_at")]
        return {_key(row): row.stored_at for row in self._stream(TRAJECTORIES, columns, arm, [task_id])}

    def attempt_rows(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[AttemptRow]:
        """Yield the columns of attempts, in the order of their keys."""
        columns = [TRAJECTORIES.c[name] for name in AttemptRow._fields]
        return map(AttemptRow._make, self._stream(TRAJECTORIES, columns, arm, task_ids))

    def advice_rows(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[AdviceRow]:
        """Yield the columns of reflections, in the order of their keys."""
        columns = [REFLECTIONS.c[name] for name in AdviceRow._fields]
        return map(AdviceRow._make, self._stream(REFLECTIONS, columns, arm, task_ids))

    def rating_rows(self, arm: str, *, records: bool = False) -> Iterator[RatingRow]:
        """Yield each reflection whose trials before and after it are stored, with both returns; one row per repeat.

        If `records` is true, the rows also hold the reflections as JSON.
        """
        advice, before, after = REFLECTIONS, TRAJECTORIES.alias("before"), TRAJECTORIES.alias("after")
        same = [
            (attempt.c.experiment == advice.c.experiment)
            & (attempt.c.arm == advice.c.arm)
            & (attempt.c.task_id == advice.c.task_id)
            for attempt in (before, after)
        ]
        is_before = same[0] & (before.c.trial == advice.c.trial - 1) & (before.c.repeat == 0)
        is_before &= before.c.candidate == advice.c.previous_candidate
        is_after = same[1] & (after.c.trial == advice.c.trial) & (after.c.candidate == advice.c.candidate)
        key = [advice.c[name] for name in ("task_id", "trial", "candidate", "previous_candidate")]
        query = (
            sa.select(
                *key,
                advice.c.text,
                before.c.episode_return,
                after.c.episode_return,
                advice.c.record if records else sa.null(),
            )
            .select_from(advice.join(before, is_before).join(after, is_after))
            .where(self._of_arm(advice, arm))
            .order_by(*key, after.c.repeat)
        )
        return cast("Iterator[RatingRow]", self._database.stream(query))

    def live_retries(self, advised: str, unadvised: str, split: str) -> list[LiveRetry]:
        """Return the first retries of two arms, in the order in which they were stored.

        Of the arm `advised`, only those of `split` count.
        """
        retry, advice = TRAJECTORIES, REFLECTIONS
        same = sa.and_(*(retry.c[name] == advice.c[name] for name in ("experiment", *KEY)))
        drawn = self._of_arm(retry, unadvised) | (self._of_arm(retry, advised) & (retry.c.split == split))
        query = (
            sa.select(retry.c.arm, retry.c.episode_return, retry.c.stored_at, advice.c.adapter_sha256)
            .select_from(retry.outerjoin(advice, same))
            .where(drawn, retry.c.trial == 1)
            .order_by(retry.c.stored_at, retry.c.task_id)
        )
        return [
            LiveRetry(arm == advised, returned, self._parser.time(stored_at), adapter)
            for arm, returned, stored_at, adapter in map(tuple, self._all(query))
        ]

    # Names, counts and sums.

    def experiments(self) -> list[str]:
        """Return the names of all experiments in the database, also of those whose attempts were all invalid."""
        return sorted(self._scalars(sa.union(sa.select(ARMS.c.experiment), sa.select(INVALIDS.c.experiment))))

    def arms(self) -> list[str]:
        """Return the names of the arms that have facts."""
        return list(self._scalars(sa.select(ARMS.c.arm).where(ARMS.c.experiment == self.experiment).order_by("arm")))

    def arm_counts(self) -> Mapping[str, ArmCounts]:
        """Return the number of facts of each arm, 0 for an arm that has none."""
        counts = defaultdict[str, ArmCounts](ArmCounts)
        for kind, table in zip(ArmCounts._fields, FACTS, strict=True):
            chosen = sa.select(table.c.arm, sa.func.count().label("facts")).where(table.c.experiment == self.experiment)
            for row in self._all(chosen.group_by(table.c.arm).order_by(table.c.arm)):
                counts[row.arm] = counts[row.arm]._replace(**{kind: row.facts})
        return counts

    def fact_versions(self, arm: str) -> dict[str, str]:
        """Return a hash of the facts of each task, invalid ones included."""
        versions = defaultdict[str, "hashlib._Hash"](hashlib.sha256)
        for table in FACTS:
            order = (table.c.task_id, table.c.trial, table.c.candidate, table.c.repeat, table.c[CHECKSUM])
            chosen = sa.select(table.c.task_id, table.c[CHECKSUM]).where(self._of_arm(table, arm))
            for row in self._database.stream(chosen.order_by(*order)):
                versions[row.task_id].update(str(row.checksum).encode())
        return {task_id: version.hexdigest() for task_id, version in versions.items()}

    def reflected_tasks(self, arm: str) -> set[str]:
        """Return the ids of the tasks that have a reflection."""
        return set(self._scalars(sa.select(REFLECTIONS.c.task_id).where(self._of_arm(REFLECTIONS, arm)).distinct()))

    def played_tasks(self, arm: str) -> set[str]:
        """Return the ids of the tasks that have a valid attempt."""
        return set(self._scalars(sa.select(TRAJECTORIES.c.task_id).where(self._of_arm(TRAJECTORIES, arm)).distinct()))

    def tasks(self, arm: str) -> dict[str, str]:
        """Return the tasks that have a valid attempt or a reflection: the ids by the keys, which name their stories."""
        tasks = {key: key for key in self.played_tasks(arm) | self.reflected_tasks(arm)}
        stories = [key for key in tasks if _MAYBE_STORY.search(key)]
        return tasks | {key: attempt.task.id for key, attempt in self.attempts_of(arm, stories)}

    def attempts_of(self, arm: str, keys: Sequence[str]) -> Iterator[tuple[str, Trajectory]]:
        """Yield an attempt at each of these tasks, by their keys, that has one."""
        chosen = sa.select(TRAJECTORIES.c.task_id, sa.func.max(TRAJECTORIES.c.record).label("record"))
        query = chosen.where(self._of_arm(TRAJECTORIES, arm)).group_by(TRAJECTORIES.c.task_id)
        for chunk in chunks(keys, _IDS_AT_ONCE):
            for row in self._all(query.where(TRAJECTORIES.c.task_id.in_(chunk))):
                yield row.task_id, self._parser.record(Trajectory, row.record)

    def causes_by_task(self, arm: str, task_ids: Sequence[str]) -> dict[str, list[tuple[Key, str]]]:
        """Return keys and causes of the invalid attempts at each of these tasks that has some, oldest first."""
        causes = dict[str, list[tuple[Key, str]]]()
        chosen = sa.select(*(INVALIDS.c[name] for name in KEY), INVALIDS.c.cause).where(self._of_arm(INVALIDS, arm))
        for chunk in chunks(task_ids, _IDS_AT_ONCE):
            for row in self._all(chosen.where(INVALIDS.c.task_id.in_(chunk)).order_by(INVALIDS.c.id)):
                causes.setdefault(row.task_id, []).append((_key(row), row.cause))
        return causes

    def cause_counts(self, arms: Sequence[str], most: int) -> list[tuple[str, int]]:
        """Return the first lines of the most frequent causes of invalid attempts in these arms, with their counts."""
        count = sa.func.count().label("times")
        chosen = sa.select(INVALIDS.c.cause, count).where(
            INVALIDS.c.experiment == self.experiment, INVALIDS.c.arm.in_(arms)
        )
        first = sa.func.min(INVALIDS.c.id)
        query = chosen.group_by(INVALIDS.c.cause).order_by(count.desc(), first).limit(most)
        return [(row.cause.partition("\n")[0], row.times) for row in self._all(query)]

    def last_cause(self, arm: str) -> str:
        """Return the cause of an arm's latest invalid attempt, or "" if there is none."""
        chosen = sa.select(INVALIDS.c.cause).where(self._of_arm(INVALIDS, arm)).order_by(INVALIDS.c.id.desc()).limit(1)
        return next(iter(self._scalars(chosen)), "")

    def running_counts(self) -> dict[str, int]:
        """Return the number of tasks of each arm that a process works on now, if there are some."""
        running = LEASES.c.owner.is_not(None) & (LEASES.c.expires_at > datetime.now(UTC).timestamp())
        chosen = sa.select(LEASES.c.arm, sa.func.count().label("tasks")).where(
            LEASES.c.experiment == self.experiment, running
        )
        return {row.arm: row.tasks for row in self._all(chosen.group_by(LEASES.c.arm))}

    def usage(self, arm: str) -> Usage:
        """Return the usage of an arm so far, including invalid attempts and calls whose fact came second."""
        return self.accounts().get(arm, Usage())

    def usage_of_arms(self, counts: Callable[[str], bool]) -> Usage:
        """Return the usage so far of the arms for whose name `counts` is true."""
        return sum((usage for arm, usage in self.accounts().items() if counts(arm)), Usage())

    def accounts(self) -> dict[str, Usage]:
        """Return the usage of each arm so far."""
        chosen = sa.select(ACCOUNTS.c.arm, *(ACCOUNTS.c[name] for name in USAGE))
        mine = chosen.where(ACCOUNTS.c.experiment == self.experiment).order_by(ACCOUNTS.c.arm)
        # A sum is not within the bounds of a fact.
        return {row[0]: Usage.model_construct(**dict(zip(USAGE, row[1:], strict=True))) for row in self._all(mine)}

    def mean_tokens(self, arm: str) -> list[tuple[float, float] | None]:
        """Return the mean prompt and completion tokens of an attempt, and of a reflection; None if there are none."""
        means = list[tuple[float, float] | None]()
        for table in (TRAJECTORIES, REFLECTIONS):
            columns = [sa.func.avg(table.c[name]).label(name) for name in ("prompt_tokens", "completion_tokens")]
            (row,) = self._all(sa.select(*columns).where(self._of_arm(table, arm)))
            counted = row.prompt_tokens is not None
            means.append((float(row.prompt_tokens), float(row.completion_tokens)) if counted else None)
        return means

    def conditions(self, arm: str) -> dict[str, Any] | None:
        """Return the conditions of an arm's facts: None if there is no fact, empty if none were declared."""
        query = (
            sa.select(ARMS.c.conditions_sha256, CONDITIONS.c.record)
            .select_from(ARMS.outerjoin(CONDITIONS, ARMS.c.conditions_sha256 == CONDITIONS.c.sha256))
            .where(ARMS.c.experiment == self.experiment, ARMS.c.arm == arm)
        )
        row = self._database.read(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        return self._parser.record(_Conditions, row.record).root if row.record else {}

    def _record(self, table: sa.Table, key: Key) -> str | None:
        query = sa.select(table.c.record).where(self._under(table, key))
        return self._database.read(lambda connection: connection.execute(query).scalar())

    def _stream(
        self,
        table: sa.Table,
        columns: Sequence[sa.Column[Any]],
        arm: str,
        task_ids: Sequence[str] | None,
        *which: sa.ColumnElement[bool],
    ) -> Iterator[sa.Row[Any]]:
        query = sa.select(*columns).where(self._of_arm(table, arm), *which).order_by(*(table.c[name] for name in KEY))
        if task_ids is None:
            yield from self._database.stream(query)
            return
        for chunk in chunks(task_ids, _IDS_AT_ONCE):
            yield from self._all(query.where(table.c.task_id.in_(chunk)))

    def _all(self, query: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        return self._database.read(lambda connection: connection.execute(query).all())

    def _scalars(self, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> Sequence[Any]:
        return self._database.read(lambda connection: connection.execute(query).scalars().all())

    def _of_arm(self, table: sa.Table, arm: str) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.experiment == self.experiment, table.c.arm == arm)

    def _under(self, table: sa.Table, key: Key) -> sa.ColumnElement[bool]:
        values = {"experiment": self.experiment} | key.model_dump()
        return sa.and_(*(table.c[name] == value for name, value in values.items()))


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Yield the items in order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def _key(row: sa.Row[Any]) -> Key:
    # A Key validated these values when they were stored; validating each of a million rows again would be slow.
    return Key.model_construct(**dict(zip(KEY, row, strict=False)))
