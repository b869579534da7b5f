"""Forwards the answer of a provider byte for byte as it arrives, and reads it: JSON, or a stream of server-sent events.

Bytes that cannot be read are no error: the answer is forwarded anyway, and what was read of it is kept.
"""

import json
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import aiohttp
from aiohttp import web

from retroformer.agents.messages import readable_message
from retroformer.endpoint.answers import join_text
from retroformer.errors import EndpointFailure
from retroformer.integrations.gateway.upstream import LARGEST_BYTES, decoder, end_to_end_headers
from retroformer.method.records import ChatMessage, Usage

_LOGGER = logging.getLogger(__name__)
_MOST_TOKENS = 10_000_000
"""Largest plausible number of tokens; a provider that reports more does not count tokens."""


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
        self._decoder = decoder(encoding)
        self._pending = bytearray()
        self._size = 0
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Any = None

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
            self._usage, self._message = answer.get("usage"), dict(_first_choice(answer, "message"))
        self._pending = bytearray()

    def discard(self) -> None:
        """Forget what was read, as the provider broke off: the agent calls again."""
        self._message, self._calls, self._usage = {}, {}, None
        self._pending = bytearray()

    @property
    def message(self) -> ChatMessage | None:
        """The agent's message; None if the provider gave none."""
        if not self._message and not self._calls:
            return None
        calls = {"tool_calls": [self._calls[index] for index in sorted(self._calls)]} if self._calls else {}
        return readable_message({**self._message, "role": "assistant", **calls})

    @property
    def usage(self) -> Usage:
        """The call and its tokens; no tokens if the provider reported none."""
        usage = self._usage if isinstance(self._usage, Mapping) else {}
        prompt, completion = (
            count if type(count := usage.get(name)) is int and 0 <= count <= _MOST_TOKENS else 0
            for name in ("prompt_tokens", "completion_tokens")
        )
        return Usage(calls=1, prompt_tokens=prompt, completion_tokens=completion)

    def _read_line(self, line: bytes | bytearray) -> None:
        name, _, value = bytes(line).strip().partition(b":")
        if name != b"data":
            return
        if value.strip() == b"[DONE]":
            self.complete = True
        chunk = json_object(value)
        self._usage = chunk.get("usage") or self._usage
        delta = _first_choice(chunk, "delta")
        if isinstance(text := join_text(delta.get("content")), str):
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


def _first_choice(answer: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    """Return this field of the first choice; {} if there is no object in it."""
    choices = answer.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, Mapping) and choice.get("index", 0) == 0:
            value = choice.get(field)
            return value if isinstance(value, Mapping) else {}
    return {}


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
        if read is None or record is None:
            await response.prepare(request)
            async for chunk in _chunks(answer):
                await response.write(chunk)
        elif read.streams:
            await response.prepare(request)
            await _stream_and_read(response, answer, read, record)
        else:
            body = b"".join([chunk async for chunk in _chunks(answer)])
            read.feed(body)
            read.end()
            await record()
            await response.prepare(request)
            await response.write(body)
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


async def _stream_and_read(
    response: web.StreamResponse,
    answer: aiohttp.ClientResponse,
    read: RecordedAnswer,
    record: Callable[[], Awaitable[None]],
) -> None:
    async for chunk in _chunks(answer):
        read.feed(chunk)
        if read.complete:
            await record()
        await response.write(chunk)
    read.end()
    await record()


async def _chunks(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    try:
        while chunk := await answer.content.readany():
            yield chunk
    except (aiohttp.ClientError, OSError) as error:
        raise _ProviderDisconnect(type(error).__name__) from error
