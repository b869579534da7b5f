"""Receives OTLP over HTTP: every request is on disk before it is acknowledged with 200.

Every request becomes a file of the inbox, named after its content, so that a request that is sent again is kept once.
"""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from retroformer.endpoint.compression import UnreadableBody, decompressed
from retroformer.endpoint.request_guard import JSON, RETRY_SECONDS, Headers, Refusal, listen
from retroformer.endpoint.server import Guard, server_of
from retroformer.errors import MissingInput
from retroformer.files.bounded import decode_json, json_fault, size
from retroformer.files.durable import replace_file
from retroformer.integrations.otlp.attempts import facts_of
from retroformer.integrations.otlp.conversation import is_model_call, model_call
from retroformer.integrations.otlp.files import MESSAGE_BYTES
from retroformer.integrations.otlp.wire import Span, drop_spans, json_of_protobuf

PATH = "/v1/traces"
_PROTOBUF = "application/x-protobuf"
_SHOWN_FAULTS = 5
_INVALID, _UNAVAILABLE = 3, 14
"""Codes of google.rpc.Status, which the protocol demands as the body of an error."""


def serve(inbox: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve until the process is interrupted, on the loopback interface only, and announce the address of the route.

    Raises:
        ServiceError: the port is taken.
    """
    listening = listen(port)
    inbox.mkdir(parents=True, exist_ok=True)
    announce(f"http://127.0.0.1:{listening.getsockname()[1]}{PATH}")
    server_of(app(inbox)).run(sockets=[listening])


def app(inbox: Path) -> Guard:
    """Return the ASGI application that writes to this inbox."""

    async def receive(request: Request) -> Response:
        kind = _kind(request.headers.items())
        try:
            encoding = request.headers.get("content-encoding", "")
            content = await run_in_threadpool(decompressed, await request.body(), encoding, MESSAGE_BYTES)
            faults = await run_in_threadpool(_keep, inbox, content, kind)
        except UnreadableBody as error:
            sentence = f"The request was sent {error}: send gzip or none, and at most {size(MESSAGE_BYTES)} at once."
            return _error(Refusal(error.status, sentence), request.headers.items())
        except Refusal as refusal:
            return _error(refusal, request.headers.items())
        receipt = ExportTraceServiceResponse()
        if faults:
            receipt.partial_success.rejected_spans = len(faults)
            receipt.partial_success.error_message = " ".join(faults[:_SHOWN_FAULTS])
        return Response(_body(receipt, kind), media_type=kind)

    async def refuse_signal(request: Request) -> Response:
        sentence = (
            f"Only traces say what an agent did: send them to {PATH}, and set OTEL_METRICS_EXPORTER=none and "
            "OTEL_LOGS_EXPORTER=none."
        )
        return _error(Refusal(404, sentence), request.headers.items())

    routes = [
        Route(PATH, receive, methods=["POST"]),
        Route("/{signal:path}", refuse_signal, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), _error, types=[_PROTOBUF, JSON], body_bytes=MESSAGE_BYTES)


def _kind(headers: Headers) -> str:
    """Return the content type of a request; JSON if it has none that is served."""
    kind = dict(headers).get("content-type", "").partition(";")[0].strip().lower()
    return kind if kind == _PROTOBUF else JSON


def _keep(inbox: Path, content: bytes, kind: str) -> list[str]:
    """Write a request to the inbox, without spans that cannot be read; return their faults. Raises Refusal."""
    suffix, kept, text = ".pb", content, ""
    try:
        if kind == JSON:
            text = content.decode("utf-8")
            value = decode_json(text, "The request")
        else:
            value = json_of_protobuf(content, "The request")
        remaining, faults = drop_spans(value, "The request", partial(_check_span, text))
        if fault := json_fault(value, text):
            raise MissingInput(f"The request {fault}.")
    except MissingInput as error:
        raise Refusal(400, str(error)) from None
    except UnicodeDecodeError:
        raise Refusal(400, "The request is not UTF-8: send it in that encoding.") from None
    if not remaining:
        if faults:
            raise Refusal(400, faults[0])
        return []  # An exporter may send a request without a span.
    if kind == JSON or faults:
        # A file of JSON has one request a line.
        suffix, kept = ".json", json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
    path = inbox / f"{hashlib.sha256(kept).hexdigest()[:32]}{suffix}"
    try:
        if not path.exists():
            with replace_file(path) as unfinished:
                unfinished.write_bytes(kept)
    except OSError as error:
        raise Refusal(503, f"The inbox cannot be written ({error.strerror}): try again.") from None
    return faults


def _check_span(text: str, span: Span, raw: Any) -> None:
    """Raise MissingInput if an import could not read a span of a request with this JSON."""
    if fault := json_fault(raw, text):
        raise MissingInput(f"{span.where} {fault}.")
    facts_of(span)
    if is_model_call(span):
        model_call(span)


def _body(message: Message, kind: str) -> bytes:
    """Return a message of the protocol in the encoding of the request."""
    if kind == JSON:
        return json.dumps(MessageToDict(message)).encode()
    body: bytes = message.SerializeToString()
    return body


def _error(refusal: Refusal, headers: Headers) -> Response:
    """Return an error with google.rpc.Status in the encoding of the request."""
    busy, kind = refusal.status == 503, _kind(headers)
    body = _body(Status(code=_UNAVAILABLE if busy else _INVALID, message=refusal.message), kind)
    more = {"Retry-After": str(RETRY_SECONDS)} if busy else {}
    return Response(body, refusal.status, refusal.headers | more, kind)
