"""Advice as tools of an MCP server: an agent asks for advice after a failure, and reports later what came of it."""

import sys
from functools import partial
from typing import TYPE_CHECKING

from retroformer.coach.reflector import Reflector
from retroformer.config.experiment import Experiment
from retroformer.config.imports import require_extra
from retroformer.endpoint.request_guard import address_of
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import ConfigError

if TYPE_CHECKING:
    from mcp.server.fastmcp import FastMCP

    from retroformer.endpoint.server import Guard

_INSTRUCTIONS = (
    "After a failed attempt at a task, call `advise` with the task and what you did, and try again with the advice. "
    "Then call `outcome` with the `run` that `advise` returned and the score of the new attempt."
)


def serve_advice(experiment: Experiment, port: int | None) -> None:
    """Serve until the client leaves, on standard input and output, or until it is stopped, on this loopback port.

    Raises:
        MissingInput: the package mcp is not installed.
        ConfigError: the config is not about an agent of the user's own, or does not say where its reflector is.
        ServiceError: the port is taken.
    """
    require_extra("mcp", "mcp")
    with reflector_of(experiment) as reflector:
        server = adviser(reflector)
        if port is None:
            server.run()
        else:
            _serve_http(server, port)


def reflector_of(experiment: Experiment) -> Reflector:
    """Return the reflector of a config, which stores in the store of its run. Raises ConfigError, StoreError."""
    if experiment.environment.name != "agent":
        raise ConfigError("Advice over MCP is for an agent of your own: set environment.name=agent in the config.")
    base_url, serve = experiment.reflector.endpoint.base_url, experiment.serve
    if base_url is None and serve.port == 0:
        raise ConfigError(
            "The config does not say where the reflector is: set reflector.endpoint.base_url or serve.port."
        )
    return Reflector.of(experiment, base_url or SecretUrl(f"{address_of(serve.host, serve.port)}/v1"))


def adviser(reflector: Reflector) -> "FastMCP":
    """Return a server with the tools `advise` and `outcome`."""
    from anyio import to_thread
    from mcp.server.fastmcp import FastMCP
    from mcp.server.transport_security import TransportSecuritySettings

    # The guard below checks hosts and origins.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server = FastMCP(
        "retroformer",
        instructions=_INSTRUCTIONS,
        log_level="WARNING",
        transport_security=unchecked,
        stateless_http=True,  # Sessions would stay in memory for ever.
    )

    @server.tool()
    async def advise(task: str, attempt: str, score: float = 0.0) -> dict[str, str]:
        """Get advice for the next attempt at a task that you have failed.

        Args:
            task: the task, in the words you were given.
            attempt: what you did and what you saw, step by step.
            score: score of this attempt, from 0 and below 1.
        """
        advice = await to_thread.run_sync(partial(reflector.advise, task, attempt, score))
        return {"advice": advice.text, "run": advice.run}

    @server.tool()
    async def outcome(run: str, score: float, attempt: str = "") -> str:
        """Report what came of an attempt that followed advice, so that the advice is rated.

        Args:
            run: the `run` that `advise` returned.
            score: score of the attempt, from 0 to 1.
            attempt: what you did and what you saw.
        """
        await to_thread.run_sync(partial(reflector.outcome, run, score, attempt))
        return "Stored."

    return server


def _serve_http(server: "FastMCP", port: int) -> None:
    from retroformer.endpoint.request_guard import listen
    from retroformer.endpoint.server import server_of

    with listen(port) as listening:
        sys.stdout.write(f"Advice is offered at http://127.0.0.1:{listening.getsockname()[1]}/mcp\n")
        sys.stdout.flush()
        server_of(application(server)).run(sockets=[listening])


def application(server: "FastMCP") -> "Guard":
    """Return the ASGI application of a server with the tools."""
    from starlette.responses import PlainTextResponse

    from retroformer.endpoint.server import Guard

    return Guard(
        server.streamable_http_app(),
        lambda refusal, _: PlainTextResponse(refusal.message, refusal.status, refusal.headers),
    )
