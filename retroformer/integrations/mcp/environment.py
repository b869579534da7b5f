"""The tools of an MCP server as an environment: a call is an action, and an answer without a call ends the attempt."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from retroformer.agents.attempt_result import parse_score, text_of
from retroformer.config.imports import function_of, module_files, require_extra
from retroformer.config.sections.base import Positive
from retroformer.environments.extras import Extras
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import FileTaskset, not_reset, read_tasks, row_of
from retroformer.environments.tools import call_of
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.files.text import storable
from retroformer.integrations.mcp.connection import CLOSING_SECONDS, McpConnection, McpServer
from retroformer.method.records import Task, Tool, Transition
from retroformer.run.provenance import numbered_sha256

if TYPE_CHECKING:
    from mcp.types import CallToolResult

__all__ = ["McpEnvironment", "Section", "extras", "taskset"]

_LONGEST_RESULT = 100_000
"""Largest number of characters of a result that are shown."""
_SHORTENED = " [shortened]"


class Section(EnvironmentSection):
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
        # The start of a server, or a call, may be followed by the list of its tools; a reset may stop two servers.
        return 2 * self.timeout_seconds + 2 * CLOSING_SECONDS


class McpEnvironment:
    """Episodes with an MCP server, each with a session of its own."""

    def __init__(self, section: Section, tasks: Mapping[str, dict[str, Any]]) -> None:
        self._section, self._tasks = section, tasks
        self._score: Callable[..., Any] | None = None if section.score is None else function_of(section.score)
        self._connection: McpConnection | None = None
        self._task: dict[str, Any] = {}
        self._tools: tuple[Tool, ...] = ()
        self._steps = 0

    def reset(self, task: Task) -> Transition:
        """Start a server and show the text of the task. Raises UnknownTask, EnvironmentFailure, ConfigError."""
        row = row_of(self._tasks, task)
        self._close()
        self._task, self._steps = row, 0
        self._connection = McpConnection(self._section.source, self._section.timeout_seconds)
        return Transition(observation=text_of(self._task), tools=self._changed_tools(self._connection))

    def step(self, action: str) -> Transition:
        """Call the tool that the action names; any other text is the answer, which ends the attempt with its score.

        Raises EnvironmentFailure: the server died, hung or broke the protocol, or the score raised an error.
        """
        if self._connection is None:
            raise not_reset()
        self._steps += 1
        try:
            transition = self._step(self._connection, action)
        except EnvironmentFailure:
            self._close()
            raise
        if transition.over:
            self._close()
        return transition

    def _step(self, connection: McpConnection, action: str) -> Transition:
        call = call_of(action, self._tools)
        if call is None:
            score = self._rate(connection, action)
            return Transition(observation=f"Score: {score:g}", reward=score, terminated=True, success=score == 1)
        observation = _text_of(connection.call(call.name, call.arguments))
        truncated = self._steps >= self._section.max_steps
        return Transition(observation=observation, tools=self._changed_tools(connection), truncated=truncated)

    def _rate(self, connection: McpConnection, answer: str) -> float:
        """Return the score of an answer. Raises EnvironmentFailure."""
        name = self._section.score_tool
        try:
            if name is not None:
                return parse_score(_number(connection.call(name, {"task": self._task, "answer": answer})))
            assert self._score is not None, "set environment.score or environment.score_tool"
            return parse_score(self._score(self._task, answer))
        except EnvironmentFailure:
            raise
        except Exception as error:  # Foreign code: the function and the tool are the user's own.
            raise EnvironmentFailure(f"The attempt cannot be rated: {type(error).__name__}: {error}.") from error

    def _changed_tools(self, connection: McpConnection) -> tuple[Tool, ...] | None:
        """Return the tools for the actor if they are new; None if nothing has changed. Raises EnvironmentFailure."""
        listed = connection.changed_tools()
        if listed is not None:
            self._tools = tuple(tool for tool in listed if tool.name != self._section.score_tool)
        return None if listed is None else self._tools

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _text_of(result: "CallToolResult") -> str:
    """Return the text of a result, with a mark for every part that is not text."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not parts and result.structuredContent is not None:
        parts = [json.dumps(result.structuredContent, ensure_ascii=False)]
    text = storable("\n".join(parts))
    return text if len(text) <= _LONGEST_RESULT else text[:_LONGEST_RESULT] + _SHORTENED


def _number(result: "CallToolResult") -> Any:
    """Return the score in the result of the score tool. Raises ValueError."""
    if result.isError:
        raise ValueError(_text_of(result))
    structured = result.structuredContent or {}
    for name in ("score", "result"):
        if name in structured:
            return structured[name]
    return json.loads(_text_of(result))


def taskset(section: Section, seed: int = 0) -> FileTaskset[dict[str, Any]]:
    """Return the tasks that a section describes."""
    read = partial(read_tasks, section.data, section.split)
    return FileTaskset(section.name, section.split, read, partial(McpEnvironment, section))


def _require_server(section: Section) -> None:
    """Check what can be checked before any attempt. Raises MissingInput, ConfigError."""
    require_extra("mcp", "mcp")
    command = section.source.command
    if command is not None and shutil.which(command[0]) is None:
        raise ConfigError(f"There is no program {command[0]!r}: correct environment.server.command.")
    if section.score is None and section.score_tool is None:
        raise ConfigError("Nothing rates the attempts: set environment.score or environment.score_tool.")
    if section.score is not None:
        function_of(section.score)


def _versions(section: Section) -> dict[str, str]:
    """Return the sha256 of the files that the server's command names and of the module that rates."""
    command = section.server.command if section.server is not None else None
    files = [Path(word) for word in command or () if Path(word).is_file()]
    files += module_files(section.score) if section.score is not None else []
    return {"server": numbered_sha256(files)} if files else {}


extras = Extras(
    # The transitions list the tools.
    tools=lambda section: (),
    plays_text=False,
    require_machine=_require_server,
    tool_versions=_versions,
)
