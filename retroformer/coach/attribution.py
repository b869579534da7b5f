"""Finds out which adapter wrote a piece of advice, at endpoints that report the adapter they serve."""

import asyncio
import os

from retroformer.agents.reflector import ModelReflector
from retroformer.endpoint.own_server import provenance
from retroformer.errors import EndpointFailure, ProvenanceError
from retroformer.method.records import Memory, Reflection, Trajectory

_TIMEOUT_SECONDS = 10.0


class AttributedReflector:
    """A reflector whose reflections name the adapter that wrote them, if the endpoint reports it."""

    def __init__(self, reflector: ModelReflector) -> None:
        self._reflector = reflector
        self._reports = reflector.model.base_url.secret_url().startswith("http")
        """False once the endpoint has shown that it is not a Retroformer server."""
        self._last: str | None = None
        """Adapter that the endpoint reported last."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Write advice for the next trial. Raises EndpointFailure."""
        before = self._last or await self._served()
        written = await self._reflector.reflect(trajectory, memory, seed)
        if written.author.adapter_sha256 is not None or before is None:
            return written
        self._last = await self._served()
        if self._last != before:
            return written  # The served adapter changed meanwhile, so either may have written it.
        return written.model_copy(update={"author": written.author.model_copy(update={"adapter_sha256": before})})

    async def _served(self) -> str | None:
        """Return the hash of the served adapter; None if it is unknown, or if there is none."""
        if not self._reports:
            return None
        model = self._reflector.model
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                reported = await provenance(model.base_url.secret_url(), os.environ.get(model.endpoint.api_key_env))
        except ProvenanceError:
            self._reports = False
            return None
        except (EndpointFailure, TimeoutError):
            return None
        served = reported.models.get(model.model)
        return None if served is None else served.adapter_sha256
