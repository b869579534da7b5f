"""Config section of an environment whose actions are the tools of an MCP server."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from retroformer.config.sections.base import Positive, Section
from retroformer.endpoint.secrets.url import HttpUrl
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import ConfigError

CLOSING_SECONDS = 10.0
"""Time allowed for stopping a server before the next one starts."""


class McpServer(Section):
    """Where the server is; exactly one of the two addresses."""

    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Program that speaks MCP on standard input and output; every attempt has a process of its own."""
    url: HttpUrl | None = None
    """Streamable HTTP address of a running server; every attempt has a session of its own."""
    api_key_env: str | None = None
    """Environment variable with a key that is sent to `url` as a bearer token."""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.command is None) is (self.url is None):
            raise ValueError("name exactly one of command and url")
        return self


class McpSection(EnvironmentSection):
    success: ClassVar[str] = "the score is 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("mcp",)
    default_actor: ClassVar[str] = "tools"
    plays_alone: ClassVar[bool] = True
    name: Literal["mcp"] = "mcp"
    data: Path | None = None
    """JSON lines file with the tasks, one object a line: an `id`, an `input`, perhaps a `split`, and whatever the score
    needs."""
    split: str = "train"
    """Tasks to use: those with this `split`; a task without one belongs to train."""
    server: McpServer | None = None
    """The server; training on stored facts needs none."""
    score: str | None = None
    """Function `package.module:function` that rates `(task, answer)` from 0 to 1."""
    score_tool: str | None = None
    """Tool of the server that rates an attempt in place of `score`, called with `task` and `answer`. Actors do not see
    it."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """Time limit in seconds of starting the server and of each call; after that the attempt is invalid."""
    max_steps: Positive = 20
    """Calls after which an attempt is truncated, without a score."""

    @model_validator(mode="after")
    def _has_at_most_one_score(self) -> Self:
        if self.score is not None and self.score_tool is not None:
            raise ValueError("name one of score and score_tool")
        return self

    @property
    def source(self) -> McpServer:
        """The server. Raises ConfigError if the config names none."""
        if self.server is None:
            raise ConfigError("There is no MCP server to play with: name one in environment.server.")
        return self.server

    @property
    def longest_step_seconds(self) -> float:
        # An answer may be followed by a call of the score tool; a reset stops one server and starts another.
        return 2 * self.timeout_seconds + 2 * CLOSING_SECONDS
