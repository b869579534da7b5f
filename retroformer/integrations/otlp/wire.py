"""Spans of traces, decoded from OTLP in JSON or protobuf; every malformed field is refused.

Fields that this module does not know are ignored, as the protocol demands of receivers.
"""

from base64 import b64decode
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from retroformer.errors import MissingInput
from retroformer.method.records import StorableText

_IDS = ("traceId", "spanId", "parentSpanId")
_OTHER_SIGNALS = {"resourceLogs", "resourceMetrics", "resourceProfiles"}
_STATUS_CODES = {"STATUS_CODE_UNSET": 0, "STATUS_CODE_OK": 1, "STATUS_CODE_ERROR": 2}
ERROR = _STATUS_CODES["STATUS_CODE_ERROR"]


def validate(kind: TypeAdapter[Any], value: Any, place: str, *, strict: bool | None = True) -> Any:
    """Return a value as this type. Raises MissingInput with the place of the field that is malformed."""
    try:
        return kind.validate_python(value, strict=strict)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        at = (place + path.lstrip(".")).removesuffix(": ") if place.endswith(": ") else place + path
        given_value = "" if fault["type"] == "missing" else f" is {repr(fault['input'])[:80]}"
        message = fault["msg"].removeprefix("Value error, ")
        raise MissingInput(f"{at}{given_value}: {message}.") from None


def _not_zero(identity: str) -> str:
    if identity and not identity.strip("0"):
        raise ValueError("an id of zeros only is invalid")
    return identity.lower()


# JSON writes a 64-bit integer as a decimal string or a number, and a special number such as NaN as a string.
_Int64 = Annotated[int, Field(strict=False, ge=-(2**63), lt=2**63)]
_Double = Annotated[float, Field(strict=False)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, alias_generator=to_camel, extra="ignore", frozen=True)


class _Fields(_Part):
    """Object in which null stands for a field that is not set, as in protobuf's JSON."""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, value: Any) -> Any:
        return {name: field for name, field in value.items() if field is not None} if isinstance(value, dict) else value


class _List(_Part):
    values: list["_Value"] = []


class _Pairs(_Part):
    values: list["_Attribute"] = []


class _Value(_Part):
    string_value: StorableText | None = None
    bool_value: bool | None = None
    int_value: _Int64 | None = None
    double_value: _Double | None = None
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
    key: Annotated[StorableText, Field(min_length=1)]
    value: _Value | None = None


def _plain(attributes: list[_Attribute]) -> dict[str, Any]:
    return {attribute.key: attribute.value and attribute.value.plain() for attribute in attributes}


class SpanStatus(_Fields):
    """Status that the program set: 2 is an error."""

    code: Annotated[int, BeforeValidator(lambda code: _STATUS_CODES.get(str(code), code)), Field(ge=0, le=2)] = 0


if TYPE_CHECKING:
    _Attributes = dict[str, Any]
else:
    # A list of attributes becomes a mapping of their values.
    _Attributes = Annotated[list[_Attribute], AfterValidator(_plain)]


class SpanEvent(_Fields):
    """Something that happened during a span."""

    attributes: _Attributes = {}


class Span(_Fields):
    """One operation of a program, such as a call of a model or a tool."""

    trace_id: Annotated[str, Field(pattern="^[0-9a-fA-F]{32}$"), AfterValidator(_not_zero)]
    span_id: Annotated[str, Field(pattern="^[0-9a-fA-F]{16}$"), AfterValidator(_not_zero)]
    parent_span_id: Annotated[str, Field(pattern="^([0-9a-fA-F]{16})?$"), AfterValidator(_not_zero)] = ""
    """Id of the span around this one; empty if there is none."""
    name: StorableText = ""
    start_time_unix_nano: Annotated[_Int64, Field(gt=0)]
    attributes: _Attributes = {}
    events: list[SpanEvent] = []
    status: SpanStatus = SpanStatus()
    where: str
    """Place in the input, such as `Line 3 of traces.jsonl: resourceSpans[0].scopeSpans[0].spans[1]`."""

    @property
    def identity(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    @property
    def attribute_sets(self) -> list[dict[str, Any]]:
        """Attributes of the span and of each event during it."""
        return [self.attributes, *(event.attributes for event in self.events)]

    def place(self, attribute: str) -> str:
        """Return the place of an attribute, for errors."""
        return f"{self.where}.attributes[{attribute!r}]"


class _Scope(_Fields):
    spans: list[Any] = []


class _Resource(_Fields):
    scope_spans: list[_Scope] = []


class _Traces(_Part):
    resource_spans: list[_Resource]


_SPAN, _TRACES = TypeAdapter(Span), TypeAdapter(_Traces)


def spans_of_json(value: Any, where: str) -> Iterator[Span]:
    """Yield the spans of an export request or of trace data, as parsed JSON.

    Raises:
        MissingInput: a field is malformed; the sentence names it and `where`, such as `Line 3 of traces.jsonl`.
    """
    for spans, place in _scopes(value, where):
        for number, span in enumerate(spans):
            yield _read_span(span, f"{place}.spans[{number}]")


def drop_spans(value: Any, where: str, check: Callable[[Span, Any], object]) -> tuple[int, list[str]]:
    """Remove the spans that are malformed, or of which `check` raises MissingInput, from an export request.

    `check` gets a span, and its JSON. Return the number of spans that are left, and the faults of the others. Raises
    MissingInput if the value is no request at all.
    """
    remaining, faults = 0, list[str]()
    for spans, place in _scopes(value, where):
        kept = list[Any]()
        for number, span in enumerate(spans):
            try:
                check(_read_span(span, f"{place}.spans[{number}]"), span)
                kept.append(span)
            except MissingInput as error:
                faults.append(str(error))
        spans[:] = kept
        remaining += len(kept)
    return remaining, faults


def _scopes(value: Any, where: str) -> Iterator[tuple[list[Any], str]]:
    """Yield the lists of spans in a request, each with its place. Raises MissingInput."""
    others = _OTHER_SIGNALS & value.keys() if isinstance(value, dict) and "resourceSpans" not in value else ()
    if others:
        raise MissingInput(f"{where} holds {', '.join(others)}: only traces, resourceSpans, say what an agent did.")
    validate(_TRACES, value, f"{where}: ", strict=None)
    for outer, resource in enumerate(value["resourceSpans"]):
        for inner, scope in enumerate(resource.get("scopeSpans") or ()):
            yield scope.get("spans") or [], f"{where}: resourceSpans[{outer}].scopeSpans[{inner}]"


def _read_span(value: Any, where: str) -> Span:
    span: Span = validate(_SPAN, {**value, "where": where} if isinstance(value, dict) else value, where, strict=None)
    return span


def json_of_protobuf(content: bytes, where: str) -> dict[str, Any]:
    """Return an export request or trace data, which have one encoding, as OTLP's JSON. Raises MissingInput."""
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
    return {"resourceSpans": [], **traces}
