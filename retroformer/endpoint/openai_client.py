"""HTTP client for the OpenAI library that limits the size of responses and records whether a request was sent.

This is a separate module because importing the library takes as long as the rest of a light command.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from openai import DefaultAsyncHttpxClient, OpenAIError

from retroformer.endpoint.compression import UnreadableBody
from retroformer.endpoint.http_client import ACCEPTED, LARGEST_ANSWER_BYTES, read_body, route


@dataclass
class RequestProgress:
    """Progress of one request."""

    may_be_charged: bool = False
    """True if sending the body has begun and no error status has come back."""


PROGRESS: ContextVar[RequestProgress] = ContextVar("progress")
"""Progress of the current request; the caller sets it, and the client below updates it."""


class UnreadableAnswer(OpenAIError):
    """Error for a response that is too large or cannot be decompressed."""


class BoundedClient(DefaultAsyncHttpxClient):
    """HTTP client that reads every response itself, so the limit also holds for errors and compressed responses."""

    def __init__(self, url: str) -> None:
        """Prepare a client for this address. Raises ConfigError."""
        super().__init__(timeout=None, **route(url))

    async def send(self, request: Any, *, stream: bool = False, **options: Any) -> Any:
        """Send a request and read its whole response. Raises UnreadableAnswer."""
        progress = PROGRESS.get(RequestProgress())

        async def note(event: str, _: object) -> None:
            if event.endswith("send_request_body.started"):
                progress.may_be_charged = True

        request.headers.update(ACCEPTED)
        request.extensions = {**request.extensions, "trace": note}
        answer = await super().send(request, stream=True, **options)
        try:
            if answer.status_code >= 400:
                progress.may_be_charged = False
            body = await read_body(answer, LARGEST_ANSWER_BYTES)
        except UnreadableBody as error:
            raise UnreadableAnswer(str(error)) from None
        finally:
            await answer.aclose()
        headers = [(name, value) for name, value in answer.headers.multi_items() if name not in _TRANSFER_HEADERS]
        return type(answer)(answer.status_code, headers=headers, content=body, request=request)


_TRANSFER_HEADERS = {"content-encoding", "content-length", "transfer-encoding"}
"""Headers about the encoding of the body, which is already decoded."""
