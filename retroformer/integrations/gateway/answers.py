"""Forwards the answer of a provider byte for byte as it arrives, and reads it: JSON, or a stream of server-sent events.

Bytes that cannot be read are no error: the answer is forwarded anyway, and what was read of it is kept.
"""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp import web

from retroformer.agents.messages import readable_messages
from retroformer.endpoint.answers import ProviderAnswer, join_text, read_response, token_counts
from retroformer.endpoint.compression import Decompressor, UnreadableBody
from retroformer.errors import EndpointFailure
from retroformer.integrations.gateway.upstream import LARGEST_BYTES, end_to_end_headers
from retroformer.method.records import ChatMessage, Usage

_LOGGER = logging.getLogger(__name__)
_LONGEST_LOOK = 100_000
"""Largest number of characters of arguments that are parsed to see whether they are whole."""


def json_object(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object in a JSON text; {} if there is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class RecordedAnswer:
    """The message of one answer, as far as it has been read."""

    def __init__(self, content_type: str, encoding: str) -> None:
        self.streams = content_type.startswith("text/event-stream")
        """True for server-sent events."""
        self.complete = False
        """True once the provider has sent the end of its answer."""
        self._decompressor: Decompressor | None = None
        with suppress(UnreadableBody):
            self._decompressor = Decompressor(encoding, LARGEST_BYTES)
        self._pending = bytearray()
        self._message: dict[str, Any] = {}
        self._calls: list[_StreamedCall] = []
        self._usage: Mapping[str, Any] = {}
        self._failed = self._ended = False

    @property
    def readable(self) -> bool:
        """False once the answer cannot be read on: it is damaged, too large or of no known encoding or form."""
        return self._decompressor is not None

    def feed(self, data: bytes) -> None:
        """Read the next bytes as they came from the provider."""
        if self._decompressor is None:
            return
        try:
            plain = self._decompressor.decompress(data)
            self._pending += plain
            if self.streams and b"\n" in plain:
                *lines, self._pending = self._pending.split(b"\n")
                for line in lines:
                    self._read_line(line)
        except Exception:  # Whatever a provider answers must reach the agent.
            self._give_up()

    def end(self) -> None:
        """Read what is left after the last byte."""
        try:
            if self.streams:
                self._read_line(self._pending)
            elif answer := json_object(self._pending):
                response = read_response(answer)
                self._message = dict(response.message)
                self._note_end(response)
        except Exception:
            self._give_up()
        self._pending = bytearray()

    def _give_up(self) -> None:
        _LOGGER.warning("An answer of the provider cannot be read on; what was read of it is kept.")
        self._decompressor, self._pending = None, bytearray()

    def discard(self) -> None:
        """Forget what was read, as the provider broke off: the agent calls again."""
        self._failed = True
        self._pending = bytearray()

    @property
    def message(self) -> ChatMessage | None:
        """The agent's message; None if the provider gave none, or an error."""
        # A turn that was paid for and says why it ended is the model's own, if only with thinking.
        if self._failed or not (self._message or self._calls or (self._usage and self._ended)):
            return None
        calls = {"tool_calls": [call.fields() for call in self._calls]} if self._calls else {}
        return readable_messages([{**self._message, "role": "assistant", **calls}])[0]

    @property
    def usage(self) -> Usage:
        """The call and its tokens; no tokens if the provider reported none."""
        prompt, completion = token_counts(self._usage)
        return Usage(calls=1, prompt_tokens=prompt or 0, completion_tokens=completion or 0)

    def _read_line(self, line: bytes | bytearray) -> None:
        name, _, value = bytes(line).strip().partition(b":")
        if name == b"event" and value.strip() == b"error":
            self._failed = True
        if name != b"data":
            return
        if value.strip() == b"[DONE]":
            self.complete = True
        chunk = read_response(json_object(value), is_chunk=True)
        self._note_end(chunk)
        for field in ("content", "refusal"):
            if isinstance(text := join_text(chunk.message.get(field)), str):
                self._message[field] = self._message.get(field, "") + text
        calls = chunk.message.get("tool_calls")
        if isinstance(called := chunk.message.get("function_call"), Mapping):
            calls = [{"function": called}]
        parts = [part for part in calls if isinstance(part, Mapping)] if isinstance(calls, list) else []
        for place, part in enumerate(parts):
            index = part.get("index")
            self._add_call(index if isinstance(index, int) else place if len(parts) > 1 else None, part)

    def _note_end(self, read: ProviderAnswer) -> None:
        self._usage = read.usage or self._usage
        self._failed |= read.is_error
        self._ended |= read.finish_reason is not None

    def _add_call(self, index: int | None, part: Mapping[str, Any]) -> None:
        """Add a part to its call: that of its id, else the last one of its index unless the part begins another."""
        inner = part.get("function")
        function = inner if isinstance(inner, Mapping) else {}
        # Mistral's streams call every id "null".
        identity, name = None if part.get("id") in ("", "null") else part.get("id"), function.get("name") or ""
        earlier = [call for call in self._calls if index is None or call.index == index]
        call = next((call for call in self._calls if identity is not None and call.id == identity), None)
        last = earlier[-1] if earlier else None
        if call is None and last is not None and not last.is_ended_by(identity, name, bool(function.get("arguments"))):
            call = last
        if call is None:
            # A call that does not say what it calls, calls what the last one did.
            call = _StreamedCall(index, "" if name or last is None else last.name)
            self._calls.append(call)
        call.add(identity, name, function.get("arguments"))


class _StreamedCall:
    """A call of a tool as far as it has arrived."""

    def __init__(self, index: int | None, name: str) -> None:
        self.index, self.id, self.name, self._arguments = index, None, name, ""

    def is_ended_by(self, identity: Any, name: Any, goes_on: bool) -> bool:
        """Return True if a part with this id and name, both perhaps empty, begins another call."""
        if identity is not None and self.id is not None:
            return bool(identity != self.id)
        if name and self.name and name != self.name:
            return True
        # What comes after whole arguments belongs to another call.
        text = self._arguments if (name or goes_on) and len(self._arguments) < _LONGEST_LOOK else ""
        return text.rstrip().endswith("}") and bool(json_object(text.encode(errors="replace")))

    def add(self, identity: Any, name: Any, arguments: Any) -> None:
        self.id = self.id or identity
        self.name = self.name or (name if isinstance(name, str) else "")
        if isinstance(arguments, str):
            self._arguments += arguments
        elif arguments is not None:
            self._arguments = json.dumps(arguments, ensure_ascii=False)

    def fields(self) -> dict[str, Any]:
        """Return the call as the API has it in a whole answer."""
        return {"id": self.id, "function": {"name": self.name, "arguments": self._arguments}}


class _ProviderDisconnect(Exception):
    """The provider ended an answer early."""


async def forward(
    request: web.Request,
    answer: aiohttp.ClientResponse,
    read: RecordedAnswer | None = None,
    record: Callable[[], Awaitable[None]] | None = None,
) -> web.StreamResponse:
    """Send an answer to the agent. `read` gets its bytes, too, and `record` runs before the agent has all of them.

    If the provider breaks off, the agent's connection is closed early, so that the agent sees it, too.

    Raises:
        EndpointFailure: the provider broke off before a byte was forwarded.
    """
    response = web.StreamResponse(
        status=answer.status, reason=answer.reason, headers=end_to_end_headers(answer.headers)
    )
    try:
        await _send(request, response, answer, read, record)
    except _ProviderDisconnect as error:
        _LOGGER.warning("The provider ended an answer early: %s.", error)
        if read is not None:
            read.discard()
        if not response.prepared:
            raise EndpointFailure(f"The provider ended its answer early ({error}): retry the call.") from error
        if request.transport is not None:
            request.transport.close()
    except ConnectionResetError:
        # The agent has left; closing the answer tells the provider.
        pass
    return response


async def _send(
    request: web.Request,
    response: web.StreamResponse,
    answer: aiohttp.ClientResponse,
    read: RecordedAnswer | None,
    record: Callable[[], Awaitable[None]] | None,
) -> None:
    """Send an answer as it comes, but one that is read and is no stream once it is recorded."""
    held = bytearray()
    if read is None or read.streams:
        await response.prepare(request)
    async for chunk in _chunks(answer):
        held += chunk
        if read is not None and record is not None:
            read.feed(chunk)
            if read.complete:
                await record()
            if read.readable and not read.streams:
                continue  # One that cannot be read may be too large to be held.
        await response.prepare(request)
        await response.write(held)
        held = bytearray()
    if read is not None and record is not None:
        read.end()
        await record()
    await response.prepare(request)
    await response.write(held)


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        while chunk := await answer.content.readany():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise _ProviderDisconnect(type(error).__name__) from error
