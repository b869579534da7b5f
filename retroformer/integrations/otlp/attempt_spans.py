"""Steps of `@coach.improve` from the spans that an agent's instrumentation makes in the same program.

@coach.improve(trials=3, score=check, watch=AttemptSpans())
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanContext

from retroformer.coach.session import ReadSteps
from retroformer.integrations.otlp.attempts import places_of, read_agent
from retroformer.integrations.otlp.wire import Span, SpanEvent

_LOGGER = logging.getLogger(__name__)
_NAME = "retroformer.attempt"


class AttemptSpans(SpanProcessor):
    """Observer of attempts that reads the spans of OpenInference and of `gen_ai.*` made during each.

    Spans belong to an attempt by trace context, so attempts in several threads and tasks do not mix. Only finished
    spans count. If they cannot be read, what the agent returned counts.

    Args:
        provider: the program's tracer provider; by default the global one, which is made if there is none.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        current = provider or trace.get_tracer_provider()
        if not isinstance(current, TracerProvider):
            current = TracerProvider()
            trace.set_tracer_provider(current)
        self._provider = current
        self._lock = threading.Lock()
        self._attempts: dict[int, list[Span]] = {}
        """Finished spans of an attempt, by the id of its own span and of every span below it."""
        self._warned = False
        self._provider.add_span_processor(self)

    @contextmanager
    def attempt(self) -> Iterator[ReadSteps]:
        """Watch an attempt for the time of a `with` block."""
        spans = list[Span]()
        own = self._provider.get_tracer(_NAME).start_span(_NAME)
        identity = own.get_span_context().span_id
        with self._lock:
            self._attempts[identity] = spans
        token = context.attach(trace.set_span_in_context(own))
        try:
            yield lambda: self._form_of(spans)
        finally:
            context.detach(token)
            with self._lock:
                self._attempts = {span: attempt for span, attempt in self._attempts.items() if attempt is not spans}
            own.end()

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Note to which attempt a span belongs."""
        with self._lock:
            if span.parent is not None and span.parent.span_id in self._attempts:
                self._attempts[span.get_span_context().span_id] = self._attempts[span.parent.span_id]

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a finished span of an attempt."""
        own = span.get_span_context()
        with self._lock:
            if own is not None and own.span_id in self._attempts:
                self._attempts[own.span_id].append(_span_of(span, own))

    def _form_of(self, spans: list[Span]) -> Mapping[str, Any] | None:
        """Return the conversation of the spans, or the tools that were used, and the usage."""
        try:
            with self._lock:
                places = places_of(spans)
            messages, steps, usage = read_agent(places)
            if not (messages or steps):
                return None
            done = {"messages": messages} if messages else {"steps": steps}
            return {name: [record.model_dump(mode="json") for record in listed] for name, listed in done.items()} | {
                "usage": usage.model_dump()
            }
        except Exception as error:  # The spans are another program's: an agent must not fail because of them.
            if not self._warned:
                _LOGGER.warning("Spans of an attempt cannot be read, so what the agent returned counts: %s", error)
                self._warned = True
            return None


def _span_of(span: ReadableSpan, own: SpanContext) -> Span:
    """Return a span of this program as if it had been read from a file."""
    events = [SpanEvent.model_construct(attributes=_plain(event.attributes or {})) for event in span.events]
    return Span.model_construct(
        trace_id=f"{own.trace_id:032x}",
        span_id=f"{own.span_id:016x}",
        parent_span_id=f"{span.parent.span_id:016x}" if span.parent is not None else "",
        name=span.name,
        start_time_unix_nano=span.start_time or 0,
        attributes=_plain(span.attributes or {}),
        events=events,
        where=f"Span {span.name!r}",
    )


def _plain(value: Any) -> Any:
    """Return attributes, or the value of one, with lists, as JSON has them, in place of tuples."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
