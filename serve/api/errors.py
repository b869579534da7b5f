"""Error responses of an endpoint.

Their JSON has the message where FastChat puts it and where OpenAI puts it, so that clients of both find it.
"""

from typing import Any

from starlette.responses import JSONResponse

from .bounds import RETRY_SECONDS

TEMPORARY = frozenset({429, 503})
"""Statuses of requests that may be retried later."""


class RequestError(Exception):
    """Raised to answer a request with an error status."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.field = field

    @property
    def answer(self) -> JSONResponse:
        """Response for the client."""
        return error_answer(self.status, self.message, self.field)


def error_answer(status: int, message: str, field: str | None = None, code: int | None = None) -> JSONResponse:
    """Return an error response; `field` is the name of the parameter at fault, `code` is FastChat's."""
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    content: dict[str, Any] = {
        "object": "error",
        "message": message,
        "code": code or status,
        "error": {"message": message, "type": kind, "param": field, "code": code or status},
    }
    return JSONResponse(content, status_code=status, headers=headers(status))


def headers(status: int) -> dict[str, str]:
    """Return the additional headers of a response with this status."""
    return {"Retry-After": str(RETRY_SECONDS)} if status in TEMPORARY else {}
