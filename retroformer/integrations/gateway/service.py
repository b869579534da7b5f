"""Runs the gateway: opens the store, the reflector and the port, and serves until it is interrupted."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import uvloop
from aiohttp import web

from retroformer.coach.connection import Connection, Settings
from retroformer.config.parts import LoadedConfig
from retroformer.endpoint.loopback import is_loopback
from retroformer.endpoint.own_server import run_own_server
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError, ServiceError
from retroformer.integrations.gateway.drafts import Drafts
from retroformer.integrations.gateway.routes import Gateway
from retroformer.integrations.gateway.runs import Runs
from retroformer.integrations.gateway.upstream import LONGEST_LINE_BYTES, Upstream
from retroformer.method.prompts import load_pack

_PROVIDER = "https://api.openai.com/v1"
_STOP_SECONDS = 5.0
"""Time that calls in flight have to end when the gateway is interrupted."""


@dataclass(frozen=True)
class Listening:
    """Where the gateway listens, where it forwards to, and the share of the tasks without advice."""

    upstream: str | None = None
    host: str = "127.0.0.1"
    port: int = 8100
    unadvised: float = 0.1


def run(config: LoadedConfig, listening: Listening) -> None:
    """Serve until the process is interrupted; the address is printed once the gateway answers.

    Raises:
        ConfigError: the address is not loopback, or the config's environment is not `agent`.
        ServiceError: the port is taken, or the experiment's own server cannot be started.
        StoreError: the store cannot be opened.
    """
    if not is_loopback(listening.host):
        raise ConfigError(
            f"--host {listening.host}: the gateway has no authentication, so it listens on loopback only. Leave --host "
            "out; to serve other machines, put an authenticating proxy in front."
        )
    if config.experiment.environment.name != "agent":
        raise ConfigError(
            f"{config.path}: environment.name is {config.experiment.environment.name!r}, but the gateway needs an "
            "agent of your own: set environment.name to agent."
        )
    uvloop.run(_serve(config, listening))


async def _serve(config: LoadedConfig, listening: Listening) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with _gateway(config, listening) as gateway:
        runner = web.AppRunner(
            gateway.app(),
            access_log=None,
            shutdown_timeout=_STOP_SECONDS,
            # A compressed request is forwarded as it is.
            auto_decompress=False,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_LINE_BYTES,
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, listening.host, listening.port).start()
            except OSError as error:
                raise ServiceError(
                    f"The gateway cannot listen on {listening.host}:{listening.port} ({error.strerror}): choose "
                    "another --port, or 0 for a free one."
                ) from error
            host, port = runner.addresses[0][:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"The gateway is at http://{shown}:{port}/v1, and of a run at .../runs/NAME/v1", flush=True)
            await stop.wait()
        finally:
            await runner.cleanup()


@asynccontextmanager
async def _gateway(config: LoadedConfig, listening: Listening) -> AsyncIterator[Gateway]:
    experiment = config.experiment
    url = SecretUrl(listening.upstream or experiment.actor.endpoint.base_url or _PROVIDER)
    async with AsyncExitStack() as stack:
        reflector = experiment.reflector.endpoint.base_url
        if reflector is None:
            reflector = SecretUrl(
                await stack.enter_async_context(run_own_server(config.path, config.overrides, experiment))
            )
        connection = Connection(Settings.of(experiment, reflector))
        stack.push_async_callback(asyncio.to_thread, connection.close)
        drafts = Drafts(experiment.store_url, experiment.name)
        stack.callback(drafts.close)
        upstream = await stack.enter_async_context(Upstream(url))
        runs = Runs(connection, drafts, experiment.loop.trials, listening.unadvised)
        yield Gateway(upstream, runs, load_pack(experiment.actor.prompts, "agent").remember)
