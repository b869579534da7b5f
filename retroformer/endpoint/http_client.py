"""HTTP client for the OpenAI library that limits the size of responses and records whether a request was sent.

This is a separate module because importing the library takes as long as the rest of a light command.
"""

import ssl
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx
from openai import DefaultAsyncHttpxClient, OpenAIError

LARGEST_ANSWER_BYTES = 16_000_000
"""Largest response, decompressed: ten times the longest completion with log-probabilities of every token."""


@dataclass
class RequestProgress:
    """Progress of one request."""

    may_be_charged: bool = False
    """True if sending the body has begun and no error status has come back."""


PROGRESS: ContextVar[RequestProgress] = ContextVar("progress")
"""Progress of the current request; the caller sets it, and the client below updates it."""


class AnswerTooLong(OpenAIError):
    """Error for a response that exceeds LARGEST_ANSWER_BYTES."""

    def __init__(self) -> None:
        super().__init__(f"answered with more than {LARGEST_ANSWER_BYTES:,} bytes")


class BoundedClient(DefaultAsyncHttpxClient):
    """HTTP client that reads every response itself, so the limit also holds for errors and compressed responses."""

    def __init__(self, **options: Any) -> None:
        super().__init__(verify=_trusted_authorities(), **options)

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request and read its whole response. Raises AnswerTooLong."""
        progress = PROGRESS.get(RequestProgress())

        async def note(event: str, _: object) -> None:
            if event.endswith("send_request_body.started"):
                progress.may_be_charged = True

        request.extensions = {**request.extensions, "trace": note}
        answer = await super().send(request, stream=True, **options)
        try:
            if answer.status_code >= 400:
                progress.may_be_charged = False
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > LARGEST_ANSWER_BYTES:
                    raise AnswerTooLong
        finally:
            await answer.aclose()
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _TRANSFER_HEADERS]
        return type(answer)(answer.status_code, headers=headers, content=bytes(body), request=request)


@cache
def _trusted_authorities() -> ssl.SSLContext:
    """Return the certificates that httpx trusts, cached for all clients: reading them takes 0.05 seconds."""
    return httpx.create_ssl_context()


_TRANSFER_HEADERS = {"content-encoding", "content-length", "transfer-encoding"}
"""Headers about the encoding of the body, which is already decoded."""
