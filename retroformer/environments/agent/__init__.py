"""A user's own agent (function, program or service) with tasks from a JSON lines file."""

import shutil
from functools import cached_property
from pathlib import Path
from typing import Any

from retroformer.environments.agent.callers import caller
from retroformer.environments.agent.environment import AdviceCarrier, AgentEnvironment
from retroformer.environments.agent.section import AgentSection, AgentSource
from retroformer.environments.extras import ActorKind, ActorParts, Extras
from retroformer.errors import ConfigError
from retroformer.protocols import Actor
from retroformer.provenance import numbered_sha256
from retroformer.records import Task
from retroformer.task_file import read_tasks
from retroformer.user_code import function_of, module_files

__all__ = ["AgentTaskset", "Section", "extras", "taskset"]

Section = AgentSection


class AgentTaskset:
    """Tasks of an agent."""

    def __init__(self, section: AgentSection) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks of the split, in the order of the file. Raises MissingInput."""
        split = self._section.split
        return tuple(Task(id=name, environment="agent", split=split) for name in self._rows)

    def environment(self) -> AgentEnvironment:
        """Return an environment that can play any of these tasks. Raises MissingInput, ConfigError."""
        score = None if self._section.score is None else function_of(self._section.score)
        return AgentEnvironment(self._rows, caller(self._section), score)

    @cached_property
    def _rows(self) -> dict[str, dict[str, Any]]:
        """Tasks by id, read once for all environments of a process. Raises MissingInput."""
        return read_tasks(self._section.data, self._section.split)


def taskset(section: AgentSection, seed: int = 0) -> AgentTaskset:
    """Return the tasks that a section describes."""
    return AgentTaskset(section)


def _advice_carrier(parts: ActorParts) -> Actor:
    return AdviceCarrier()


def _require_agent(section: AgentSection) -> None:
    """Check that the agent exists before any attempt. Raises ConfigError."""
    source = section.source
    if source.command is not None and shutil.which(source.command[0]) is None:
        raise ConfigError(f"There is no program {source.command[0]!r}: correct environment.agent.command.")
    if source.python is not None:
        function_of(source.python)
    if section.score is not None:
        function_of(section.score)


def _versions(section: AgentSection) -> dict[str, str]:
    """Return the version of agent and score function: a sha256 of their files."""
    source = section.agent or AgentSource.model_construct()
    files = [Path(word) for word in source.command or () if Path(word).is_file()]
    for address in (source.python, section.score):
        files += module_files(address) if address is not None else []
    return {"agent": numbered_sha256(files)} if files else {}


extras = Extras(
    actors={"agent": ActorKind(_advice_carrier, asks_model=False, reads_pack=False, reads_last_attempt=False)},
    plays_text=False,
    require_machine=_require_agent,
    tool_versions=_versions,
)
