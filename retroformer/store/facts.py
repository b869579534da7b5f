"""The facts of one experiment: written once, read as streams, counted by SQL.

A fact is written once. A second writer of the same key changes nothing, so a restart that finds a fact skips the
work, and nothing is stored twice. Rollouts and reflections that the infrastructure spoiled are kept apart in
`invalids`, so that their keys stay free for the next try.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import sqlalchemy as sa
from pydantic import BaseModel

from retroformer.canonical import canonical_json, sha256_of
from retroformer.config import Experiment
from retroformer.errors import ConfigError
from retroformer.records import Key, Reflection, Trajectory, Usage
from retroformer.secret_url import SecretUrl
from retroformer.store import schema
from retroformer.store.database import PATIENCE_SECONDS, Database, insert_into
from retroformer.store.leases import Leases
from retroformer.store.rows import (
    AdviceRow,
    AttemptRow,
    NewFact,
    NewInvalid,
    NewReflection,
    NewTrajectory,
    Prepared,
    RatingRow,
    StoredReflection,
    prepared,
)
from retroformer.store.schema import ACCOUNTS, ARMS, CONDITIONS, INVALIDS, KEY, REFLECTIONS, TRAJECTORIES, USAGE
from retroformer.store.upgrade import EARLIER

_IDS_AT_ONCE = 500
"""Task ids in one query; databases bound the number of parameters."""
_FACTS_AT_ONCE = 500
"""Facts of an import that are in memory together."""

Item = TypeVar("Item")


class Store:
    """The facts of one experiment."""

    def __init__(self, url: str | SecretUrl, experiment: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.experiment = experiment
        self._database = Database(url, patience_seconds)
        self.url = self._database.url
        self.leases = Leases(self._database, experiment)
        self._declared: dict[str, str] = {}
        """By arm, the hash of the conditions under which this process makes facts."""
        self._bound = set[str]()
        """Arms of which this process has stored or found a fact, so that their conditions are checked."""

    # Writing.

    def declare(self, arm: str, conditions: BaseModel | Mapping[str, Any]) -> None:
        """Say under which conditions facts of an arm are about to be made. They are bound by the first fact.

        Raises:
            ConfigError: the arm already holds facts made under other conditions.
        """
        record = conditions.model_dump(mode="json") if isinstance(conditions, BaseModel) else dict(conditions)
        wanted = json.loads(canonical_json(record))
        sha256 = sha256_of(wanted) if wanted else schema.UNDECLARED

        def work(connection: sa.Connection) -> None:
            insert = insert_into(CONDITIONS, connection).on_conflict_do_nothing()
            connection.execute(insert.values(sha256=sha256, record=canonical_json(wanted)))

        bound = self.conditions(arm)
        if bound is not None and bound != wanted:
            raise self._refused(arm, bound, wanted)
        self._database.write(work)
        self._declared[arm] = sha256

    def add(self, facts: Sequence[NewFact]) -> list[Trajectory | Reflection | None]:
        """Store facts in one transaction; for each what counts under its key, which is the first writer's.

        All of them are charged to the accounts: a call that lost a race was paid for.

        Raises:
            ConfigError: an arm holds facts made under other conditions.
            StoreError: the store could not be written.
        """
        rows = [prepared(fact) for fact in facts]
        return self._database.write(lambda connection: self._add(connection, rows))

    def add_all(self, facts: Callable[[], Iterable[NewFact]]) -> int:
        """Store facts that somebody else has made and paid for, in one transaction; the number of those that are new.

        `facts` is called anew when the transaction must be repeated.

        Raises:
            ConfigError: an arm holds facts made under other conditions; nothing is stored then.
        """

        def work(connection: sa.Connection) -> int:
            new = 0
            some = list[Prepared]()
            for fact in facts():
                some.append(prepared(fact))
                if len(some) == _FACTS_AT_ONCE:
                    new += self._add_unpaid(connection, some)
                    some = []
            return new + self._add_unpaid(connection, some)

        return self._database.write(work)

    def add_trajectory(self, key: Key, trajectory: Trajectory) -> Trajectory:
        """Store a valid attempt, and return the one that counts: of two writers, the first one's."""
        (kept,) = self.add([NewTrajectory(key, trajectory)])
        assert isinstance(kept, Trajectory)
        return kept

    def add_reflection(self, key: Key, previous_candidate: int, reflection: Reflection) -> Reflection:
        """Store advice under the key of the trial that will use it, and return what counts: the first writer's."""
        (kept,) = self.add([NewReflection(key, previous_candidate, reflection)])
        assert isinstance(kept, Reflection)
        return kept

    def add_invalid(self, key: Key, cause: str, usage: Usage) -> None:
        """Count a rollout or reflection that the infrastructure spoiled; its key stays free."""
        self.add([NewInvalid(key, cause, usage)])

    # Reading one fact, or all that there are about a few tasks.

    def trajectory(self, key: Key) -> Trajectory | None:
        """The attempt under this key, if it has been made."""
        record = self._record(TRAJECTORIES, key)
        return Trajectory.model_validate_json(record) if record else None

    def reflection(self, key: Key) -> Reflection | None:
        """The advice that the trial under this key was given, if it has been written."""
        record = self._record(REFLECTIONS, key)
        return Reflection.model_validate_json(record) if record else None

    def trajectories(self, arm: str) -> dict[Key, Trajectory]:
        """All attempts of an arm in memory, in the order of their keys. For many, use `stream_trajectories`."""
        return dict(self.stream_trajectories(arm))

    def reflections(self, arm: str) -> list[StoredReflection]:
        """All advice of an arm in memory, in the order of its keys. For much, use `stream_reflections`."""
        return list(self.stream_reflections(arm))

    # Reading many.

    def stream_trajectories(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[tuple[Key, Trajectory]]:
        """Attempts of an arm, or of some of its tasks, in the order of their keys."""
        columns = [TRAJECTORIES.c[name] for name in (*KEY, "record")]
        for row in self._stream(TRAJECTORIES, columns, arm, task_ids):
            yield _key(row), Trajectory.model_validate_json(row.record)

    def stream_reflections(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[StoredReflection]:
        """Advice of an arm, or of some of its tasks, in the order of its keys."""
        columns = [REFLECTIONS.c[name] for name in (*KEY, "previous_candidate", "record", "stored_at")]
        for row in self._stream(REFLECTIONS, columns, arm, task_ids):
            reflection = Reflection.model_validate_json(row.record)
            yield StoredReflection(_key(row), row.previous_candidate, reflection, datetime.fromisoformat(row.stored_at))

    def attempt_rows(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[AttemptRow]:
        """The columns of attempts, in the order of their keys."""
        columns = [TRAJECTORIES.c[name] for name in AttemptRow._fields]
        return map(AttemptRow._make, self._stream(TRAJECTORIES, columns, arm, task_ids))

    def advice_rows(self, arm: str, task_ids: Sequence[str] | None = None) -> Iterator[AdviceRow]:
        """The columns of reflections, in the order of their keys."""
        columns = [REFLECTIONS.c[name] for name in AdviceRow._fields]
        return map(AdviceRow._make, self._stream(REFLECTIONS, columns, arm, task_ids))

    def exported(self, table: sa.Table, arm: str, names: Sequence[str]) -> Iterator[Sequence[Any]]:
        """The key and these columns of all facts of a table, in the order of their keys."""
        return self._stream(table, [table.c[name] for name in (*KEY, *names)], arm, None)

    def rating_rows(self, arm: str, *, records: bool = False) -> Iterator[RatingRow]:
        """Every reflection whose trial before and trial after are stored, with their returns; a row for each repeat.

        `records`: whether the rows hold the reflections as JSON, too.
        """
        advice, before, after = REFLECTIONS, TRAJECTORIES.alias("before"), TRAJECTORIES.alias("after")
        same = [
            (attempt.c.experiment == advice.c.experiment)
            & (attempt.c.arm == advice.c.arm)
            & (attempt.c.task_id == advice.c.task_id)
            for attempt in (before, after)
        ]
        looked_at = same[0] & (before.c.trial == advice.c.trial - 1) & (before.c.repeat == 0)
        looked_at &= before.c.candidate == advice.c.previous_candidate
        brought = same[1] & (after.c.trial == advice.c.trial) & (after.c.candidate == advice.c.candidate)
        key = [advice.c[name] for name in ("task_id", "trial", "candidate")]
        query = (
            sa.select(
                *key,
                advice.c.text,
                before.c.episode_return,
                after.c.episode_return,
                advice.c.record if records else sa.null(),
            )
            .select_from(advice.join(before, looked_at).join(after, brought))
            .where(self._of_arm(advice, arm))
            .order_by(*key, after.c.repeat)
        )
        return cast("Iterator[RatingRow]", self._database.stream(query))

    # Counting.

    def arms(self) -> list[str]:
        """Names of the arms that have facts."""
        return list(self._scalars(sa.select(ARMS.c.arm).where(ARMS.c.experiment == self.experiment).order_by("arm")))

    def attempt_count(self, arm: str) -> int:
        """Number of valid attempts."""
        return self._count(TRAJECTORIES, arm)

    def advice_count(self, arm: str) -> int:
        """Number of reflections."""
        return self._count(REFLECTIONS, arm)

    def invalid_count(self, arm: str) -> int:
        """Number of attempts and reflections that the infrastructure spoiled."""
        return self._count(INVALIDS, arm)

    def reflected_tasks(self, arm: str) -> set[str]:
        """Ids of the tasks that have a reflection."""
        return set(self._scalars(sa.select(REFLECTIONS.c.task_id).where(self._of_arm(REFLECTIONS, arm)).distinct()))

    def played_tasks(self, arm: str) -> set[str]:
        """Ids of the tasks that have a valid attempt."""
        return set(self._scalars(sa.select(TRAJECTORIES.c.task_id).where(self._of_arm(TRAJECTORIES, arm)).distinct()))

    def invalid_causes(self, arm: str) -> list[str]:
        """Why attempts of an arm came to nothing, oldest first."""
        chosen = sa.select(INVALIDS.c.cause).where(self._of_arm(INVALIDS, arm)).order_by(INVALIDS.c.id)
        return list(self._scalars(chosen))

    def cause_counts(self, arms: Sequence[str], most: int) -> list[tuple[str, int]]:
        """The commonest causes of invalid attempts in these arms, and how often each came."""
        count = sa.func.count().label("times")
        chosen = sa.select(INVALIDS.c.cause, count).where(
            INVALIDS.c.experiment == self.experiment, INVALIDS.c.arm.in_(arms)
        )
        first = sa.func.min(INVALIDS.c.id)
        query = chosen.group_by(INVALIDS.c.cause).order_by(count.desc(), first).limit(most)
        return [(row.cause, row.times) for row in self._database.stream(query)]

    def last_cause(self, arm: str) -> str:
        """Why the latest invalid attempt of an arm came to nothing; empty where there was none."""
        chosen = sa.select(INVALIDS.c.cause).where(self._of_arm(INVALIDS, arm)).order_by(INVALIDS.c.id.desc()).limit(1)
        return next(iter(self._scalars(chosen)), "")

    def usage(self, arm: str) -> Usage:
        """All that an arm consumed so far, spoiled attempts and calls that lost a race included."""
        return self.accounts().get(arm, Usage())

    def accounts(self) -> dict[str, Usage]:
        """What each arm consumed so far."""
        chosen = sa.select(ACCOUNTS.c.arm, *(ACCOUNTS.c[name] for name in USAGE))
        mine = chosen.where(ACCOUNTS.c.experiment == self.experiment).order_by(ACCOUNTS.c.arm)
        rows = self._database.read(lambda connection: connection.execute(mine).all())
        return {arm: Usage(**dict(zip(USAGE, spent, strict=True))) for arm, *spent in rows}

    def charge(self, arm: str, usage: Usage) -> None:
        """Count calls that made no fact, such as a probe."""
        self._database.write(lambda connection: self._charge(connection, {arm: usage}))

    def mean_tokens(self, arm: str) -> list[tuple[float, float] | None]:
        """Prompt and completion tokens of a mean attempt, and of a mean reflection; None where there is none."""
        means = list[tuple[float, float] | None]()
        for table in (TRAJECTORIES, REFLECTIONS):
            columns = [sa.func.avg(table.c[name]).label(name) for name in ("prompt_tokens", "completion_tokens")]
            (row,) = self._database.stream(sa.select(*columns).where(self._of_arm(table, arm)))
            counted = row.prompt_tokens is not None
            means.append((float(row.prompt_tokens), float(row.completion_tokens)) if counted else None)
        return means

    # Conditions.

    def conditions(self, arm: str) -> dict[str, Any] | None:
        """What the facts of an arm depend on; None while there is no fact, empty where nothing was declared."""
        query = (
            sa.select(ARMS.c.conditions_sha256, CONDITIONS.c.record)
            .select_from(ARMS.outerjoin(CONDITIONS, ARMS.c.conditions_sha256 == CONDITIONS.c.sha256))
            .where(ARMS.c.experiment == self.experiment, ARMS.c.arm == arm)
        )
        row = self._database.read(lambda connection: connection.execute(query).first())
        if row is None:
            return None
        record: dict[str, Any] = json.loads(row.record) if row.record else {}
        return record

    def close(self) -> None:
        """Give leases and connections back."""
        self._database.close()

    def _add(self, connection: sa.Connection, facts: Sequence[Prepared]) -> list[Trajectory | Reflection | None]:
        first = self._insert(connection, facts)
        self._charge(connection, _sums(facts))
        return [
            fact.record if number in first or fact.record is None else self._first(connection, fact)
            for number, fact in enumerate(facts)
        ]

    def _add_unpaid(self, connection: sa.Connection, facts: Sequence[Prepared]) -> int:
        first = self._insert(connection, facts)
        self._charge(connection, _sums([facts[number] for number in first]))
        return len(first)

    def _insert(self, connection: sa.Connection, facts: Sequence[Prepared]) -> set[int]:
        """Insert facts; the numbers of those whose key was free."""
        # What was spoiled is no fact: it binds nothing.
        arms = {fact.key.arm for fact in facts if fact.table is not INVALIDS}
        for arm in sorted(arms - self._bound):
            self._bind(connection, arm)
        first = set[int]()
        for table in (TRAJECTORIES, REFLECTIONS, INVALIDS):
            chosen = [(number, fact) for number, fact in enumerate(facts) if fact.table is table]
            if chosen:
                first |= self._insert_into(connection, table, chosen)
        self._bound |= arms
        return first

    def _insert_into(
        self, connection: sa.Connection, table: sa.Table, facts: Sequence[tuple[int, Prepared]]
    ) -> set[int]:
        """Insert rows of one table; the numbers of those whose key was free."""
        # Writers that insert the same keys in one order wait for each other instead of locking each other out.
        ordered = sorted(facts, key=lambda numbered: [numbered[1].row[name] for name in KEY])
        rows = [self._row(fact) for _, fact in ordered]
        if table is INVALIDS:
            connection.execute(table.insert(), rows)
            return {number for number, _ in facts}
        statement = insert_into(table, connection).on_conflict_do_nothing().returning(*(table.c[name] for name in KEY))
        inserted = {tuple(row) for row in connection.execute(statement, rows)}
        first = set[int]()
        for number, fact in facts:
            key = tuple(fact.row[name] for name in KEY)
            if key in inserted:
                inserted.discard(key)
                first.add(number)
        return first

    def _row(self, fact: Prepared) -> dict[str, Any]:
        conditions = self._declared.get(fact.key.arm, schema.UNDECLARED)
        return {"experiment": self.experiment, "conditions_sha256": conditions} | fact.row

    def _first(self, connection: sa.Connection, fact: Prepared) -> Trajectory | Reflection:
        """The fact that was stored under this key before."""
        where = self._under(fact.table, fact.key)
        record = connection.execute(sa.select(fact.table.c.record).where(where)).scalar_one()
        kind: type[Trajectory] | type[Reflection] = Trajectory if fact.table is TRAJECTORIES else Reflection
        return kind.model_validate_json(record)

    def _bind(self, connection: sa.Connection, arm: str) -> None:
        """Bind the arm to the declared conditions with its first fact. Raises ConfigError where others are bound."""
        wanted = self._declared.get(arm, schema.UNDECLARED)
        row = {"experiment": self.experiment, "arm": arm, "conditions_sha256": wanted}
        connection.execute(insert_into(ARMS, connection).on_conflict_do_nothing().values(**row))
        mine = (ARMS.c.experiment == self.experiment) & (ARMS.c.arm == arm)
        bound = connection.execute(sa.select(ARMS.c.conditions_sha256).where(mine)).scalar_one()
        if bound != wanted:
            records = [
                connection.execute(sa.select(CONDITIONS.c.record).where(CONDITIONS.c.sha256 == sha256)).scalar()
                for sha256 in (bound, wanted)
            ]
            raise self._refused(arm, *(json.loads(record) if record else {} for record in records))

    def _charge(self, connection: sa.Connection, spent: Mapping[str, Usage]) -> None:
        for arm, usage in sorted(spent.items()):
            added = insert_into(ACCOUNTS, connection)
            values = {name: getattr(usage, name) for name in USAGE}
            sums = {name: ACCOUNTS.c[name] + added.excluded[name] for name in USAGE}
            keys = ["experiment", "arm"]
            statement = added.values(experiment=self.experiment, arm=arm, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=keys, set_=sums))

    def _refused(self, arm: str, bound: Mapping[str, Any], wanted: Mapping[str, Any]) -> ConfigError:
        if EARLIER in bound:
            return ConfigError(
                f"The {arm!r} facts of the run {self.experiment!r} were stored by version 0.1.0, which did not record "
                "all that they depend on: they can be trained on, reported and exported, but to make more give this "
                "experiment another name with run=NAME."
            )
        changed = ", ".join(differences(bound, wanted))
        return ConfigError(
            f"The run {self.experiment!r} already holds {arm!r} facts made with {changed}: "
            "give this experiment another name with run=NAME, or set the old values back."
        )

    def _record(self, table: sa.Table, key: Key) -> str | None:
        query = sa.select(table.c.record).where(self._under(table, key))
        return self._database.read(lambda connection: connection.execute(query).scalar())

    def _stream(
        self, table: sa.Table, columns: Sequence[sa.Column[Any]], arm: str, task_ids: Sequence[str] | None
    ) -> Iterator[sa.Row[Any]]:
        query = sa.select(*columns).where(self._of_arm(table, arm)).order_by(*(table.c[name] for name in KEY))
        if task_ids is None:
            yield from self._database.stream(query)
            return
        for some in chunks(task_ids, _IDS_AT_ONCE):
            yield from self._database.stream(query.where(table.c.task_id.in_(some)))

    def _scalars(self, query: sa.Select[Any] | sa.CompoundSelect[Any]) -> Sequence[Any]:
        return self._database.read(lambda connection: connection.execute(query).scalars().all())

    def _count(self, table: sa.Table, arm: str) -> int:
        query = sa.select(sa.func.count()).select_from(table).where(self._of_arm(table, arm))
        return int(self._scalars(query)[0])

    def _of_arm(self, table: sa.Table, arm: str) -> sa.ColumnElement[bool]:
        return sa.and_(table.c.experiment == self.experiment, table.c.arm == arm)

    def _under(self, table: sa.Table, key: Key) -> sa.ColumnElement[bool]:
        values = {"experiment": self.experiment} | key.model_dump()
        return sa.and_(*(table.c[name] == value for name, value in values.items()))


def open_store(experiment: Experiment) -> Store:
    """The store that an experiment names."""
    return Store(experiment.store_url, experiment.run)


def chunks(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """The items in order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))


def differences(bound: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """Where two nested mappings differ, such as `loop.memory=3, not 2`."""
    if isinstance(bound, dict) and isinstance(wanted, dict):
        for name in sorted(bound.keys() | wanted.keys()):
            yield from differences(bound.get(name), wanted.get(name), f"{at}.{name}" if at else name)
    elif bound != wanted:
        yield f"{at}={bound!r}, not {wanted!r}"


def _sums(facts: Iterable[Prepared]) -> dict[str, Usage]:
    """What facts of each arm consumed."""
    spent: defaultdict[str, Usage] = defaultdict(Usage)
    for fact in facts:
        spent[fact.key.arm] += fact.usage
    return spent


def _key(row: sa.Row[Any]) -> Key:
    # The columns hold what a Key has checked before, so it need not be checked again for each of a million rows.
    return Key.model_construct(**dict(zip(KEY, row, strict=False)))
