"""Decodes OTLP trace data, in its JSON encoding or as protobuf, into spans, and refuses every malformed field.

Fields that this module does not know are ignored, as the protocol demands of receivers.
"""

from base64 import b64decode
from collections.abc import Iterator
from typing import Annotated, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from retroformer.errors import MissingInput
from retroformer.files.text import is_storable
from retroformer.integrations.otlp.span import Span, SpanEvent, checked

_IDS = ("traceId", "spanId", "parentSpanId")
_STATUS_ERROR = 2
_NAMES_OF_STATUS = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": _STATUS_ERROR}


def _integer(value: Any) -> Any:
    """Return a 64-bit integer, which JSON writes as a decimal string or a number."""
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        return int(value[:21])
    return value


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError("it holds NUL or half a character, which no database stores")
    return text


def _not_zero(identity: str) -> str:
    if identity and not identity.strip("0"):
        raise ValueError("an id of zeros only is invalid")
    return identity.lower()


_Int64 = Annotated[int, BeforeValidator(_integer), Field(ge=-(2**63), lt=2**63)]
_Time = Annotated[int, BeforeValidator(_integer), Field(ge=0, lt=2**63)]
_Text = Annotated[str, AfterValidator(_storable)]
_SpecialNumber = Annotated[float, BeforeValidator(lambda value: float(value) if isinstance(value, str) else value)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=to_camel, extra="ignore", frozen=True)


class _List(_Part):
    values: list["_Value"] = []


class _Pairs(_Part):
    values: list["_Attribute"] = []


class _Value(_Part):
    string_value: _Text | None = None
    bool_value: bool | None = None
    int_value: _Int64 | None = None
    double_value: _SpecialNumber | None = None
    bytes_value: str | None = None
    array_value: _List | None = None
    kvlist_value: _Pairs | None = None

    def plain(self) -> Any:
        """Return the value as Python has it; None for an empty one."""
        if self.array_value is not None:
            return [value.plain() for value in self.array_value.values]
        if self.kvlist_value is not None:
            return _plain(self.kvlist_value.values)
        scalars = (self.string_value, self.bool_value, self.int_value, self.double_value, self.bytes_value)
        return next((value for value in scalars if value is not None), None)


class _Attribute(_Part):
    key: Annotated[_Text, Field(min_length=1)]
    value: _Value | None = None


class _Event(_Part):
    name: str = ""
    attributes: list[_Attribute] = []


class _Status(_Part):
    code: Annotated[int, BeforeValidator(lambda code: _NAMES_OF_STATUS.get(code, code)), Field(ge=0, le=2)] = 0


class _Span(_Part):
    trace_id: Annotated[str, Field(pattern="^[0-9a-fA-F]{32}$"), AfterValidator(_not_zero)]
    span_id: Annotated[str, Field(pattern="^[0-9a-fA-F]{16}$"), AfterValidator(_not_zero)]
    parent_span_id: Annotated[str, Field(pattern="^([0-9a-fA-F]{16})?$"), AfterValidator(_not_zero)] = ""
    name: _Text = ""
    start_time_unix_nano: Annotated[_Time, Field(gt=0)]
    attributes: list[_Attribute] = []
    events: list[_Event] = []
    status: _Status = _Status()


class _Scope(_Part):
    spans: list[_Span] = []


class _Resource(_Part):
    scope_spans: list[_Scope] = []


class _Traces(_Part):
    resource_spans: list[_Resource]


_TRACES = TypeAdapter(_Traces)


def spans_of_json(value: Any, where: str) -> Iterator[Span]:
    """Yield the spans of OTLP's JSON encoding.

    Args:
        value: an export request or trace data, as parsed JSON.
        where: name of the input in an error, such as `Line 3 of traces.jsonl`.

    Raises:
        MissingInput: a field is malformed; the sentence names it.
    """
    traces: _Traces = checked(_TRACES, value, f"{where}: ")
    for outer, resource in enumerate(traces.resource_spans):
        for inner, scope in enumerate(resource.scope_spans):
            for number, span in enumerate(scope.spans):
                yield _decoded(span, f"{where}: resourceSpans[{outer}].scopeSpans[{inner}].spans[{number}]")


def spans_of_protobuf(content: bytes, where: str) -> Iterator[Span]:
    """Yield the spans of an export request or of trace data, which have one encoding. Raises as `spans_of_json`."""
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(content)
    except DecodeError:
        raise MissingInput(f"{where} is not OTLP trace data in protobuf: send or name such data.") from None
    traces = MessageToDict(request, use_integers_for_enums=True)
    for resource in traces.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            for span in scope.get("spans", ()):
                # Protobuf's own JSON has base64 where OTLP's has hexadecimal digits.
                span |= {name: b64decode(span[name]).hex() for name in _IDS if name in span}
    yield from spans_of_json({"resourceSpans": [], **traces}, where)


def _decoded(span: _Span, where: str) -> Span:
    return Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        attributes=_plain(span.attributes),
        events=tuple(SpanEvent(event.name, _plain(event.attributes)) for event in span.events),
        failed=span.status.code == _STATUS_ERROR,
        where=where,
    )


def _plain(attributes: list[_Attribute]) -> dict[str, Any]:
    return {attribute.key: attribute.value and attribute.value.plain() for attribute in attributes}
