"""Runs the gateway: opens the store, the reflector and the port, and serves until it is interrupted."""

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from functools import partial
from typing import cast

import uvloop
from aiohttp import web
from aiohttp.http import HttpProcessingError

from retroformer.coach.connection import Connection
from retroformer.config.file import Config
from retroformer.endpoint.own_server import run_own_server
from retroformer.endpoint.request_guard import CONNECTIONS, HEAD_SECONDS, UNAVAILABLE, listen
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError
from retroformer.integrations.gateway.drafts import Drafts
from retroformer.integrations.gateway.routes import BUSY, Gateway
from retroformer.integrations.gateway.runs import Runs
from retroformer.integrations.gateway.upstream import LONGEST_LINE_BYTES, Upstream
from retroformer.method.prompts import load_pack

_PROVIDER = "https://api.openai.com/v1"
_STOP_SECONDS = 5.0
"""Time that calls in flight have to end when the gateway is interrupted."""


def run(config: Config, upstream: SecretUrl | None, port: int, unadvised: float) -> None:
    """Serve until the process is interrupted; the address is printed once the gateway answers.

    Raises:
        ConfigError: the config's environment is not `agent`.
        ServiceError: the port is taken, or the experiment's own server cannot be started.
        StoreError: the store cannot be opened.
    """
    if config.experiment.environment.name != "agent":
        raise ConfigError(
            f"{config.path}: environment.name is {config.experiment.environment.name!r}, but the gateway needs an "
            "agent of your own: set environment.name to agent."
        )
    uvloop.run(_serve(config, upstream, port, unadvised))


async def _serve(config: Config, upstream: SecretUrl | None, port: int, unadvised: float) -> None:
    experiment, stop = config.experiment, asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        writer = experiment.reflector.endpoint
        if writer.base_url is None:
            url = await stack.enter_async_context(run_own_server(config.path, config.overrides, experiment))
            writer = writer.model_copy(update={"base_url": SecretUrl(url)})
        connection = Connection(experiment, writer)
        stack.push_async_callback(asyncio.to_thread, connection.close)
        drafts = Drafts(experiment.store_url, experiment.name)
        stack.callback(drafts.close)
        provider = Upstream(upstream or experiment.actor.endpoint.base_url or SecretUrl(_PROVIDER))
        stack.push_async_callback(provider.close)
        runs = Runs(connection, drafts, experiment.loop.trials, unadvised)
        heading = load_pack(experiment.actor.prompts, "agent").remember
        runner = runner_of(Gateway(provider, runs, heading))
        stack.push_async_callback(runner.cleanup)
        await runner.setup()
        listening = listen(port)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(partial(_next_connection, runner), sock=listening, backlog=CONNECTIONS)
        stack.callback(server.close)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        print(f"The gateway is at {address}/v1, and of a run at .../runs/NAME/v1", flush=True)
        await stop.wait()


def runner_of(gateway: Gateway) -> web.AppRunner:
    """Return what serves a gateway."""
    return web.AppRunner(
        gateway.app(),
        access_log=None,
        # The provider stops when the agent leaves.
        handler_cancellation=True,
        shutdown_timeout=_STOP_SECONDS,
        # For a request that has not begun, too.
        keepalive_timeout=HEAD_SECONDS,
        logger=_quiet_logger(),
        # A compressed request is forwarded as it is.
        auto_decompress=False,
        max_line_size=LONGEST_LINE_BYTES,
        max_field_size=LONGEST_LINE_BYTES,
    )


def _next_connection(runner: web.AppRunner) -> asyncio.BaseProtocol:
    """Return what serves the next connection. With too many, the oldest one without a request in progress is closed."""
    assert runner.server is not None
    surplus = len(runner.server.connections) + 1 - CONNECTIONS
    if surplus > 0:
        idle = [connection for connection in runner.server.connections if connection not in runner.app[BUSY]]
        if not idle:
            return _Overload()
        for connection in idle[:surplus]:
            connection.force_close()
    return runner.server()


class _Overload(asyncio.Protocol):
    """Tells a client that the gateway has too many connections."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = cast(asyncio.WriteTransport, transport)  # That of uvloop derives from no class of asyncio.
        refused.write(UNAVAILABLE)
        refused.close()


def _quiet_logger() -> logging.Logger:
    """Return a logger for the server that leaves out requests that are not HTTP: a record would quote their headers."""
    logger = logging.getLogger("aiohttp.server")
    logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))
    return logger
