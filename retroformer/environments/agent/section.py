"""Config section of an agent that is not ours."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from retroformer.environments.section import EnvironmentSection
from retroformer.errors import ConfigError
from retroformer.experiment.sections.base import Positive, Section
from retroformer.secrets.url import SecretUrl

_GRACE_SECONDS = 5.0
"""Time allowed for stopping an attempt that ran too long, before its process is killed."""


class AgentSource(Section):
    """Where the agent is: exactly one of the three fields is set."""

    python: str | None = None
    """Function `package.module:function`, called as `function(task, advice="...")`; it may be async."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program that reads one JSON line per attempt from standard input and writes one to standard output."""
    url: SecretUrl | None = None
    """Address to which every attempt is one POST request with a JSON body."""

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
