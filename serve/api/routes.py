"""Routes placed before FastChat's own: they check the request and give errors the right status.

FastChat's handlers do the rest. They refuse with the status 400 whatever the reason, and its code in the body.
"""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from fastapi.routing import APIRoute
from fastchat.protocol.api_protocol import APITokenCheckRequest
from fastchat.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from fastchat.serve import openai_api_server

from ..probe import HEALTH
from .errors import RequestError, error_answer
from .openai_json import BAD_REQUEST, read_json
from .openai_request import ChatRequest, PromptRequest, TokenCheck
from .worker_client import DrawnToken, Readiness, WorkerClient, answer_numbers, drawn_tokens, numbers_up_to

STATUSES = frozenset({429, 500, 503})
"""Statuses besides 400 that FastChat's codes may stand for."""


def add_routes(app: FastAPI, worker: WorkerClient, readiness: Readiness, hand_over: bool) -> None:
    """Put our routes before those of FastChat's application."""
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
    app.router.redirect_slashes = False  # A redirect would repeat whatever host the client named.
    app.add_exception_handler(RequestError, _answer_refusal)


class Routes:
    """Handlers of the routes."""

    def __init__(self, app: FastAPI, worker: WorkerClient, readiness: Readiness, hand_over: bool) -> None:
        self._worker, self._readiness, self._hand_over = worker, readiness, hand_over
        # FastChat has two chat handlers with one name, and the second one takes other requests.
        self._fastchat_chat = next(
            route.endpoint
            for route in app.routes
            if isinstance(route, APIRoute) and route.path == "/v1/chat/completions"
        )

    async def chat(self, request: Request) -> Any:
        chat = ChatRequest.parse(await _json(request))
        forwarded = ChatCompletionRequest(**chat.for_fastchat())
        if not chat.logprobs:
            return await _answered(request, chat.answers, chat.n, self._fastchat_chat, forwarded)
        with drawn_tokens() as tokens:
            answer = await _answered(request, chat.answers, chat.n, self._fastchat_chat, forwarded)
        return answer if isinstance(answer, JSONResponse) else _with_tokens(answer.model_dump(), tokens)

    async def complete(self, request: Request) -> Any:
        """Draw token ids for a prompt in token ids; leave a prompt in text to FastChat."""
        body = await _json(request)
        if self._hand_over and _is_token_list(body.get("prompt")):
            request.scope["reserve_answers"](1)
            return await self._worker.ask("/draw_tokens", body)
        completion = PromptRequest.parse(body)
        forwarded = CompletionRequest(**completion.for_fastchat())
        create = openai_api_server.create_completion
        return await _answered(request, completion.answers, completion.n, create, forwarded)

    async def count_tokens(self, request: Request) -> Any:
        check = TokenCheck.parse(await _json(request))
        models = await self._worker.fetch(f"{self._worker.url}/list_models", None, "models")
        for index, item in enumerate(check.prompts):
            if item.model not in models:
                field = f"prompts.{index}.model"
                raise RequestError(BAD_REQUEST, f"{field}: no model {item.model!a} is served here.", field)
        return await openai_api_server.count_tokens(APITokenCheckRequest(**check.model_dump()))

    async def hand_over(self, request: Request) -> JSONResponse:
        """Load or unload an adapter, depending on the path of the request."""
        return await self._worker.ask(request.url.path.removeprefix("/v1"), await _json(request))

    async def provenance(self) -> JSONResponse:
        """Return the worker's provenance of its models."""
        return await self._worker.ask("/provenance")

    async def load(self) -> dict[str, int]:
        """Return the number of answers in progress, in the format of vLLM's route of this name."""
        status = await self._worker.fetch(f"{self._worker.url}/worker_get_status", {}, "queue_length")
        return {"server_load": status}

    def health(self) -> JSONResponse:
        if self._readiness.is_ready:
            return JSONResponse({"status": "ready"})
        worker_is_lost = self._readiness.was_ready
        return error_answer(503, "The worker does not answer." if worker_is_lost else "The models are being loaded.")


async def refuse_embeddings() -> None:
    raise RequestError(BAD_REQUEST, "Embeddings are not served here.")


async def _answered(
    request: Request, answers: int, per_prompt: int, handler: Callable[[Any], Awaitable[Any]], forwarded: Any
) -> Any:
    """Return the response of FastChat's handler to `forwarded`, with the status that its error code stands for."""
    request.scope["reserve_answers"](answers)
    answer_numbers.set(numbers_up_to(per_prompt))
    answer = await handler(forwarded)
    if isinstance(answer, JSONResponse) and answer.status_code == BAD_REQUEST:
        error = json.loads(bytes(answer.body))
        status = error["code"] // 100
        return error_answer(status if status in STATUSES else BAD_REQUEST, error["message"], code=error["code"])
    return answer


def _with_tokens(answer: dict[str, Any], tokens: Sequence[DrawnToken]) -> JSONResponse:
    """Add the tokens of the only choice as vLLM does; FastChat's classes have no fields for them."""
    (choice,) = answer["choices"]
    choice["token_ids"] = [token for token, _ in tokens]
    choice["logprobs"] = {
        "content": [{"token": f"token_id:{token}", "logprob": log_prob} for token, log_prob in tokens]
    }
    return JSONResponse(answer)


async def _json(request: Request) -> dict[str, Any]:
    # A browser sends other types on behalf of a web page without a CORS preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError(415, f"{request.url.path} takes only bodies of the type application/json.")
    return read_json(await request.body())


def _is_token_list(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and all(type(token) is int for token in prompt)


async def _answer_refusal(_: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, RequestError), "it is registered only for RequestError"
    return refusal.answer
