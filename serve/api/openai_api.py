"""FastChat's OpenAI API server, with our own checks before it and our worker in place of its controller.

1. Streaming under pydantic 2: two of its response classes get the `json()` of pydantic 1, which it calls.
2. The two functions that reach a controller and its workers are replaced (`serve.api.worker_client`): there is one
   worker, which also answers for a controller, and only if the request has the secret of this run.
3. Requests are checked as HTTP (`serve.api.asgi`), and then before its handlers get them (`serve.api.routes`).

Its `create_openai_api_server` is not called: it would allow every web page, and log the keys. The supervisor starts
this module with the socket to listen on and the secrets of the run.
"""

import argparse
import asyncio
import json
import socket
import warnings
from typing import Any

import uvicorn
from fastchat.protocol.openai_api_protocol import ChatCompletionStreamResponse, CompletionStreamResponse
from fastchat.serve import openai_api_server
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from ..private import Private, read_private
from .asgi import AnswerLimit, KeyRequired, OwnNameRequired, ReadyRequired, StopWhenClientLeaves, WholeBody
from .connections import BoundedConnection, allow_many_files
from .routes import add_routes
from .worker_client import Readiness, WorkerClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="file descriptor")
    parser.add_argument("--private", type=int, required=True, help="file descriptor with the secrets of the run")
    parser.add_argument("--loopback", action="store_true", help="only this machine can reach the socket")
    parser.add_argument("--worker", required=True, metavar="URL")
    parser.add_argument("--hand-over", action="store_true", help="take adapters and prompts in token ids")
    arguments = parser.parse_args()
    # FastChat's model list has a boolean where its class declares text; the response is correct all the same.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings")
    streamed: tuple[Any, ...] = (ChatCompletionStreamResponse, CompletionStreamResponse)
    for response in streamed:
        response.json = _json_as_in_pydantic_1
    allow_many_files()
    asyncio.run(serve(arguments, read_private(arguments.private)))


async def serve(arguments: argparse.Namespace, private: Private) -> None:
    """Serve until the process is stopped."""
    worker, readiness = WorkerClient(arguments.worker, private.worker_key), Readiness()
    openai_api_server.app_settings.controller_address = worker.url
    openai_api_server.fetch_remote = worker.fetch
    openai_api_server.generate_completion_stream = worker.stream
    add_routes(openai_api_server.app, worker, readiness, arguments.hand_over)
    app = guarded(openai_api_server.app, arguments, private, readiness)
    # Log errors only: strangers could fill the disk with warnings about requests that are not HTTP.
    config = uvicorn.Config(
        app, http=BoundedConnection, ws="none", lifespan="off", log_level="error", timeout_graceful_shutdown=1
    )
    watching = asyncio.create_task(readiness.watch(worker))
    try:
        await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=arguments.socket)])
    finally:
        watching.cancel()
        await worker.close()


def guarded(app: ASGIApp, arguments: argparse.Namespace, private: Private, readiness: Readiness) -> ASGIApp:
    """Return `app` behind all the middleware."""
    app = StopWhenClientLeaves(AnswerLimit(app))
    app = ReadyRequired(WholeBody(app), lambda: readiness.was_ready)
    if arguments.loopback and not private.api_keys:
        app = OwnNameRequired(app)
    # No web page of another origin may read a response; CORS preflight requests are refused.
    return CORSMiddleware(KeyRequired(app, private.api_keys), allow_origins=())


def _json_as_in_pydantic_1(
    response: Any, *, exclude_unset: bool = False, exclude_none: bool = False, ensure_ascii: bool = True
) -> str:
    content = response.model_dump(mode="json", exclude_unset=exclude_unset, exclude_none=exclude_none)
    return json.dumps(content, ensure_ascii=ensure_ascii)


if __name__ == "__main__":
    main()
