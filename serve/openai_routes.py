"""The routes that stand before FastChat's own: they check what is asked for, and say by the status what went wrong.

FastChat's handlers do the rest. What they refuse has the status 400 whatever the reason, and its code in the body.
"""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastchat.protocol.api_protocol import APITokenCheckRequest
from fastchat.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from fastchat.serve import openai_api_server

from serve.errors import RequestError, error_answer
from serve.openai_json import BAD_REQUEST, read_json
from serve.openai_request import Chat, Completion, TokenCheck
from serve.probe import HEALTH
from serve.worker_client import Readiness, WorkerClient, answer_numbers, numbers_up_to

STATUSES = frozenset({429, 500, 503})
"""Those that FastChat's codes may stand for, beside 400."""


def add_routes(app: FastAPI, worker: WorkerClient, readiness: Readiness, hand_over: bool) -> None:
    """Put the routes before those that FastChat's application has."""
    routes = Routes(app, worker, readiness, hand_over)
    router = APIRouter(default_response_class=JSONResponse)
    for path in ("/v1/chat/completions", "/api/v1/chat/completions"):
        router.post(path, response_model=None)(routes.chat)
    router.post("/v1/completions", response_model=None)(routes.complete)
    router.post("/api/v1/token_check", response_model=None)(routes.count_tokens)
    for path in ("/v1/embeddings", "/v1/engines/{model_name}/embeddings"):
        router.post(path, response_model=None)(refuse_embeddings)
    if hand_over:
        for path in ("/load_lora_adapter", "/unload_lora_adapter"):
            router.post(f"/v1{path}", response_model=None)(routes.hand_over)
    router.get("/provenance", response_model=None)(routes.provenance)
    router.get("/load", response_model=None)(routes.load)
    router.api_route(HEALTH, methods=["GET", "HEAD"], response_model=None)(routes.health)
    app.router.routes[:0] = router.routes
    app.router.redirect_slashes = False  # A redirection repeats the host that a client named, whatever it is.
    app.add_exception_handler(RequestError, _answer_refusal)


class Routes:
    """The handlers, and what they ask."""

    def __init__(self, app: FastAPI, worker: WorkerClient, readiness: Readiness, hand_over: bool) -> None:
        self._worker, self._readiness, self._hand_over = worker, readiness, hand_over
        # FastChat gives two handlers of chats one name, and the second takes other requests than the first.
        self._fastchat_chat = next(
            route.endpoint
            for route in app.routes
            if isinstance(route, APIRoute) and route.path == "/v1/chat/completions"
        )

    async def chat(self, request: Request) -> Any:
        asked = Chat.of(await _json(request))
        body = ChatCompletionRequest(**asked.for_fastchat())
        return await _answered(request, asked.answers, asked.n, self._fastchat_chat, body)

    async def complete(self, request: Request) -> Any:
        """A prompt in token ids is answered in token ids; one in words is FastChat's."""
        page = await _json(request)
        if self._hand_over and _is_token_list(page.get("prompt")):
            request.scope["take_places"](1)
            return await self._worker.ask("/draw_tokens", page)
        asked = Completion.of(page)
        body = CompletionRequest(**asked.for_fastchat())
        return await _answered(request, asked.answers, asked.n, openai_api_server.create_completion, body)

    async def count_tokens(self, request: Request) -> Any:
        asked = TokenCheck.of(await _json(request))
        models = await self._worker.fetch(f"{self._worker.url}/list_models", None, "models")
        for index, item in enumerate(asked.prompts):
            if item.model not in models:
                field = f"prompts.{index}.model"
                raise RequestError(BAD_REQUEST, f"{field}: no model {item.model!a} is served here.", field)
        return await openai_api_server.count_tokens(APITokenCheckRequest(**asked.model_dump()))

    async def hand_over(self, request: Request) -> JSONResponse:
        """Load or unload an adapter, by the path that was asked for."""
        return await self._worker.ask(request.url.path.removeprefix("/v1"), await _json(request))

    async def provenance(self) -> JSONResponse:
        """What the worker says about its models."""
        return await self._worker.ask("/provenance")

    async def load(self) -> dict[str, int]:
        """How many answers the worker is working on, in the words of vLLM's route of this name."""
        status = await self._worker.fetch(f"{self._worker.url}/worker_get_status", {}, "queue_length")
        return {"server_load": status}

    def health(self) -> JSONResponse:
        if self._readiness.now:
            return JSONResponse({"status": "ready"})
        worker_is_lost = self._readiness.once
        return error_answer(503, "The worker does not answer." if worker_is_lost else "The models are being loaded.")


async def refuse_embeddings() -> None:
    raise RequestError(BAD_REQUEST, "Embeddings are not served here.")


async def _answered(
    request: Request, answers: int, for_each: int, handler: Callable[[Any], Awaitable[Any]], asked: Any
) -> Any:
    """What FastChat's handler answers, with the status that its code stands for."""
    request.scope["take_places"](answers)
    answer_numbers.set(numbers_up_to(for_each))
    answer = await handler(asked)
    if isinstance(answer, JSONResponse) and answer.status_code == BAD_REQUEST:
        error = json.loads(bytes(answer.body))
        status = error["code"] // 100
        return error_answer(status if status in STATUSES else BAD_REQUEST, error["message"], code=error["code"])
    return answer


async def _json(request: Request) -> dict[str, Any]:
    # Other types are what a browser sends for a web page without asking whether it may.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, f"{request.url.path} takes a body of the type application/json only.")
    return read_json(await request.body())


def _is_token_list(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


async def _answer_refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, RequestError), "it is registered for no other"
    return refusal.answer
