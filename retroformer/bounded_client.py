"""The HTTP client below the OpenAI library: reads no answer beyond a bound, and knows whether a request has left.

A module of its own, since importing the library takes as long as the rest of a light command.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from openai import DefaultAsyncHttpxClient, OpenAIError

LARGEST_ANSWER_BYTES = 16_000_000
"""Unpacked. The longest completions, with log-probabilities of every token, are a tenth of this."""


@dataclass
class Sending:
    """How far one request has come."""

    may_be_charged: bool = False
    """The whole request was sent, and no error status has come back."""


SENDING: ContextVar[Sending] = ContextVar("sending")
"""Set by whoever makes a request, and filled in below while it is under way."""


class AnswerTooLong(OpenAIError):
    """The answer was not read to its end."""

    def __init__(self) -> None:
        super().__init__(f"answered with more than {LARGEST_ANSWER_BYTES:,} bytes")


class BoundedClient(DefaultAsyncHttpxClient):
    """Reads every answer itself, so the bound holds for errors and for packed answers, too."""

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Raises AnswerTooLong."""
        sending = SENDING.get(Sending())

        async def note(event: str, _: object) -> None:
            if event.endswith("send_request_body.complete"):
                sending.may_be_charged = True

        request.extensions = {**request.extensions, "trace": note}
        answer = await super().send(request, stream=True, **options)
        try:
            if answer.status_code >= 400:
                sending.may_be_charged = False
            body = bytearray()
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > LARGEST_ANSWER_BYTES:
                    raise AnswerTooLong
        finally:
            await answer.aclose()
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _OF_THE_TRANSFER]
        return type(answer)(answer.status_code, headers=headers, content=bytes(body), request=request)


_OF_THE_TRANSFER = {"content-encoding", "content-length", "transfer-encoding"}
"""Headers that say how the body travelled; it has been unpacked."""
