"""A span of a trace, whatever it was decoded from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

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

    def refuse(self, attribute: str, fault: str) -> NoReturn:
        """Raise MissingInput for an attribute; `fault` is the rest of the sentence."""
        raise MissingInput(f"{self.place(attribute)} {fault}")


def field_path(place: tuple[int | str, ...]) -> str:
    """Return a place in nested data as a path, such as `spans[1].name`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
