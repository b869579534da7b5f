"""What environments share: a package that must be there, tasks by their ids, and refusals."""

import importlib.util
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Generic, TypeVar

from retroformer.errors import EnvironmentFailure, MissingInput, UnknownTask
from retroformer.method.protocols import Environment
from retroformer.method.records import Task

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


def row_of(rows: Mapping[str, Row], task: Task) -> Row:
    """Return the row of a task. Raises UnknownTask."""
    if task.id not in rows:
        raise UnknownTask(f"No task {task.id!r} in this split: --list prints the ids.")
    return rows[task.id]


def not_reset() -> EnvironmentFailure:
    """Return the error of a step without an episode."""
    return EnvironmentFailure("No task was shown yet: reset comes before the first step.")


def require_package(module: str, extra: str) -> None:
    """Raise MissingInput if the module of an extra is not installed."""
    if importlib.util.find_spec(module) is None:
        raise MissingInput(f"{module} is not installed: run `pip install 'retroformer[{extra}]'`.")
