"""FastChat's OpenAI API server, with additions around it; its own code runs unmodified.

1. Streaming under pydantic 2: two of its response classes are given the old `json()` that it calls on them.
2. A limit to request bodies, and an end to requests whose client has left.
3. GET /provenance, which passes on what the worker says about its models.
4. Where asked for, what training needs: see `serve.token_api`.

Started by the supervisor with the socket to listen on; other arguments are FastChat's.
"""

import argparse
import json
import os
import socket
import sys
import warnings
from typing import Any

import aiohttp
import uvicorn
from fastapi import Depends
from fastapi.responses import JSONResponse
from fastchat.protocol.openai_api_protocol import ChatCompletionStreamResponse, CompletionStreamResponse
from fastchat.serve import openai_api_server

from serve.asgi import BodyLimit, StopWhenClientLeaves
from serve.openai_api_keys import API_KEYS_VARIABLE
from serve.token_api import add_api_routes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="file descriptor")
    parser.add_argument("--body-bytes", type=int, required=True)
    parser.add_argument("--hand-over", action="store_true", help="take adapters and prompts in token ids")
    arguments, fastchat_arguments = parser.parse_known_args()
    # FastChat's model list has a flag where its class says text; the answer is right all the same.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")
    streamed: tuple[Any, ...] = (ChatCompletionStreamResponse, CompletionStreamResponse)
    for response in streamed:
        response.json = _json_as_in_pydantic_1
    keys = os.environ.get(API_KEYS_VARIABLE)
    sys.argv[1:] = [*fastchat_arguments, *(["--api-keys", keys] if keys else [])]
    openai_api_server.create_openai_api_server()
    app = openai_api_server.app
    if arguments.hand_over:
        add_api_routes(app)
    app.add_middleware(BodyLimit, limit_bytes=arguments.body_bytes)
    app.add_middleware(StopWhenClientLeaves)
    app.get("/provenance", dependencies=[Depends(openai_api_server.check_api_key)])(provenance)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    server.run(sockets=[socket.socket(fileno=arguments.socket)])


def _json_as_in_pydantic_1(
    response: Any, *, exclude_unset: bool = False, exclude_none: bool = False, ensure_ascii: bool = True
) -> str:
    page = response.model_dump(mode="json", exclude_unset=exclude_unset, exclude_none=exclude_none)
    return json.dumps(page, ensure_ascii=ensure_ascii)


async def provenance() -> JSONResponse:
    """What the worker behind the first listed model says; 503 while no worker is registered."""
    controller = openai_api_server.app_settings.controller_address
    models: Any = await openai_api_server.fetch_remote(f"{controller}/list_models", None, "models")
    if not models:
        return JSONResponse({"object": "error", "message": "No worker is ready yet.", "code": 503}, status_code=503)
    worker = await openai_api_server.get_worker_address(models[0])
    async with aiohttp.ClientSession() as session, session.get(f"{worker}/provenance") as answer:
        return JSONResponse(await answer.json(), status_code=answer.status)


if __name__ == "__main__":
    main()
