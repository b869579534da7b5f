"""A span of a trace, whatever it was decoded from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from retroformer.errors import MissingInput


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened during a span."""

    name: str
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of a program, such as a call of a model or a tool."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 hexadecimal digits."""
    parent_id: str
    """Id of the span around this one; empty if there is none."""
    name: str
    start_ns: int
    """Nanoseconds since 1970."""
    attributes: Mapping[str, Any]
    events: tuple[SpanEvent, ...]
    failed: bool
    """True if the program set the status to error."""
    where: str
    """Place in the input, such as `Line 3 of traces.jsonl: resourceSpans[0].scopeSpans[0].spans[1]`."""

    @property
    def identity(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    def place(self, attribute: str) -> str:
        """Return the place of an attribute, for errors."""
        return f"{self.where}.attributes[{attribute!r}]"


def checked(kind: TypeAdapter[Any], value: Any, place: str) -> Any:
    """Return a value as this type. Raises MissingInput with the place of the field that is malformed."""
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"])
        at = (place + path.lstrip(".")).removesuffix(": ") if place.endswith(": ") else place + path
        found = "" if fault["type"] == "missing" else f" is {repr(fault['input'])[:80]}"
        message = fault["msg"].removeprefix("Value error, ")
        raise MissingInput(f"{at}{found}: {message}.") from None
