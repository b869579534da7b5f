"""Taskset and environment of verifiers."""

import asyncio
import importlib.metadata
import re
import weakref
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.integrations.verifiers.loading import load, rows, rows_sha256
from retroformer.integrations.verifiers.section import Verifiers
from retroformer.provenance import numbered_sha256
from retroformer.records import Task, Transition
from retroformer.user_code import module_files

if TYPE_CHECKING:
    from retroformer.integrations.verifiers.rollout import Ended, Rollout

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


class VerifiersTaskset:
    """Tasks of one split of an environment of verifiers; their ids are SPLIT/NUMBER."""

    def __init__(self, section: Verifiers) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in the order of the dataset. Raises MissingInput, ConfigError."""
        split = self._section.split
        return tuple(Task(id=f"{split}/{number}", environment="verifiers", split=split) for number in self._numbers)

    def fingerprint(self) -> str:
        """Return the sha256 of the dataset's rows. Raises MissingInput, ConfigError."""
        return rows_sha256(self._rows)

    def environment(self) -> "VerifiersEnvironment":
        """Return an environment that can play any of these tasks. Raises MissingInput, ConfigError."""
        return VerifiersEnvironment(self._section, self._environment, self._rows)

    @property
    def _numbers(self) -> range:
        return range(len(self._rows))

    @cached_property
    def _environment(self) -> Any:
        return load(self._section)

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return rows(self._environment, self._section)


class VerifiersEnvironment:
    """Episodes of any number of turns; every action is a turn of the model."""

    def __init__(self, section: Verifiers, environment: Any, tasks: list[dict[str, Any]]) -> None:
        self._section, self._environment, self._tasks = section, environment, tasks
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._rollout: Rollout | None = None
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Start a rollout and show its prompt. Raises UnknownTask, EnvironmentFailure."""
        from retroformer.integrations.verifiers.rollout import Rollout

        split, _, number = task.id.partition("/")
        if split != self._section.split or not _NUMBER.fullmatch(number) or int(number) >= len(self._tasks):
            raise UnknownTask(f"No task {task.id!r} in this split: --list prints the ids.")
        if self._rollout is not None:
            self._rollout.stop()
        self._steps, self._rollout = 0, Rollout(self._environment, dict(self._tasks[int(number)]), self._loop)
        shown = self._rollout.advance()
        if not isinstance(shown, str):
            raise EnvironmentFailure("The environment of verifiers ended the rollout before the first turn.")
        return Transition(observation=shown, tools=self._rollout.tools or None)

    def step(self, action: str) -> Transition:
        """Give one turn of the model; at the end, the rubric's reward is the return. Raises EnvironmentFailure."""
        if self._rollout is None:
            raise EnvironmentFailure("No task was shown yet: reset comes before the first step.")
        self._steps += 1
        shown = self._rollout.answer(action)
        if not isinstance(shown, str):
            return self._end(shown)
        if self._steps >= self._section.max_steps:
            self._rollout.stop()
            return Transition(observation=shown, truncated=True)
        return Transition(observation=shown, tools=self._rollout.tools or None)

    def _end(self, ended: "Ended") -> Transition:
        score = self._section.scaled(ended.reward)
        solved = score == 1
        verdict = f"The rubric's reward is {ended.reward:.3g}."
        return Transition(
            observation=f"{ended.text}\n{verdict}".strip(),
            reward=score,
            terminated=solved or not ended.truncated,
            truncated=ended.truncated and not solved,
            success=solved,
        )


def taskset(section: Verifiers, seed: int = 0) -> VerifiersTaskset:
    """Return the tasks that a section describes; the seed of the experiment does not change them."""
    return VerifiersTaskset(section)


def require_environment(section: Verifiers) -> None:
    """Check that the environment can be loaded and has tasks. Raises MissingInput, ConfigError."""
    rows(load(section), section)


def environment_versions(section: Verifiers) -> dict[str, str]:
    """Return the version of the environment's package, or the sha256 of its files if no package has its name."""
    name = section.environment.split("/")[-1]
    try:
        return {name: importlib.metadata.version(name)}
    except importlib.metadata.PackageNotFoundError:
        return {name: numbered_sha256(module_files(name.replace("-", "_")))}
