"""Address of an MCP server, and a session with it, used from synchronous code; it runs in an event loop of its own."""

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO, TypeVar, cast

from pydantic import Field, model_validator

from retroformer.coach.background import Background
from retroformer.config.sections.base import Section
from retroformer.endpoint.secrets.url import HttpUrl
from retroformer.errors import EnvironmentFailure
from retroformer.files.program_guard import ErrorOutput, guard_command
from retroformer.method.records import Tool

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.types import CallToolResult

CLOSING_SECONDS = 10.0
"""Time allowed for stopping a server before the next one starts."""
Result = TypeVar("Result")
_LONGEST_EXCERPT = 300
"""Number of characters of a server's own words that a cause shows."""


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


class McpConnection:
    """Open session with a fresh server process, or a fresh session with a running server."""

    def __init__(self, server: McpServer, timeout_seconds: float) -> None:
        """Open it. Raises EnvironmentFailure."""
        self._server, self._timeout = server, timeout_seconds
        self._errors = ErrorOutput()
        self._changed = True
        self._task: asyncio.Task[None] | None = None
        self._opened: Future[ClientSession] = Future()
        self._loop = Background()
        self._session_end = self._loop.start(self._hold_open())
        try:
            self._session = self._result(self._opened, "did not start")
        except BaseException:
            self.close()
            raise

    def changed_tools(self) -> tuple[Tool, ...] | None:
        """Return the tools of the server at the first call and after a change; else None. Raises EnvironmentFailure."""
        if not self._changed:
            return None
        self._changed = False
        return self._do(self._list_tools(), "did not list its tools")

    def call(self, name: str, arguments: dict[str, Any]) -> "CallToolResult":
        """Call a tool. Raises EnvironmentFailure if the server died, hung or broke the protocol."""
        return self._do(self._call(name, arguments), f"did not answer the call of {name}")

    def close(self) -> None:
        """Close the session and stop the server."""
        _, unfinished = wait([self._loop.start(self._ask_to_stop()), self._session_end], CLOSING_SECONDS)
        if not unfinished:
            self._loop.close()
        self._errors.close()

    async def _hold_open(self) -> None:
        """Hold the session open; what opens a session must close it, in one task."""
        from mcp.client.session import ClientSession

        self._task = asyncio.current_task()
        async with (
            self._transport() as (read, write),
            ClientSession(read, write, message_handler=self._note_change) as session,
        ):
            await session.initialize()
            self._opened.set_result(session)
            await asyncio.get_running_loop().create_future()

    async def _ask_to_stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[tuple[Any, Any]]:
        if self._server.command is not None:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program, *words = guard_command(self._server.command)
            started = StdioServerParameters(command=program, args=words, env=dict(os.environ))
            async with stdio_client(started, errlog=cast(TextIO, self._errors)) as streams:
                yield streams
            return
        from mcp.client.streamable_http import streamable_http_client

        from retroformer.endpoint.http_client import http_client, read_key

        assert self._server.url is not None
        address, headers = self._server.url.split_user()
        if self._server.api_key_env is not None and (key := read_key(self._server.api_key_env)):
            headers["Authorization"] = f"Bearer {key}"
        async with (
            http_client(address, headers, timeout=self._timeout) as client,
            streamable_http_client(address, http_client=client) as (read, write, _),
        ):
            yield read, write

    async def _note_change(self, message: Any) -> None:
        from mcp.types import ServerNotification, ToolListChangedNotification

        if isinstance(message, ServerNotification) and isinstance(message.root, ToolListChangedNotification):
            self._changed = True

    async def _list_tools(self) -> tuple[Tool, ...]:
        from mcp.types import PaginatedRequestParams

        tools, cursor = list[Tool](), None
        while True:
            listed = await self._session.list_tools(params=PaginatedRequestParams(cursor=cursor))
            tools += [
                Tool(name=tool.name, description=tool.description or "", parameters=tool.inputSchema)
                for tool in listed.tools
            ]
            cursor = listed.nextCursor
            if not cursor:
                return tuple(tools)

    async def _call(self, name: str, arguments: dict[str, Any]) -> "CallToolResult":
        """Call a tool; a call that the server refuses is a result, which the agent reads."""
        from mcp.shared.exceptions import McpError
        from mcp.types import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, CallToolResult, TextContent

        try:
            return await self._session.call_tool(name, arguments)
        except McpError as error:
            if error.error.code not in (INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND):
                raise
            return CallToolResult(content=[TextContent(type="text", text=str(error))], isError=True)

    def _do(self, work: Coroutine[Any, Any, Result], what: str) -> Result:
        return self._result(self._loop.start(work), what)

    def _result(self, work: "Future[Result]", what: str) -> Result:
        """Return the result of work with the server. Raises EnvironmentFailure if there is none, or none in time."""
        awaited: list[Future[Any]] = [work, self._session_end]
        self._errors.trim()
        wait(awaited, self._timeout, FIRST_COMPLETED)
        cause = f" within {self._timeout:g} s"
        if work.done() or self._session_end.done():
            try:
                return (work if work.done() else self._session_end).result()  # type: ignore[return-value]
            except (Exception, CancelledError) as error:
                cause = f": {_innermost(error)}"
        work.cancel()
        last = " ".join(self._errors.last_line().split())[:_LONGEST_EXCERPT]
        said = f" ({last})" if last else ""
        raise EnvironmentFailure(f"The MCP server {what}{cause}{said}.")


def _innermost(error: BaseException) -> str:
    """Return type and message of an error, or of the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".strip(": ").removesuffix(".")[:_LONGEST_EXCERPT]
