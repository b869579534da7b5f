"""Facts of one experiment, each written once.

A second writer of the same key changes nothing, so a restarted stage skips work whose fact is stored, and nothing is
stored twice. Rollouts and reflections that failed because of the infrastructure are stored separately in `invalids`, so
that their keys stay free for the next attempt.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import sqlalchemy as sa

from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError
from retroformer.files.text import canonical_json, differences, sha256_of
from retroformer.method.records import Key, Reflection, Trajectory, Usage
from retroformer.run.store.damage import check_facts, checksum
from retroformer.run.store.database import PATIENCE_SECONDS, Database, insert_into
from retroformer.run.store.leases import Leases
from retroformer.run.store.marks import Marks
from retroformer.run.store.reading import FactReader
from retroformer.run.store.rows import FactRow, NewFact, NewReflection, fact_row
from retroformer.run.store.schema import (
    ACCOUNTS,
    ARMS,
    CHECKSUM,
    CONDITIONS,
    FACTS,
    INVALIDS,
    KEY,
    TRAJECTORIES,
    UNDECLARED,
    USAGE,
)

_FACTS_AT_ONCE = 500
"""Number of facts of an import in memory at a time."""


class Store(FactReader):
    """Facts of one experiment: all queries of FactReader, and methods that add facts."""

    def __init__(
        self,
        url: str | SecretUrl,
        experiment: str,
        patience_seconds: float = PATIENCE_SECONDS,
        *,
        read_only: bool = False,
    ) -> None:
        super().__init__(Database(url, patience_seconds, read_only=read_only), experiment)
        self.url = self._database.url
        self.leases = Leases(self._database, experiment)
        self.marks = Marks(self._database, experiment)
        self._declared: dict[str, str] = {}
        """Hash of the conditions under which this process makes facts, by arm."""
        self._bound = set[str]()
        """Arms that this process has added facts to, so their conditions are checked already."""

    def declare(self, arm: str, conditions: Mapping[str, Any]) -> None:
        """Declare the conditions under which this process makes facts of an arm. The first fact binds the arm to them.

        Raises ConfigError if the arm already holds facts made under other conditions.
        """
        wanted = json.loads(canonical_json(conditions))
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
        """Store facts in one transaction. Return for each the record stored under its key, which is the first writer's.

        All of them are charged to the accounts, as a call whose fact came second was paid for, too. Raises ConfigError
        if an arm holds facts made under other conditions, StoreError, and UnstorableFact if a fact cannot be stored.
        """
        rows = [fact_row(fact) for fact in facts]
        kept = self._database.write(lambda connection: self._add(connection, rows))
        self._bound |= _bindable(rows)
        return kept

    def add_all(self, facts: Callable[[], Iterable[NewFact]]) -> int:
        """Store imported facts in one transaction and return the number of new ones; only new ones are charged.

        `facts` is called again if the transaction is repeated. Raises ConfigError, and stores nothing, if an arm holds
        facts made under other conditions.
        """

        def work(connection: sa.Connection) -> int:
            new, waiting = 0, iter(facts())
            while batch := [fact_row(fact) for fact in islice(waiting, _FACTS_AT_ONCE)]:
                first = self._insert(connection, batch)
                self._charge(connection, _sums([batch[number] for number in first]))
                new += len(first)
            return new

        return self._database.write(work)

    def add_reflection(self, key: Key, previous_candidate: int, reflection: Reflection) -> Reflection:
        """Store advice under the key of the trial that will use it. Return the first writer's, which is stored."""
        (kept,) = self.add([NewReflection(key, previous_candidate, reflection)])
        assert isinstance(kept, Reflection)
        return kept

    def charge(self, arm: str, usage: Usage) -> None:
        """Charge calls that made no fact, such as a probe, to the account of an arm."""
        self._database.write(lambda connection: self._charge(connection, {arm: usage}))

    def check(self) -> None:
        """Read all facts of the experiment once. Raises StoreError if some differ from what was stored."""
        check_facts(self._database, self.experiment)

    def give_up(self) -> None:
        """Stop retrying: the error of a database that does not answer is raised now."""
        self._database.give_up()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def _add(self, connection: sa.Connection, facts: Sequence[FactRow]) -> list[Trajectory | Reflection | None]:
        first = self._insert(connection, facts)
        self._charge(connection, _sums(facts))
        return [
            fact.record if number in first or fact.record is None else self._first(connection, fact)
            for number, fact in enumerate(facts)
        ]

    def _insert(self, connection: sa.Connection, facts: Sequence[FactRow]) -> set[int]:
        """Insert facts. Return the indices of those whose key was free."""
        # An arm counts as bound only once its transaction is committed: a repeated transaction must bind it again.
        for arm in sorted(_bindable(facts) - self._bound):
            self._bind(connection, arm)
        first = set[int]()
        for table in FACTS:
            chosen = [(number, fact) for number, fact in enumerate(facts) if fact.table is table]
            if chosen:
                first |= self._insert_into(connection, table, chosen)
        return first

    def _insert_into(
        self, connection: sa.Connection, table: sa.Table, facts: Sequence[tuple[int, FactRow]]
    ) -> set[int]:
        """Insert rows of one table. Return the indices of those whose key was free."""
        # Writers that insert the same keys in the same order wait for each other instead of deadlocking.
        ordered = sorted(facts, key=lambda numbered: [numbered[1].row[name] for name in KEY])
        rows = [self._row(fact) for _, fact in ordered]
        if table is INVALIDS:
            connection.execute(table.insert(), rows)
            return {number for number, _ in facts}
        statement = insert_into(table, connection).on_conflict_do_nothing().returning(*(table.c[name] for name in KEY))
        inserted = {tuple(row) for row in connection.execute(statement, rows)}
        first = set[int]()
        for number, fact in facts:
            if (key := tuple(fact.row[name] for name in KEY)) in inserted:
                inserted.discard(key)
                first.add(number)
        return first

    def _row(self, fact: FactRow) -> dict[str, Any]:
        conditions = self._declared.get(fact.key.arm, UNDECLARED)
        row = {"experiment": self.experiment, "conditions_sha256": conditions} | fact.row
        return row | {CHECKSUM: checksum(row)}

    def _first(self, connection: sa.Connection, fact: FactRow) -> Trajectory | Reflection:
        """Read the fact that is already stored under this key."""
        where = self._under(fact.table, fact.key)
        record = connection.execute(sa.select(fact.table.c.record).where(where)).scalar_one()
        kind: type[Trajectory] | type[Reflection] = Trajectory if fact.table is TRAJECTORIES else Reflection
        return kind.model_validate_json(record)

    def _bind(self, connection: sa.Connection, arm: str) -> None:
        """Bind the arm to the declared conditions with its first fact. Raises ConfigError if it is bound to others."""
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
        if ("recorded" in bound) != ("recorded" in wanted):
            return ConfigError(
                f"The run {self.experiment!r} already holds {arm!r} facts of another origin, and imported ones are "
                "never mixed with collected ones: give this one a name of its own with run=NAME."
            )
        changed = ", ".join(differences(bound, wanted))
        return ConfigError(
            f"The run {self.experiment!r} already holds {arm!r} facts made with {changed}: "
            "give this experiment another name with run=NAME, or set the old values back."
        )


def _bindable(facts: Iterable[FactRow]) -> set[str]:
    """Return the arms that these facts bind. An invalid attempt is not a fact and binds nothing."""
    return {fact.key.arm for fact in facts if fact.table is not INVALIDS}


def _sums(facts: Iterable[FactRow]) -> dict[str, Usage]:
    """Return the usage of these facts by arm."""
    spent: defaultdict[str, Usage] = defaultdict(Usage)
    for fact in facts:
        spent[fact.key.arm] += fact.usage
    return spent


class StoredExperiment(Protocol):
    """Name of an experiment in its store, and where that is."""

    @property
    def name(self) -> str: ...

    @property
    def store_url(self) -> SecretUrl: ...


def open_store(experiment: StoredExperiment) -> Store:
    """Open the store of an experiment. Raises StoreError."""
    return Store(experiment.store_url, experiment.name)


def open_whole_store(experiment: StoredExperiment) -> Store:
    """Open the store of an experiment to train on it or report it. Raises StoreError, also if a fact is damaged."""
    store = open_store(experiment)
    try:
        store.check()
    except BaseException:
        store.close()
        raise
    return store
