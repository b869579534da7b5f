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

from retroformer.agents.messages import readable_message
from retroformer.endpoint.answers import join_text
from retroformer.endpoint.compression import Decompressor, UnreadableBody
from retroformer.errors import EndpointFailure
from retroformer.integrations.gateway.upstream import LARGEST_BYTES, end_to_end_headers
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
        self._decompressor: Decompressor | None = None
        with suppress(UnreadableBody):
            self._decompressor = Decompressor(encoding, LARGEST_BYTES)
        self._pending = bytearray()
        self._message: dict[str, Any] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._usage: Any = None

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
                self._usage, self._message = answer.get("usage"), dict(_first_choice(answer, "message"))
        except Exception:
            self._give_up()
        self._pending = bytearray()

    def _give_up(self) -> None:
        _LOGGER.warning("An answer of the provider cannot be read on; what was read of it is kept.")
        self._decompressor, self._pending = None, bytearray()

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
        try:
            return readable_message({**self._message, "role": "assistant", **calls})
        except Exception:  # It has a form that is not known; the agent has it anyway.
            return None

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
            await _read_and_send(request, response, answer, read, record)
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


async def _read_and_send(
    request: web.Request,
    response: web.StreamResponse,
    answer: aiohttp.ClientResponse,
    read: RecordedAnswer,
    record: Callable[[], Awaitable[None]],
) -> None:
    """Send an answer once it is recorded, or as it comes once it cannot be read: it may be too large to be held."""
    held = bytearray()
    async for chunk in _chunks(answer):
        read.feed(chunk)
        held += chunk
        if not read.readable:
            if not response.prepared:
                await response.prepare(request)
            await response.write(held)
            held = bytearray()
    read.end()
    await record()
    if not response.prepared:
        await response.prepare(request)
    await response.write(held)


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
