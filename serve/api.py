"""The OpenAI protocol over HTTP, and the routes about the server itself."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from retroformer.endpoint.request_guard import Refusal

from .answers import Answers
from .engine.generation import Output
from .guards import openai_error, read_json, refusal_response, while_connected
from .requests import AdapterRequest, ChatRequest, CompletionRequest, GenerationRequest
from .supervisor import HEALTH

DONE = "data: [DONE]\n\n"


def application(routes: Sequence[Route]) -> Starlette:
    """Return an application that answers every refusal in OpenAI's form."""

    async def refused(request: Request, error: Any) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)  # Nobody reads it.
        if isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, HTTPException):
            path = request.url.path[:100]
            refusal = Refusal(error.status_code, f"{request.method} {path!a}: {error.detail}.")
        else:
            refusal = Refusal(500, f"The server failed: {type(error).__name__}.")
        return refusal_response(refusal)

    kinds: tuple[Any, ...] = (Refusal, HTTPException, ClientDisconnect, Exception)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, refused))
    app.router.redirect_slashes = False  # A redirect would repeat whatever host the client named.
    return app


class OpenAI:
    """Handlers of the routes; those but the health check run only after `loaded` is done."""

    def __init__(self, loaded: "asyncio.Future[Answers]") -> None:
        self._loaded = loaded

    def routes(self, *, hand_over: bool) -> list[Route]:
        """Return the routes. With `hand_over`, clients may load adapters."""
        routes = [
            Route("/v1/models", self.models),
            Route("/v1/models/{name:path}", self.model),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/v1/completions", self.complete, methods=["POST"]),
            Route("/provenance", self.provenance),
            Route("/load", self.load),
            Route(HEALTH, self.health),
        ]
        if hand_over:
            routes.append(Route("/v1/load_lora_adapter", self.hand_over, methods=["POST"]))
            routes.append(Route("/v1/unload_lora_adapter", self.unload_handed_over, methods=["POST"]))
        return routes

    @property
    def _answers(self) -> Answers:
        return self._loaded.result()

    async def models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_card(name) for name in self._answers.served.targets]})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._answers.served.targets:
            raise Refusal(404, f"No model {name[:200]!a} is served here.", "model")
        return JSONResponse(_card(name))

    async def chat(self, request: Request) -> Response:
        return await self._respond(request, ChatRequest.parse(await read_json(request)))

    async def complete(self, request: Request) -> Response:
        return await self._respond(request, CompletionRequest.parse(await read_json(request)))

    async def _respond(self, request: Request, body: GenerationRequest) -> Response:
        if not body.stream:
            outputs = await while_connected(request, self._answers.write(body))
            choices = [choice_of(body, number, output) for number, output in enumerate(outputs)]
            return JSONResponse({**_head(body), "choices": choices, "usage": usage_of(body, outputs)})
        outputs_so_far = self._answers.stream(body)
        # A request that is refused gets its status, which a stream that has begun cannot have.
        first = await while_connected(request, anext(outputs_so_far))
        return StreamingResponse(_events(body, first, outputs_so_far), media_type="text/event-stream")

    async def hand_over(self, request: Request) -> Response:
        """Load an adapter; the response proves what was read, where vLLM's is a sentence only."""
        body = AdapterRequest.parse(await read_json(request))
        served = self._answers.served
        model = await asyncio.to_thread(served.hand_over, body.lora_name, body.lora_path)
        here = served.provenance.model_dump(include={"dtype", "quantization"})
        return JSONResponse({"lora_name": body.lora_name, **model.model_dump(), **here})

    async def unload_handed_over(self, request: Request) -> Response:
        body = AdapterRequest.parse(await read_json(request))
        await asyncio.to_thread(self._answers.served.unload_handed_over, body.lora_name)
        return JSONResponse(f"Unloaded {body.lora_name}.")

    async def provenance(self, _: Request) -> Response:
        return Response(self._answers.served.provenance.model_dump_json(), media_type="application/json")

    async def load(self, _: Request) -> Response:
        """Return the number of texts in progress, in the format of vLLM's route of this name."""
        return JSONResponse({"server_load": self._answers.load})

    async def health(self, _: Request) -> Response:
        if not self._loaded.done():
            raise Refusal(503, "The models are being loaded.")
        if not self._answers.healthy:
            raise Refusal(503, "The models do not answer.")
        return JSONResponse({"status": "ready"})


def _card(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(time.time()), "owned_by": "retroformer"}


def usage_of(body: GenerationRequest, outputs: Sequence[Output]) -> dict[str, int]:
    """Return the numbers of tokens, in OpenAI's form."""
    prompt_tokens = sum(output.prompt_tokens for output in outputs[:: body.n])
    completion_tokens = sum(output.completion_tokens for output in outputs)
    total_tokens = prompt_tokens + completion_tokens
    return {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total_tokens}


def _head(body: GenerationRequest) -> dict[str, Any]:
    prefix, kind = ("chatcmpl", "chat.completion") if isinstance(body, ChatRequest) else ("cmpl", "text_completion")
    is_chunk = body.stream and prefix == "chatcmpl"
    head = {"id": f"{prefix}-{secrets.token_hex(12)}", "object": f"{kind}.chunk" if is_chunk else kind}
    return {**head, "created": int(time.time()), "model": body.model}


def choice_of(body: GenerationRequest, number: int, output: Output) -> dict[str, Any]:
    """Return an answer as one of the choices of a response."""
    is_chat, text = isinstance(body, ChatRequest), body.echoed(number) + output.text
    choice: dict[str, Any] = {"index": number, "finish_reason": output.finish_reason, "logprobs": None}
    choice |= {"message": {"role": "assistant", "content": text}} if is_chat else {"text": text}
    if body.with_tokens:
        names = [f"token_id:{token}" for token in output.tokens]
        pairs = zip(names, output.log_probs, strict=True)
        content = [{"token": name, "logprob": log_prob} for name, log_prob in pairs]
        choice["logprobs"] = {"content": content} if is_chat else {"tokens": names, "token_logprobs": output.log_probs}
        choice["token_ids"] = output.tokens
    return choice


async def _events(
    body: GenerationRequest, first: dict[int, Output], later: AsyncIterator[dict[int, Output]]
) -> AsyncIterator[str]:
    """Yield the events of a stream. A failure is the last event before `DONE`."""
    head, is_chat = _head(body), isinstance(body, ChatRequest)
    sent, latest = [0] * body.answers, dict[int, Output]()

    def event(number: int, reason: str | None, part: dict[str, Any]) -> str:
        choice = {"index": number, "finish_reason": reason, "logprobs": None, **part}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    def events(outputs: dict[int, Output]) -> str:
        parts = []
        latest.update(outputs)
        for number, output in outputs.items():
            text = body.echoed(number) + output.text
            piece, sent[number] = text[sent[number] :], len(text)
            if piece or output.finish_reason:
                part = {"delta": {"content": piece} if piece else {}} if is_chat else {"text": piece}
                parts.append(event(number, output.finish_reason, part))
        return "".join(parts)

    for number in range(body.answers if is_chat else 0):
        yield event(number, None, {"delta": {"role": "assistant", "content": ""}})
    try:
        yield events(first)
        async for outputs in later:
            yield events(outputs)
        if body.stream_options.get("include_usage"):
            usage = usage_of(body, [latest[number] for number in sorted(latest)])
            yield f"data: {json.dumps({**head, 'choices': [], 'usage': usage})}\n\n"
    except Refusal as error:
        yield f"data: {json.dumps(openai_error(error))}\n\n"
    yield DONE
