"""A user's own agent (function, program or service) with tasks from a JSON lines file."""

import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from retroformer.agents.attempt_result import Score, read_result, text_of
from retroformer.config.imports import function_of, module_files
from retroformer.config.sections.base import Positive
from retroformer.config.sections.base import Section as ConfigSection
from retroformer.endpoint.secrets.url import HttpUrl
from retroformer.environments.agent.callers import Caller, Function, HttpAgent, Program, failure_of
from retroformer.environments.extras import ActorKind, Extras
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import FileTaskset, not_reset, read_tasks, row_of
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import Task, Transition
from retroformer.run.provenance import numbered_sha256

_GRACE_SECONDS = 5.0
"""Time allowed for stopping an attempt that ran too long, before its process is killed."""


class AgentSource(ConfigSection):
    """Where the agent is: exactly one of the three fields is set."""

    python: str | None = None
    """Function `package.module:function`, called as `function(task, advice="...")`; it may be async."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program that reads one JSON line per attempt from standard input and writes one to standard output."""
    url: HttpUrl | None = None
    """Address to which every attempt is one POST request with a JSON body."""

    @field_validator("command", mode="before")
    @classmethod
    def _require_list(cls, command: Any) -> Any:
        if isinstance(command, str):
            raise ValueError(f"write it as a list: [{', '.join(command.split())}]")
        return command

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if sum(value is not None for value in (self.python, self.command, self.url)) != 1:
            raise ValueError("name exactly one of python, command and url")
        return self


class AgentSection(EnvironmentSection):
    success: ClassVar[str] = "the agent's score is 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    default_actor: ClassVar[str] = "agent"
    plays_alone: ClassVar[bool] = True
    name: Literal["agent"] = "agent"
    data: Path | None = None
    """JSON lines file with the tasks, one object a line: an `id`, perhaps a `split`, and whatever the agent needs."""
    split: str = "train"
    """Tasks to use: those with this `split`; a task without one belongs to train."""
    agent: AgentSource | None = None
    """The agent; training on facts of an agent that runs elsewhere needs none."""
    score: str | None = None
    """Function `package.module:function` that rates `(task, answer)` from 0 to 1, if the agent itself gives no
    score."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Time limit of one attempt in seconds; after that it is invalid."""
    max_steps: Positive = 1
    """An agent plays a whole attempt in one action."""

    @property
    def source(self) -> AgentSource:
        """The agent. Raises ConfigError if the config names none."""
        if self.agent is None:
            raise ConfigError("There is no agent to play: name one in environment.agent.")
        return self.agent

    @property
    def longest_step_seconds(self) -> float:
        return self.timeout_seconds + _GRACE_SECONDS


class AgentEnvironment:
    def __init__(self, tasks: Mapping[str, dict[str, Any]], agent: Caller, score: Score | None) -> None:
        self._tasks, self._agent, self._score = tasks, agent, score
        self._task: dict[str, Any] | None = None

    def reset(self, task: Task) -> Transition:
        """Show the text of the task. Raises UnknownTask, EnvironmentFailure."""
        self._task = row_of(self._tasks, task)
        return Transition(observation=text_of(self._task))

    def step(self, action: str) -> Transition:
        """Let the agent attempt the task with this advice; empty for none. Raises EnvironmentFailure."""
        if self._task is None:
            raise not_reset()
        returned = self._agent(self._task, action)
        try:
            result = read_result(returned, self._task, self._score)
        except ValueError as error:
            raise EnvironmentFailure(f"The agent's attempt cannot be read: {error}.") from error
        except (Exception, SystemExit) as error:  # The function that rates is the user's own.
            raise failure_of("The score", error) from error
        return Transition(
            observation=result.output,
            reward=result.score,
            terminated=True,
            success=result.score == 1,
            steps=result.steps,
            messages=result.messages,
            usage=result.usage,
        )


class AdviceActor:
    """Actor whose only action is the advice in its memory."""

    async def act(self, scene: Scene) -> Move:
        return Move(action="\n".join(scene.memory.reflections))


__all__ = ["Section", "extras", "taskset"]

Section = AgentSection


def taskset(section: AgentSection, seed: int = 0) -> FileTaskset[dict[str, Any]]:
    def build(tasks: Mapping[str, dict[str, Any]]) -> AgentEnvironment:
        score = None if section.score is None else function_of(section.score)
        return AgentEnvironment(tasks, _caller(section), score)

    return FileTaskset(section.name, section.split, partial(read_tasks, section.data, section.split), build)


def _caller(section: AgentSection) -> Caller:
    """Return the agent of a section. Raises ConfigError."""
    source = section.source
    if source.command is not None:
        return Program(source.command, section.timeout_seconds)
    if source.url is not None:
        return HttpAgent(source.url.secret_url(), section.timeout_seconds)
    return Function(function_of(source.python or ""), section.timeout_seconds)


def _require_agent(section: AgentSection) -> None:
    """Check that the agent exists before any attempt. Raises ConfigError."""
    source = section.source
    if source.command is not None and shutil.which(source.command[0]) is None:
        raise ConfigError(f"There is no executable program {source.command[0]!r}: correct environment.agent.command.")
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
    actors={
        "agent": ActorKind(
            lambda parts: AdviceActor(),
            asks_model=False,
            plays_whole_attempts=True,
            reads_pack=False,
            reads_last_attempt=False,
        )
    },
    plays_text=False,
    require_machine=_require_agent,
    tool_versions=_versions,
)
