"""Taskset and environment of verifiers."""

import asyncio
import importlib.metadata
import json
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from retroformer.config.user_code import module_files
from retroformer.environments.tasksets import RowTaskset, not_reset, row_of
from retroformer.errors import EnvironmentFailure
from retroformer.files.text import sha256_of
from retroformer.integrations.verifiers.loading import load, rows
from retroformer.integrations.verifiers.section import Verifiers
from retroformer.method.records import Task, Transition
from retroformer.run.provenance import numbered_sha256

if TYPE_CHECKING:
    from retroformer.integrations.verifiers.rollout import Rollout


class VerifiersTaskset(RowTaskset[dict[str, Any]]):
    """Tasks of one split of an environment of verifiers, in the order of its dataset; their ids are SPLIT/NUMBER."""

    def __init__(self, section: Verifiers) -> None:
        self._section = section
        super().__init__(
            section.name,
            section.split,
            lambda: {f"{section.split}/{number}": row for number, row in enumerate(rows(self._loaded, section))},
            lambda rows: VerifiersEnvironment(section, self._loaded, rows),
        )

    def fingerprint(self) -> str:
        """Return the sha256 of the dataset's rows. Raises MissingInput, ConfigError."""
        return sha256_of(json.loads(json.dumps(list(self.rows.values()), default=str)))

    @cached_property
    def _loaded(self) -> Any:
        return load(self._section)


class VerifiersEnvironment:
    """Episodes of any number of turns; every action is a turn of the model."""

    def __init__(self, section: Verifiers, environment: Any, tasks: Mapping[str, dict[str, Any]]) -> None:
        self._section, self._environment, self._tasks = section, environment, tasks
        self._loop = asyncio.new_event_loop()
        weakref.finalize(self, self._loop.close)
        self._rollout: Rollout | None = None
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Start a rollout and show its prompt. Raises UnknownTask, EnvironmentFailure."""
        from retroformer.integrations.verifiers.rollout import Rollout

        row = row_of(self._tasks, task)
        if self._rollout is not None:
            self._rollout.stop()
        self._steps, self._rollout = 0, Rollout(self._environment, dict(row), self._loop)
        shown = self._rollout.advance()
        if not isinstance(shown, str):
            raise EnvironmentFailure("The environment of verifiers ended the rollout before the first turn.")
        return Transition(observation=shown, tools=self._rollout.tools or None)

    def step(self, action: str) -> Transition:
        """Give one turn of the model; at the end, the rubric's reward is the return. Raises EnvironmentFailure."""
        if self._rollout is None:
            raise not_reset()
        self._steps += 1
        shown = self._rollout.answer(action)
        if not isinstance(shown, str):
            score = self._section.scaled(shown.reward)
            solved = score == 1
            return Transition(
                observation=f"{shown.text}\nThe rubric's reward is {shown.reward:.3g}.".strip(),
                reward=score,
                terminated=solved or not shown.truncated,
                truncated=shown.truncated and not solved,
                success=solved,
            )
        if self._steps >= self._section.max_steps:
            self._rollout.stop()
            return Transition(observation=shown, truncated=True)
        return Transition(observation=shown, tools=self._rollout.tools or None)


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
