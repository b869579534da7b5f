"""Forwards the answer of a provider byte for byte as it arrives, and reads it: JSON, or a stream of server-sent events.

A recorded answer is stored before its last bytes are sent. Only the first choice counts, and reasoning fields are left
out. Bytes that cannot be read are no error: the answer is forwarded anyway, and what was read of it is kept.
"""

import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from retroformer.endpoint.answers import joined_text
from retroformer.errors import EndpointFailure
from retroformer.integrations.gateway.messages import json_object, message_of
from retroformer.integrations.gateway.upstream import LARGEST_BYTES, answer_headers, decoder
from retroformer.method.conversation import ChatMessage
from retroformer.method.records import Usage

_LOGGER = logging.getLogger(__name__)
_MOST_TOKENS = 10_000_000
"""Largest plausible number of tokens; a provider that reports more does not count tokens."""


class RecordedAnswer:
    """The message of one answer, as far as it has been read."""

    def __init__(self, content_type: str, encoding: str) -> None:
        self.streams = content_type.startswith("text/event-stream")
        """True for server-sent events."""
        self.complete = False
        """True once the provider has sent the end of its answer."""
        self._decoder = decoder(encoding)
        self._pending = bytearray()
        self._size = 0
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Mapping[str, Any] = {}

    def feed(self, data: bytes) -> None:
        """Read the next bytes as they came from the provider."""
        try:
            plain = self._decoder.decompress(data) if self._decoder else data
        except zlib.error:
            return
        self._size += len(plain)
        if self._size > LARGEST_BYTES:
            return
        self._pending += plain
        if self.streams:
            *lines, rest = self._pending.split(b"\n")
            self._pending = rest
            for line in lines:
                self._read_line(line)

    def end(self) -> None:
        """Read what is left after the last byte."""
        if self.streams:
            self._read_line(self._pending)
        elif answer := json_object(self._pending):
            self._note_usage(answer)
            message = _first_choice(answer).get("message")
            self._message = dict(message) if isinstance(message, Mapping) else {}
        self._pending = bytearray()

    def discard(self) -> None:
        """Forget what was read, as the provider broke off: the agent calls again."""
        self._message, self._calls, self._usage = {}, {}, {}
        self._pending = bytearray()

    @property
    def message(self) -> ChatMessage | None:
        """The agent's message; None if the provider gave none."""
        if not self._message and not self._calls:
            return None
        calls = {"tool_calls": [self._calls[index] for index in sorted(self._calls)]} if self._calls else {}
        return message_of({**self._message, "role": "assistant", **calls})

    @property
    def usage(self) -> Usage:
        """The call and its tokens; no tokens if the provider reported none."""
        prompt, completion = (
            count if type(count := self._usage.get(name)) is int and 0 <= count <= _MOST_TOKENS else 0
            for name in ("prompt_tokens", "completion_tokens")
        )
        return Usage(calls=1, prompt_tokens=prompt, completion_tokens=completion)

    def _read_line(self, line: bytes | bytearray) -> None:
        name, _, value = bytes(line).strip().partition(b":")
        if name != b"data":
            return
        if value.strip() == b"[DONE]":
            self.complete = True
        elif chunk := json_object(value):
            self._note_usage(chunk)
            delta = _first_choice(chunk).get("delta")
            if isinstance(delta, Mapping):
                self._add(delta)

    def _add(self, delta: Mapping[str, Any]) -> None:
        if isinstance(text := joined_text(delta.get("content")), str):
            self._message["content"] = self._message.get("content", "") + text
        calls = delta.get("tool_calls")
        for place, part in enumerate(calls if isinstance(calls, list) else ()):
            if isinstance(part, Mapping):
                index = part.get("index")
                self._add_call(index if isinstance(index, int) else place, part)

    def _add_call(self, index: int, part: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(index, {"id": None, "function": {"name": "", "arguments": ""}})
        call["id"] = part.get("id") or call["id"]
        function = part.get("function")
        if isinstance(function, Mapping):
            for name in ("name", "arguments"):
                if isinstance(function.get(name), str):
                    call["function"][name] += function[name]

    def _note_usage(self, answer: Mapping[str, Any]) -> None:
        if isinstance(usage := answer.get("usage"), Mapping):
            self._usage = usage


def _first_choice(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("index", 0) == 0:
            return choice
    return {}


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
    response = web.StreamResponse(status=answer.status, reason=answer.reason, headers=answer_headers(answer))
    try:
        if read is None or record is None:
            await response.prepare(request)
            await _stream(response, answer)
        elif read.streams:
            await response.prepare(request)
            await _stream_and_read(response, answer, read, record)
        else:
            body = await _received(answer.content.read())
            read.feed(body)
            read.end()
            await record()
            await response.prepare(request)
            await response.write(body)
    except _BrokenOff as error:
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


class _BrokenOff(Exception):
    """The provider ended an answer early."""


async def _stream(response: web.StreamResponse, answer: aiohttp.ClientResponse) -> None:
    while chunk := await _received(answer.content.readany()):
        await response.write(chunk)


async def _stream_and_read(
    response: web.StreamResponse,
    answer: aiohttp.ClientResponse,
    read: RecordedAnswer,
    record: Callable[[], Awaitable[None]],
) -> None:
    while chunk := await _received(answer.content.readany()):
        read.feed(chunk)
        if read.complete:
            await record()
        await response.write(chunk)
    read.end()
    await record()


async def _received(reading: Awaitable[bytes]) -> bytes:
    try:
        return await reading
    except (aiohttp.ClientError, OSError) as error:
        raise _BrokenOff(type(error).__name__) from error
