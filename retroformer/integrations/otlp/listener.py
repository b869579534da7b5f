"""Receives OTLP over HTTP: every request is on disk before it is acknowledged with 200.

Every request becomes a file of the inbox, named after its content, so that a request that is sent again is kept once.
"""

import gzip
import hashlib
import io
import json
import socket
import zlib
from collections.abc import Callable, Sized
from pathlib import Path

import uvicorn
from google.rpc.status_pb2 import Status
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from retroformer.errors import MissingInput, ServiceError
from retroformer.files.bounded import parse_json, size
from retroformer.files.durable import replace_file
from retroformer.integrations.otlp.attempts import facts_of
from retroformer.integrations.otlp.conversation import is_model_call, model_call
from retroformer.integrations.otlp.files import MESSAGE_BYTES
from retroformer.integrations.otlp.wire import spans_of_json, spans_of_protobuf

PATH = "/v1/traces"
_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_INVALID, _UNAVAILABLE = 3, 14
"""Codes of google.rpc.Status, which the protocol demands as the body of an error."""
_PAUSE_SECONDS = 5
"""Pause after which an exporter tries again when the inbox cannot be written."""


class _Refusal(Exception):
    def __init__(self, status: int, message: str, code: int = _INVALID) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def serve(inbox: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve until the process is interrupted, on the loopback interface only, and announce the address of the route.

    Raises:
        ServiceError: the port is taken.
    """
    try:
        listening = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise ServiceError(
            f"The listener cannot use port {port} ({error.strerror}): name another one, as in `--port 4319`."
        ) from None
    inbox.mkdir(parents=True, exist_ok=True)
    announce(f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}")
    uvicorn.Server(uvicorn.Config(app(inbox), log_level="warning", access_log=False)).run(sockets=[listening])


def app(inbox: Path) -> Starlette:
    """Return the ASGI application that writes to this inbox."""

    async def receive(request: Request) -> Response:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        try:
            if kind not in (_JSON, _PROTOBUF):
                raise _Refusal(415, f"The content type is {kind[:80]!r}: send {_PROTOBUF} or {_JSON}.")
            content = await _body(request)
            await run_in_threadpool(_keep, inbox, content, kind)
        except _Refusal as refusal:
            return _error(kind, refusal)
        except ClientDisconnect:
            return Response(status_code=400)
        return Response(b"{}" if kind == _JSON else b"", media_type=kind)

    return Starlette(routes=[Route(PATH, receive, methods=["POST"])])


async def _body(request: Request) -> bytes:
    """Return the decompressed body. Raises _Refusal if it is too large or damaged."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity", ""):
        raise _Refusal(415, f"The content encoding is {encoding[:80]!r}: send gzip or none.")
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        _check_size(content)
    if encoding != "gzip":
        return bytes(content)
    try:
        with gzip.open(io.BytesIO(content)) as unpacked:
            plain = unpacked.read(MESSAGE_BYTES + 1)
    except EOFError:
        raise _Refusal(400, "The body is cut short: send it again.") from None
    except (OSError, zlib.error) as error:
        raise _Refusal(400, f"The body is not gzip ({error}): send it again.") from None
    _check_size(plain)
    return plain


def _check_size(content: Sized) -> None:
    if len(content) > MESSAGE_BYTES:
        raise _Refusal(413, f"The request holds more than {size(MESSAGE_BYTES)}, the limit: send smaller batches.")


def _keep(inbox: Path, content: bytes, kind: str) -> None:
    """Check a request and write it to the inbox. Raises _Refusal."""
    suffix, kept = ".pb", content
    try:
        if kind == _JSON:
            value = parse_json(content.decode("utf-8"), "The request")
            spans = spans_of_json(value, "The request")
            # A file of JSON has one request a line.
            suffix, kept = ".json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        else:
            spans = spans_of_protobuf(content, "The request")
        for span in spans:
            facts_of(span)
            if is_model_call(span):
                model_call(span)
    except MissingInput as error:
        raise _Refusal(400, str(error)) from None
    except UnicodeDecodeError:
        raise _Refusal(400, "The request is not UTF-8: send it in that encoding.") from None
    if not kept.strip():
        return  # An exporter may send a request without a span.
    path = inbox / f"{hashlib.sha256(kept).hexdigest()[:32]}{suffix}"
    try:
        if not path.exists():
            with replace_file(path) as unfinished:
                unfinished.write_bytes(kept)
    except OSError as error:
        raise _Refusal(503, f"The inbox cannot be written ({error.strerror}): try again.", _UNAVAILABLE) from None


def _error(kind: str, refusal: _Refusal) -> Response:
    """Return an error with google.rpc.Status in the encoding of the request."""
    headers = {"Retry-After": str(_PAUSE_SECONDS)} if refusal.status == 503 else {}
    if kind == _PROTOBUF:
        body = Status(code=refusal.code, message=str(refusal)).SerializeToString()
    else:
        kind, body = _JSON, json.dumps({"code": refusal.code, "message": str(refusal)}).encode()
    return Response(body, status_code=refusal.status, media_type=kind, headers=headers)
