"""Routes of the gateway.

/v1/...                 forwarded; a chat completion with the header X-Retroformer-Run is recorded
/runs/NAME/v1/...       forwarded; a chat completion is recorded for this run
/runs/NAME/score        POST the score of the attempt: it ends, and a failure gets advice
/health                 200 while the gateway runs
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any
from urllib.parse import unquote

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retroformer.agents.attempt_result import parse_score
from retroformer.agents.messages import readable_messages
from retroformer.endpoint.compression import UnreadableBody, decompressed
from retroformer.endpoint.request_guard import (
    BODY_SECONDS,
    JSON,
    Headers,
    Refusal,
    check_framing,
    check_sender,
    check_type,
)
from retroformer.errors import ConfigError, EndpointFailure, StoreError
from retroformer.files.bounded import first_fault
from retroformer.files.text import json_value, storable
from retroformer.integrations.gateway.answers import RecordedAnswer, forward, json_object
from retroformer.integrations.gateway.runs import NoAttemptToScore, Runs
from retroformer.integrations.gateway.upstream import LARGEST_BYTES, RUN_HEADERS, Body, Upstream

BUSY = web.AppKey("busy", set[web.RequestHandler])
"""Connections with a request in progress."""
_LOGGER = logging.getLogger(__name__)
_CHAT = "/chat/completions"
_REFUSAL_STATUSES = (400, 413, 422)
"""Statuses by which a provider refuses a request for its content."""
_LONGEST_NAME = 500
"""Longest name of a run or a task, in characters."""


class Score(BaseModel):
    """Body of the route for scores: a score from 0 to 1, or `invalid` for an attempt that could not be made."""

    model_config = ConfigDict(extra="forbid")

    score: Any = None
    invalid: bool = False
    cause: str = "the agent reported an invalid attempt"
    task: str = Field(default="", max_length=_LONGEST_NAME)


class Gateway:
    """Answers the requests of agents, with one provider behind them."""

    def __init__(self, upstream: Upstream, runs: Runs, heading: str) -> None:
        self._upstream, self._runs = upstream, runs
        self._heading = heading.strip()
        """Line above the advice in the system message."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=LARGEST_BYTES, middlewares=[guard])
        app[BUSY] = set()
        app.router.add_get("/health", _health)
        app.router.add_post("/runs/{run:[^/]+}/score", self._score)
        app.router.add_route("*", "/runs/{run:[^/]+}/v1{rest:(?:/.*)?}", self._call)
        app.router.add_route("*", "/v1{rest:(?:/.*)?}", self._call)
        app.router.add_route("*", "/{rest:.*}", _no_such_route)
        return app

    async def _call(self, request: web.Request) -> web.StreamResponse:
        run, task = _names(request)
        path = _path_of(request)
        recorded = run and request.method == "POST" and path.partition("?")[0] == _CHAT
        try:
            if recorded and (request.content_length or 0) <= LARGEST_BYTES:
                return await self._record_call(request, path, run, task)
            return await self._forward(request, path, request.content if request.can_read_body else None)
        except EndpointFailure as failure:
            return error_response(502, str(failure))

    async def _record_call(self, request: web.Request, path: str, run: str, task: str) -> web.StreamResponse:
        body = await _body(request)
        asked = dict[str, Any]()
        with suppress(UnreadableBody):
            asked = json_object(decompressed(body, request.headers.get("Content-Encoding", ""), LARGEST_BYTES))
        listed = asked.get("messages")
        messages = readable_messages(listed) if isinstance(listed, list) else []
        call = await self._runs.begin(run, task, messages) if messages else None
        if call is None:
            return await self._forward(request, path, body)
        sent = body
        if call.advice:
            lines = "\n".join(f"- {line}" for line in call.advice.splitlines() if line.strip())
            sent = json.dumps(_with_advice(asked, f"{self._heading}\n{lines}")).encode()
        read: RecordedAnswer | None = None
        try:
            async with self._upstream.answer(request, path, sent, changed=bool(call.advice), read=True) as answer:
                if answer.status == 200:
                    read = RecordedAnswer(answer.content_type, answer.headers.get("Content-Encoding", ""))
                if answer.status not in _REFUSAL_STATUSES or not call.advice:
                    return await forward(request, answer, read, partial(self._runs.end, call, read))
            # Some chat templates take no system message, and advice may exceed the context.
            _LOGGER.warning("The provider refuses a call of the run %r with advice; it goes on without it.", run)
            return await self._forward(request, path, body)
        except EndpointFailure:
            read = None
            raise
        except asyncio.CancelledError:
            # The agent has left, and will call again; of a stream it has seen what was read.
            read = read if read is not None and read.streams else None
            raise
        finally:
            await self._runs.end(call, read)

    async def _forward(self, request: web.Request, path: str, body: Body) -> web.StreamResponse:
        async with self._upstream.answer(request, path, body) as answer:
            return await forward(request, answer)

    async def _score(self, request: web.Request) -> web.Response:
        run, task = _names(request)
        try:
            check_type(_headers(request), [JSON], request.path[:100])
            score = Score.model_validate(json_value(await _body(request)))
            task = storable(score.task) or task
            # A score is taken even if its sender does not wait.
            if score.invalid:
                receipt = await asyncio.shield(self._runs.discard(run, task, score.cause))
            else:
                receipt = await asyncio.shield(self._runs.score(run, task, parse_score(score.score)))
        except NoAttemptToScore as error:
            return error_response(409, f"{error} Give a score after an attempt, or `invalid` for one that broke down.")
        except ValidationError as error:
            return error_response(422, f"The score cannot be read: {first_fault(error)}.")
        except (StoreError, ConfigError) as error:
            return error_response(503, str(error))
        except (ValueError, RecursionError) as error:
            return error_response(422, f"The score cannot be read: {error}.")
        return web.json_response(asdict(receipt))


def error_response(status: int, sentence: str) -> web.Response:
    """Return an error in the form of the OpenAI API, which its clients show."""
    return web.json_response({"error": {"message": sentence, "type": "retroformer_gateway"}}, status=status)


@web.middleware
async def guard(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what no program or page of this machine sends, as all servers of this project do."""
    headers = _headers(request)
    request.app[BUSY].add(request.protocol)
    try:
        check_framing(request.raw_path, headers)
        check_sender(headers, loopback=True)
        return await handler(request)
    except Refusal as refusal:
        answer = error_response(refusal.status, refusal.message)
        answer.headers.update(refusal.headers)
        return answer
    finally:
        request.app[BUSY].discard(request.protocol)


def _headers(request: web.Request) -> Headers:
    return [(name.lower(), value) for name, value in request.headers.items()]


async def _body(request: web.Request) -> bytes:
    """Return the body of a request. Raises Refusal."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise Refusal(408, f"The request body was not sent within {BODY_SECONDS:.0f} seconds.") from None
    except (ConnectionResetError, RuntimeError):  # aiohttp raises the second one after the connection is closed.
        raise Refusal(400, "The client left before it had sent the request body.") from None


async def _health(_: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _no_such_route(request: web.Request) -> web.Response:
    return error_response(
        404, f"The gateway has no route {request.path[:200]!r}: use /v1, /runs/NAME/v1 or /runs/NAME/score."
    )


def _names(request: web.Request) -> tuple[str, str]:
    """Return run and task of a request; empty if it names none. The path takes precedence. Raises Refusal."""
    run, task = (request.headers.get(name, "") for name in RUN_HEADERS)
    if "run" in request.match_info:
        run = request.raw_path.split("/", 3)[2]
    return _name(run, "run"), _name(task, "task")


def _name(written: str, what: str) -> str:
    """Return a name without its percent-encoding. Raises Refusal: a name that were changed would be another one."""
    try:
        name = unquote(written, errors="strict")
    except UnicodeDecodeError:
        name = ""
    if len(name) > _LONGEST_NAME or storable(name) != name or (written and not name):
        limits = f"at most {_LONGEST_NAME} characters of UTF-8 text, percent-encoded"
        raise Refusal(400, f"The name of the {what} cannot be stored: name it in {limits}.")
    return name


def _path_of(request: web.Request) -> str:
    """Return path and query after `/v1` as the agent wrote them, percent-encoded. Raises Refusal."""
    if {".", ".."}.intersection(unquote(request.raw_path.partition("?")[0]).split("/")):
        raise Refusal(400, "The path has dot segments, which may lead out of the provider's address: leave them out.")
    if "run" in request.match_info:
        return request.raw_path.split("/", 3)[3].removeprefix("v1")
    return request.raw_path.removeprefix("/v1")


def _with_advice(request: Mapping[str, Any], advice: str) -> dict[str, Any]:
    """Return a request whose system message ends with the advice; one is added in front if there is none."""
    messages = list(request["messages"])
    for place, message in enumerate(messages):
        if isinstance(message, Mapping) and message.get("role") in ("system", "developer"):
            content = message.get("content")
            if isinstance(content, list):
                content = [*content, {"type": "text", "text": advice}]
            else:
                content = f"{content}\n\n{advice}" if content else advice
            messages[place] = {**message, "content": content}
            break
    else:
        messages.insert(0, {"role": "system", "content": advice})
    return {**request, "messages": messages}
