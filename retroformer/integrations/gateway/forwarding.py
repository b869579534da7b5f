"""Forwards an answer byte for byte as it arrives, and records it before its last bytes are sent."""

import logging
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from retroformer.errors import EndpointFailure
from retroformer.integrations.gateway.answers import Answer
from retroformer.integrations.gateway.upstream import answer_headers

_LOGGER = logging.getLogger(__name__)

Record = Callable[[], Awaitable[None]]


async def forward(
    request: web.Request, answer: aiohttp.ClientResponse, read: Answer | None = None, record: Record | None = None
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
            body = await _all(answer)
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
    while chunk := await _next(answer):
        await response.write(chunk)


async def _stream_and_read(
    response: web.StreamResponse, answer: aiohttp.ClientResponse, read: Answer, record: Record
) -> None:
    while chunk := await _next(answer):
        read.feed(chunk)
        if read.complete:
            await record()
        await response.write(chunk)
    read.end()
    await record()


async def _next(answer: aiohttp.ClientResponse) -> bytes:
    try:
        return await answer.content.readany()
    except (aiohttp.ClientError, OSError) as error:
        raise _BrokenOff(type(error).__name__) from error


async def _all(answer: aiohttp.ClientResponse) -> bytes:
    try:
        return await answer.content.read()
    except (aiohttp.ClientError, OSError) as error:
        raise _BrokenOff(type(error).__name__) from error
