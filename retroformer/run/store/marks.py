"""Marks: what a person says of a story. Each is kept; the latest one of a story counts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, get_args

import sqlalchemy as sa
from pydantic import Field

from retroformer.method.records import Name, Record, StorableText, TaskKey
from retroformer.run.store.database import Database
from retroformer.run.store.rows import Parser
from retroformer.run.store.schema import MARKS

Verdict = Literal["right", "wrong", "leaking", ""]
VERDICTS: tuple[str, ...] = tuple(verdict for verdict in get_args(Verdict) if verdict)


class Mark(Record):
    """Judgement of a person about the story of a task in an arm."""

    arm: Name
    task_id: TaskKey
    verdict: Verdict
    """right or wrong: whether the advice understood the failure; leaking: it gives the solution away; empty: the mark
    was taken back."""
    note: Annotated[StorableText, Field(max_length=4000)] = ""
    marked_at: datetime


class Marks:
    """Marks on the stories of one experiment."""

    def __init__(self, database: Database, experiment: str) -> None:
        self._database, self._experiment = database, experiment

    def add(self, arm: str, task_id: str, verdict: Verdict, note: str = "") -> Mark:
        """Store a mark made now. Raises StoreError; ValidationError if the note is too long."""
        mark = Mark(arm=arm, task_id=task_id, verdict=verdict, note=note, marked_at=datetime.now(UTC))
        self.add_all([mark])
        return mark

    def add_all(self, marks: list[Mark]) -> int:
        """Store those of these marks that are not stored yet; return their number. Raises StoreError."""
        stored = set(self.history())
        new = [mark for mark in marks if mark not in stored]
        rows = [
            {**mark.model_dump(), "experiment": self._experiment, "marked_at": mark.marked_at.isoformat()}
            for mark in new
        ]
        if rows:
            self._database.write(lambda connection: connection.execute(sa.insert(MARKS), rows))
        return len(new)

    def history(self) -> list[Mark]:
        """Return every mark, oldest first. Raises StoreError."""
        parser, columns = Parser(self._database.url), (MARKS.c[name] for name in Mark.model_fields)
        query = sa.select(*columns).where(MARKS.c.experiment == self._experiment).order_by(MARKS.c.id)
        return [parser.record(Mark, row._asdict()) for row in self._database.stream(query)]

    def current(self) -> dict[tuple[str, str], Mark]:
        """Return the latest mark of each story by arm and task, without those that were taken back."""
        latest = {(mark.arm, mark.task_id): mark for mark in self.history()}
        return {key: mark for key, mark in latest.items() if mark.verdict}

    def tasks(self, arm: str, verdicts: Sequence[str]) -> frozenset[str]:
        """Return the tasks of an arm whose story has a mark with one of these verdicts. Raises StoreError."""
        marks = self.current().values() if verdicts else ()
        return frozenset(mark.task_id for mark in marks if mark.arm == arm and mark.verdict in verdicts)
