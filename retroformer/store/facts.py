"""The facts of one experiment, each written once.

A second writer of the same key changes nothing, so a restart that finds a fact skips the work, and nothing is stored
twice. Rollouts and reflections that the infrastructure spoiled are kept apart in `invalids`, so that their keys stay
free for the next try.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel

from retroformer.canonical import canonical_json, sha256_of
from retroformer.config import Experiment
from retroformer.errors import ConfigError
from retroformer.records import Key, Reflection, Trajectory, Usage
from retroformer.secret_url import SecretUrl
from retroformer.store.database import PATIENCE_SECONDS, Database, insert_into
from retroformer.store.leases import Leases
from retroformer.store.reading import Reader
from retroformer.store.rows import NewFact, NewInvalid, NewReflection, NewTrajectory, Prepared, prepared
from retroformer.store.schema import (
    ACCOUNTS,
    ARMS,
    CONDITIONS,
    INVALIDS,
    KEY,
    REFLECTIONS,
    TRAJECTORIES,
    UNDECLARED,
    USAGE,
)
from retroformer.store.upgrade import EARLIER

_FACTS_AT_ONCE = 500
"""Facts of an import that are in memory together."""


class Store(Reader):
    """The facts of one experiment: what can be asked about them, and how new ones are added."""

    def __init__(self, url: str | SecretUrl, experiment: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(Database(url, patience_seconds), experiment)
        self.url = self._database.url
        self.leases = Leases(self._database, experiment)
        self._declared: dict[str, str] = {}
        """By arm, the hash of the conditions under which this process makes facts."""
        self._bound = set[str]()
        """Arms of which this process has stored or found a fact, so that their conditions are checked."""

    def declare(self, arm: str, conditions: BaseModel | Mapping[str, Any]) -> None:
        """Say under which conditions facts of an arm are about to be made. They are bound by the first fact.

        Raises:
            ConfigError: the arm already holds facts made under other conditions.
        """
        record = conditions.model_dump(mode="json") if isinstance(conditions, BaseModel) else dict(conditions)
        wanted = json.loads(canonical_json(record))
        sha256 = sha256_of(wanted) if wanted else UNDECLARED

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
        kept = self._database.write(lambda connection: self._add(connection, rows))
        self._bound |= _bindable(rows)
        return kept

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

    def charge(self, arm: str, usage: Usage) -> None:
        """Count calls that made no fact, such as a probe."""
        self._database.write(lambda connection: self._charge(connection, {arm: usage}))

    def give_up(self) -> None:
        """Stop waiting for a database that does not answer: its error is raised now."""
        self._database.give_up()

    def close(self) -> None:
        """Give the connections back."""
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
        # An arm counts as bound once its transaction is committed: one that is repeated has to bind it again.
        for arm in sorted(_bindable(facts) - self._bound):
            self._bind(connection, arm)
        first = set[int]()
        for table in (TRAJECTORIES, REFLECTIONS, INVALIDS):
            chosen = [(number, fact) for number, fact in enumerate(facts) if fact.table is table]
            if chosen:
                first |= self._insert_into(connection, table, chosen)
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
        conditions = self._declared.get(fact.key.arm, UNDECLARED)
        return {"experiment": self.experiment, "conditions_sha256": conditions} | fact.row

    def _first(self, connection: sa.Connection, fact: Prepared) -> Trajectory | Reflection:
        """The fact that was stored under this key before."""
        where = self._under(fact.table, fact.key)
        record = connection.execute(sa.select(fact.table.c.record).where(where)).scalar_one()
        kind: type[Trajectory] | type[Reflection] = Trajectory if fact.table is TRAJECTORIES else Reflection
        return kind.model_validate_json(record)

    def _bind(self, connection: sa.Connection, arm: str) -> None:
        """Bind the arm to the declared conditions with its first fact. Raises ConfigError where others are bound."""
        wanted = self._declared.get(arm, UNDECLARED)
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


def open_store(experiment: Experiment) -> Store:
    """The store that an experiment names."""
    return Store(experiment.store_url, experiment.run)


def differences(bound: Any, wanted: Any, at: str = "") -> Iterator[str]:
    """Where two nested mappings differ, such as `loop.memory=3, not 2`."""
    if isinstance(bound, dict) and isinstance(wanted, dict):
        for name in sorted(bound.keys() | wanted.keys()):
            yield from differences(bound.get(name), wanted.get(name), f"{at}.{name}" if at else name)
    elif bound != wanted:
        yield f"{at}={bound!r}, not {wanted!r}"


def _bindable(facts: Iterable[Prepared]) -> set[str]:
    """The arms that these facts bind. What was spoiled is no fact, and binds nothing."""
    return {fact.key.arm for fact in facts if fact.table is not INVALIDS}


def _sums(facts: Iterable[Prepared]) -> dict[str, Usage]:
    """What facts of each arm consumed."""
    spent: defaultdict[str, Usage] = defaultdict(Usage)
    for fact in facts:
        spent[fact.key.arm] += fact.usage
    return spent
