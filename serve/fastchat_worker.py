"""Our worker as FastChat's servers see it: registered at their controller, and asked in their protocol.

FastChat's own worker is not used: it fails on transformers 5, counts requests with a semaphore that leaks on every
error, and holds a thread for each request.
"""

import asyncio
import json
import logging
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Any

from fastchat.constants import ErrorCode
from fastchat.conversation import Conversation, SeparatorStyle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from retroformer.endpoint.http_client import NoAnswer, fetch_now
from retroformer.endpoint.request_guard import Refusal
from retroformer.errors import ConfigError

from .answers import Answers
from .api import choice_of, usage_of
from .engine.generation import Output
from .guards import read_json, while_connected
from .requests import Chat, CompletionRequest, Prompt, RequestMessage, prompt_tokens

HEARTBEAT_SECONDS = 30.0
"""Pause between heartbeats; the controller forgets a worker after 90 seconds without one."""
POLL_SECONDS, CONTROLLER_SECONDS = 1.0, 10.0
PIECE_END = b"\0"
"""Delimiter after every piece of a stream."""
CONVERSATION = Conversation(
    name="ours",
    system_template="\0system\0{system_message}",
    roles=("\0user\0", "\0assistant\0"),
    sep_style=SeparatorStyle.NO_COLON_SINGLE,
    sep="",
    stop_token_ids=[],
)
"""Template with which FastChat writes a chat so that it can be read again, and written by the model's own template."""
_MARK = re.compile("\0(system|user|assistant)\0")
"""Mark before each message of such a chat: texts have no NUL."""
_CODES = {404: ErrorCode.INVALID_MODEL, 429: ErrorCode.ENGINE_OVERLOADED, 500: ErrorCode.INTERNAL_ERROR}

logger = logging.getLogger(__name__)


class FastChatWorker:
    """Routes of FastChat's worker protocol, and the registration at a controller."""

    _answers: Answers

    def __init__(self, controller: str, address: str) -> None:
        """Prepare a worker that others reach at `address`. No route may be called before `start`."""
        self._controller, self._address = controller, address

    def start(self, answers: Answers) -> None:
        """Register at the controller, and keep registered, with all names that are served."""
        self._answers = answers
        threading.Thread(target=self._stay_registered, name="controller", daemon=True).start()

    def routes(self) -> list[Route]:
        """Return the routes that the controller and FastChat's API server call. They send no key."""
        replies: dict[str, Callable[[], Any]] = {
            "/worker_get_status": lambda: _status(self._answers),
            "/worker_get_conv_template": lambda: {"conv": vars(CONVERSATION)},
            "/model_details": lambda: {"context_length": self._answers.model.context_tokens},
            "/worker_get_embeddings": lambda: _refusal(Refusal(400, "Embeddings are not served here.")),
        }

        async def respond(request: Request) -> Response:
            return JSONResponse(replies[request.url.path]())

        generating = {"/worker_generate": self._generate, "/worker_generate_stream": self._stream}
        handlers = {**generating, "/count_token": self._count, **dict.fromkeys(replies, respond)}
        return [Route(path, handler, methods=["POST"]) for path, handler in handlers.items()]

    async def _generate(self, request: Request) -> Response:
        try:
            body = _completion(await read_json(request), stream=False)
            (output,) = await while_connected(request, self._answers.write(body))
        except Refusal as refusal:
            return JSONResponse(_refusal(refusal))
        return JSONResponse(_piece(body, output))

    async def _stream(self, request: Request) -> Response:
        fields = await read_json(request)

        async def pieces() -> AsyncIterator[bytes]:
            try:
                body = _completion(fields, stream=True)
                async for latest in self._answers.stream(body):
                    yield json.dumps(_piece(body, latest[0])).encode() + PIECE_END
            except Refusal as refusal:
                yield json.dumps(_refusal(refusal)).encode() + PIECE_END

        return StreamingResponse(pieces())

    async def _count(self, request: Request) -> Response:
        model, prompt = self._answers.model, str((await read_json(request)).get("prompt", ""))
        try:
            count = len(await asyncio.to_thread(prompt_tokens, model, _prompt_of(prompt)))
        except Refusal as refusal:  # One that is too long, and not at fault in a field, is refused by its count.
            count = model.context_tokens + 1 if refusal.field is None else 0
        return JSONResponse({"count": count, "error_code": 0})

    def _stay_registered(self) -> None:
        answers, registered, last_beat, failure = self._answers, list[str](), time.monotonic(), ""
        while True:
            try:
                # Names change with promotions, and with adapters that are handed over.
                if registered != list(answers.served.targets):
                    status = _status(answers)
                    body = {"worker_name": self._address, "check_heart_beat": True, "worker_status": status}
                    self._tell_controller("/register_worker", {**body, "multimodal": False})
                    registered, last_beat = status["model_names"], time.monotonic()
                elif time.monotonic() - last_beat > HEARTBEAT_SECONDS:
                    beat = {"worker_name": self._address, "queue_length": answers.load}
                    is_known = json.loads(self._tell_controller("/receive_heart_beat", beat))["exist"]
                    registered, last_beat = registered if is_known else [], time.monotonic()
                failure = ""
            except (NoAnswer, ConfigError, ValueError, KeyError) as error:
                if str(error) != failure:
                    logger.error("The controller at %s does not answer: %s", self._controller, error)
                failure = str(error)
            time.sleep(POLL_SECONDS)

    def _tell_controller(self, path: str, body: dict[str, Any]) -> bytes:
        """Return the controller's response. Raises NoAnswer, ConfigError."""
        answer = fetch_now("POST", f"{self._controller}{path}", CONTROLLER_SECONDS, json=body)
        if answer.status != HTTPStatus.OK:
            raise NoAnswer(f"answered {answer.status}")
        return answer.content


def _prompt_of(text: str) -> Prompt:
    """Return a prompt of FastChat's API server as what it was made of: a chat, or a text."""
    if not text.startswith(CONVERSATION.system_template.partition("{")[0]):
        return text
    _, *parts = _MARK.split(text)
    # The last turn is the answer's; FastChat writes an empty system message if there is none.
    turns = [turn for turn in zip(parts[::2], parts[1::2], strict=True) if turn != ("system", "")][:-1]
    return Chat([RequestMessage.model_validate({"role": role, "content": content}) for role, content in turns])


class FastChatRequest(CompletionRequest):
    """A request of FastChat's API server, which writes chats as texts."""

    @property
    def prompts(self) -> Sequence[Prompt]:
        return [_prompt_of(prompt) if isinstance(prompt, str) else prompt for prompt in self.prompt]


def _completion(fields: dict[str, Any], *, stream: bool) -> CompletionRequest:
    """Return the request that FastChat's API server sends to a worker."""
    limit = fields.pop("max_new_tokens", None)
    return FastChatRequest.parse({**fields, "max_tokens": limit, "stream": stream})


def _piece(body: CompletionRequest, output: Output) -> dict[str, Any]:
    choice = choice_of(body, 0, output)
    text = {name: choice[name] for name in ("text", "finish_reason", "logprobs") if choice[name] is not None}
    return {"finish_reason": None, **text, "error_code": 0, "usage": usage_of(body, [output])}


def _refusal(refusal: Refusal) -> dict[str, Any]:
    code = _CODES.get(refusal.status, ErrorCode.PARAM_OUT_OF_RANGE)
    return {"text": refusal.message, "error_code": int(code)}


def _status(answers: Answers) -> dict[str, Any]:
    return {"model_names": list(answers.served.targets), "speed": 1, "queue_length": answers.load}
