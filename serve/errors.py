"""The answers of an endpoint to requests that it does not fulfil.

Their JSON has the message in FastChat's place and in OpenAI's, so that clients of both find it.
"""

from typing import Any

from starlette.responses import JSONResponse

from serve.bounds import RETRY_SECONDS

TEMPORARY = frozenset({429, 503})
"""Statuses of what may be asked again later."""


class RequestError(Exception):
    """A request that is not fulfilled, and the status that says so."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field

    @property
    def answer(self) -> JSONResponse:
        """What its client is sent."""
        return error_answer(self.status, self.message, self.field)


def error_answer(status: int, message: str, field: str | None = None, code: int | None = None) -> JSONResponse:
    """An answer with `status`; `field` is the name of the parameter at fault, `code` is FastChat's."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    content: dict[str, Any] = {
        "object": "error",
        "message": message,
        "code": code or status,
        "error": {"message": message, "type": kind, "param": field, "code": code or status},
    }
    return JSONResponse(content, status_code=status, headers=headers(status))


def headers(status: int) -> dict[str, str]:
    """What an answer with this status also says."""
    return {"Retry-After": str(RETRY_SECONDS)} if status in TEMPORARY else {}
