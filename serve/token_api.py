"""What a training process asks of the API server, in vLLM's protocol: adapters that come and go, drawing in token ids.

FastChat's server knows neither. Where the page has `serve.hand_over`, these routes stand before its own, and pass on
to the worker what `serve.hand_over` answers there.
"""

from typing import Annotated, Any

import aiohttp
from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from fastchat.protocol.openai_api_protocol import CompletionRequest
from fastchat.serve import openai_api_server
from pydantic import BaseModel, ConfigDict, Field

TIMEOUT_SECONDS = 3600.0
"""A request may wait long behind others."""


class InTokens(BaseModel):
    """A request whose prompt is in token ids."""

    model_config = ConfigDict(extra="allow")

    model: str
    prompt: Annotated[list[Annotated[int, Field(strict=True)]], Field(min_length=1)]


def add_api_routes(app: FastAPI) -> None:
    """Put the routes before those that FastChat's application has."""
    router = APIRouter(dependencies=[Depends(openai_api_server.check_api_key)])
    router.post("/v1/completions", response_model=None)(complete)
    for path in ("/load_lora_adapter", "/unload_lora_adapter"):
        router.post(f"/v1{path}", response_model=None)(hand_over)
    app.router.routes[:0] = router.routes


async def complete(asked: Annotated[InTokens | CompletionRequest, Field(union_mode="left_to_right")]) -> Any:
    """A prompt in token ids is answered in token ids; one in words is FastChat's."""
    if isinstance(asked, InTokens):
        return await _ask_worker(asked.model, "/draw_tokens", asked.model_dump())
    return await openai_api_server.create_completion(asked)


async def hand_over(request: Request) -> JSONResponse:
    """Load or unload an adapter, by the path that was asked for."""
    # Other types are what a browser sends for a web page without asking whether it may.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        message = f"{request.url.path} takes a body of the type application/json only."
        return JSONResponse({"object": "error", "message": message}, status_code=415)
    return await _ask_worker("base", request.url.path.removeprefix("/v1"), await request.json())


async def _ask_worker(model: str, path: str, body: Any) -> JSONResponse:
    try:
        worker = await openai_api_server.get_worker_address(model)
    except ValueError as error:
        return JSONResponse({"object": "error", "message": str(error)}, status_code=404)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as session, session.post(worker + path, json=body) as answer:
        return JSONResponse(await answer.json(), status_code=answer.status)
