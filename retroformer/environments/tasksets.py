"""What environments share: tasks by their ids, tasks of a user's own in a JSON lines file, and refusals.

A task in a file has an `id`, perhaps a `split`, and whatever the agent needs.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.files.bounded import MIB, json_rows
from retroformer.method.protocols import Environment
from retroformer.method.records import Name, Record, Task

_LINE_BYTES, _FILE_BYTES = 16 * MIB, 4096 * MIB
_TASK_FORM = 'a task is an object such as {"id": "sum-1", "input": "What is 2 + 3?"}'
_ID = TypeAdapter[str](Annotated[Name, Field(min_length=1)])
Row = TypeVar("Row")


class RowTaskset(Generic[Row]):
    """Tasks of a split by id, each with the row that an environment plays."""

    def __init__(
        self,
        environment: str,
        split: str,
        read: Callable[[], Mapping[str, Row]],
        build: Callable[[Mapping[str, Row]], Environment],
    ) -> None:
        """Describe the tasks of an environment: `read` returns their rows, and `build` an environment of these rows."""
        self._environment, self._split, self._read, self._build = environment, split, read, build

    @cached_property
    def rows(self) -> Mapping[str, Row]:
        """Rows by task id, in order, read once for all environments of a process. Raises as `read` does."""
        return self._read()

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of the rows. Raises as `read` does."""
        return tuple(Task(id=name, environment=self._environment, split=self._split) for name in self.rows)

    def environment(self) -> Environment:
        """Return an environment that can play any of these tasks. Raises as `read` and `build` do."""
        return self._build(self.rows)


class FileTaskset(RowTaskset[Row]):
    """Tasks of a user's own file. A fact depends on its task alone: other lines of the file may change."""

    def tasks(self) -> tuple[Task, ...]:
        tasks = super().tasks()
        return tuple(task.model_copy(update={"sha256": row_sha256(self.rows[task.id])}) for task in tasks)

    def fingerprint(self) -> str:
        """Return an empty text: each task has a hash."""
        return ""


def row_sha256(row: Any) -> str:
    """Return the hash of a task: an object without its split, a record or a named tuple."""
    content = row.model_dump(mode="json") if isinstance(row, Record) else row
    if isinstance(row, dict):
        content = {name: value for name, value in row.items() if name != "split"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def row_of(rows: Mapping[str, Row], task: Task) -> Row:
    """Return the row of a task. Raises UnknownTask, and EnvironmentFailure if it is another one than the task's."""
    if task.id not in rows:
        raise UnknownTask(f"No task {task.id!r} in this split: --list prints the ids.")
    if task.sha256 and task.sha256 != row_sha256(rows[task.id]):
        raise EnvironmentFailure(f"The task {task.id!r} has changed since it was played: give it another id.")
    return rows[task.id]


EPISODE_OVER = "The episode is over."
"""Answer to an action after the end of an episode."""


def not_reset() -> EnvironmentFailure:
    """Return the error of a step without an episode."""
    return EnvironmentFailure("No task was shown yet: reset comes before the first step.")


def read_tasks(path: Path | None, split: str) -> dict[str, dict[str, Any]]:
    """Return the tasks of the split by id, in the order of the file.

    Raises:
        MissingInput: there is no file, a line of it is not a task, or the split has none.
    """
    if path is None:
        raise MissingInput("Set environment.data to the JSON lines file with the tasks.")
    if not path.is_file():
        raise MissingInput(f"There is no file {path.absolute()} with the tasks: correct environment.data.")
    rows = json_rows(path, _task, _TASK_FORM, line_bytes=_LINE_BYTES, most_bytes=_FILE_BYTES)
    tasks = rows_by_id(rows, lambda task: str(task["id"]))
    chosen = {name: task for name, task in tasks.items() if task.get("split", "train") == split}
    if not tasks:
        raise MissingInput(f"{path} holds no tasks: {_TASK_FORM}.")
    if not chosen:
        splits = sorted({repr(task.get("split", "train")) for task in tasks.values()})
        raise MissingInput(f"Split {split!r} has no tasks in {path}: name {' or '.join(splits)}.")
    return chosen


def rows_by_id(rows: Iterable[tuple[str, Row]], identity: Callable[[Row], str]) -> dict[str, Row]:
    """Return rows, given with their places, by id and in order; an equal row that comes again counts once.

    Raises MissingInput: two rows of an id differ, or an id is none that a store holds.
    """
    kept, places = dict[str, Row](), dict[str, str]()
    for place, row in rows:
        name = identity(row)
        try:
            _ID.validate_python(name)
        except ValidationError as error:
            raise MissingInput(f"{place}: id {name[:80]!r}: {error.errors()[0]['msg']}; give it another one.") from None
        if kept.setdefault(name, row) != row:
            raise MissingInput(f"{place}: {places[name]} has the id {name!r}, too: give every task an id of its own.")
        places.setdefault(name, place)
    return kept


def _task(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not an object")
    if isinstance(value["id"], int) and not isinstance(value["id"], bool):
        value["id"] = str(value["id"])
    if not isinstance(value["id"], str):
        raise ValueError("id is neither a text nor a number")
    if not isinstance(value.get("split", ""), str):
        raise ValueError("split is not a text")
    return value
