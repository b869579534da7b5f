"""Clients that do not complete a request, or do not read the response, are cut off; others are not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from retroformer.endpoint.server import SEND_SECONDS, BoundedConnection
from tests.serve.clock import MovableClock, running_clock

SMALL_BUFFER = 4096
"""Buffer size of the sockets on both sides, so that the system buffers little of an unread response."""
LAST = b"the last part"


class Answers:
    """Application that sends `size` bytes, waits until it may go on, and sends `LAST`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.may_go_on = asyncio.Event()
        self.ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = {"content-length": str(self.size + len(LAST))}
        await StreamingResponse(self._parts(), headers=length)(scope, receive, send)

    async def _parts(self) -> AsyncIterator[bytes]:
        try:
            yield bytes(self.size)
            await self.may_go_on.wait()
            yield LAST
        finally:
            self.ended = True


@contextlib.asynccontextmanager
async def connected(app: Answers) -> AsyncIterator[tuple[socket.socket, BoundedConnection]]:
    """One client that has sent nothing, and the connection that the server has for it."""
    loop = running_clock()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    server = uvicorn.Server(uvicorn.Config(app, http=BoundedConnection, ws="none", lifespan="off", log_level="error"))
    serving = asyncio.create_task(server.serve([listening]))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        client.setblocking(False)
        await loop.sock_connect(client, listening.getsockname())
        await loop.wait_until(lambda: bool(server.server_state.connections))
        (connection,) = server.server_state.connections
        assert isinstance(connection, BoundedConnection)
        yield client, connection
    server.should_exit = True
    server.force_exit = True
    await serving


@contextlib.asynccontextmanager
async def served(app: Answers) -> AsyncIterator[tuple[socket.socket, BoundedConnection]]:
    """Return a connection whose client has sent a request and reads nothing."""
    async with connected(app) as (client, connection):
        await running_clock().sock_sendall(client, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await running_clock().wait_until(lambda: connection.transport.get_write_buffer_size() > 0)
        yield client, connection


def in_moved_time(test: Callable[[MovableClock], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(running_clock())

    with asyncio.Runner(loop_factory=MovableClock) as runner:
        runner.run(run())


@pytest.mark.parametrize("size", [40_000, 4_000_000], ids=["buffered whole", "more than is buffered"])
@pytest.mark.parametrize("whole", [True, False], ids=["ended", "unfinished"])
def test_a_client_that_does_not_read_loses_its_connection(size: int, whole: bool) -> None:
    async def test(loop: MovableClock) -> None:
        app = Answers(size)
        if whole:
            app.may_go_on.set()
        async with served(app) as (_, connection):
            loop.advance(SEND_SECONDS / 2)
            await asyncio.sleep(0.1)
            assert connection in connection.connections, "half of the time is left"
            loop.advance(SEND_SECONDS)
            await loop.wait_until(lambda: app.ended and not connection.connections)

    in_moved_time(test)


def test_a_client_that_reads_in_time_keeps_its_connection() -> None:
    async def test(loop: MovableClock) -> None:
        app = Answers(4_000_000)
        async with served(app) as (client, connection):
            loop.advance(SEND_SECONDS / 2)
            received = await loop.sock_recv(client, 65_536)
            head = received.index(b"\r\n\r\n") + 4
            while len(received) < head + app.size:
                received += await loop.sock_recv(client, 65_536)
            await loop.wait_until(lambda: connection.transport.get_write_buffer_size() == 0)
            loop.advance(2 * SEND_SECONDS)
            await asyncio.sleep(0.1)
            app.may_go_on.set()
            assert await loop.sock_recv(client, 1000) == LAST

    in_moved_time(test)
