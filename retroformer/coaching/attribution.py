"""Finds out which adapter wrote a piece of advice, at endpoints that report the adapter they serve."""

import json
import os
from collections.abc import Mapping
from typing import Any

from retroformer.agents.reflector import ModelReflector
from retroformer.endpoint.model import LanguageModel
from retroformer.records import Memory, Reflection, Trajectory

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
        import httpx

        try:
            async with httpx.AsyncClient(timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
                answer = await client.get(_address(self._reflector.model), headers=_headers(self._reflector.model))
        except (httpx.HTTPError, httpx.InvalidURL, ValueError):
            return None
        self._reports = answer.status_code == 200 or answer.status_code >= 500
        return _adapter_in(answer.content, self._reflector.model.model) if answer.status_code == 200 else None


def _address(model: LanguageModel) -> str:
    path, question, query = model.base_url.secret_url().partition("?")
    return f"{path.rstrip('/').removesuffix('/v1')}/provenance{question}{query}"


def _headers(model: LanguageModel) -> Mapping[str, str]:
    key = os.environ.get(model.endpoint.api_key_env)
    return {"Authorization": f"Bearer {key}"} if key else {}


def _adapter_in(content: bytes, model: str) -> str | None:
    """Read the hash from a report of provenance, which may be any bytes."""
    try:
        report: Any = json.loads(content)
        adapter = report["models"][model]["adapter_sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return adapter if isinstance(adapter, str) and len(adapter) == 64 else None
