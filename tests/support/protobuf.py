"""Export requests in protobuf, from OTLP's JSON encoding."""

from base64 import b64encode
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def as_protobuf(request: dict[str, Any]) -> bytes:
    """Encode a request. In protobuf's own JSON, ids are base64 of the bytes that OTLP writes in hexadecimal digits."""
    message = ExportTraceServiceRequest()
    ParseDict(_with_base64_ids(request), message)
    return message.SerializeToString()


def _with_base64_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_base64_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        name: b64encode(bytes.fromhex(item)).decode() if name in ids else _with_base64_ids(item)
        for name, item in value.items()
    }
