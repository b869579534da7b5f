"""Our worker: serves base and adapters to FastChat's API server, and answers its requests to a controller.

There is one worker, so there is no controller that others could register with. FastChat's own worker is not used: it
counts requests with a semaphore that leaks on every error, and holds a thread for every request. The supervisor starts
this module with the socket to listen on and the secrets of the run; requests without the secret are refused.
"""

import argparse
import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastchat.constants import ErrorCode

from retroformer.errors import run_command
from retroformer.models.base_dtype import serving_dtype
from retroformer.models.embedded import base_model_folder
from retroformer.models.quantization import Quantization
from retroformer.promotions.history import History
from retroformer.provenance import Provenance, ServedModel, package_versions

from .api.asgi import KeyRequired, StopWhenClientLeaves
from .api.bounds import ANSWERS_AT_ONCE
from .api.connections import BoundedConnection, allow_many_files
from .api.marked_prompt import MarkedPrompt
from .api.request import (
    Parameters,
    Refusal,
    TooLong,
    choices,
    refuse_unsupported,
    sampling,
    seeds,
    stop_strings,
    tokens_of_prompt,
)
from .api.worker_client import PIECE_END
from .engine.best_of import Target, write_best
from .engine.engine import Engine
from .engine.generation import DecodedText, Output, TextGeneration
from .engine.latest import Latest
from .engine.model import Model
from .hand_over import LoadedAdapters, add_worker_routes
from .private import read_private
from .probe import HEALTH
from .promoted import PromotedReflector
from .room import require_room
from .targets import reward_names, served_targets

STUCK_SECONDS = 900.0
"""Duration after which a forward pass counts as stuck: prompts are read in chunks of at most 2,048 tokens."""


class Worker:
    """Serves one base model with several adapters, under every name of `provenance.models`."""

    def __init__(
        self,
        model: Model,
        engine: Engine,
        targets: Mapping[str, Target],
        provenance: Provenance,
        marked_prompt: MarkedPrompt,
    ) -> None:
        self._model = model
        self._engine = engine
        self.targets = targets
        self.changing = threading.RLock()
        """Held while the served names are replaced."""
        self._marked_prompt = marked_prompt
        self.provenance = provenance

    def replace_models(self, targets: Mapping[str, Target], models: Mapping[str, ServedModel]) -> None:
        """Serve these names from now on, with this provenance."""
        self.targets = targets
        self.provenance = self.provenance.model_copy(update={"models": models})

    @property
    def healthy(self) -> bool:
        """True if requests can finish: the engine's thread lives and no pass is stuck."""
        return self._engine.alive and self._engine.pass_seconds < STUCK_SECONDS

    def list_models(self) -> dict[str, list[str]]:
        return {"models": list(self.targets)}

    def get_status(self) -> dict[str, Any]:
        return {"model_names": list(self.targets), "speed": 1, "queue_length": self._engine.load}

    def get_conv_template(self) -> dict[str, Any]:
        return {"conv": self._marked_prompt.template()}

    def model_details(self) -> dict[str, int]:
        return {"context_length": self._model.context_tokens}

    def count_token(self, params: Parameters) -> dict[str, int]:
        try:
            return {"count": len(self._prompt(params)), "error_code": 0}
        except TooLong as refusal:
            return {"count": refusal.tokens, "error_code": 0}
        except Refusal:
            return {"count": 0, "error_code": 0}  # The generation that follows is refused with its reason.

    async def generate(self, params: Parameters) -> dict[str, Any]:
        """Return FastChat's response to one request, once it is finished."""
        answer: dict[str, Any] = {}
        async for answer in self.stream({**params, "stream": False}):  # noqa: B007  The last one is the answer.
            continue
        return answer

    async def stream(self, params: Parameters) -> AsyncIterator[dict[str, Any]]:
        """Yield FastChat's responses to one request, each with the whole text so far; a best-of request yields one.

        If the caller stops iterating, the rows of the request are freed.
        """
        if (target := self.targets.get(str(params.get("model")))) is not None and target.silent:
            yield _answer(Output(text="", finish_reason="stop"))
            return
        outputs = Latest[Output](asyncio.get_running_loop())
        try:
            generation, *others = await asyncio.to_thread(self._candidates, params)
        except Refusal as refusal:
            yield refusal.answer
            return
        if others:
            reward = self.targets[params["model"]].reward
            yield _answer(await write_best(self._engine, self._model, (generation, *others), reward))
            return
        generation.deliver = outputs.put
        self._engine.submit(generation)
        try:
            while True:
                output = await outputs.get()
                yield _answer(output)
                if output.finish_reason:
                    return
        finally:
            generation.cancelled = True

    def _candidates(self, params: Parameters) -> list[TextGeneration]:
        """Return the generations for a request: one answer, or several to choose from.

        Raises:
            Refusal: the request cannot be answered.
        """
        target = self.targets.get(str(params.get("model")))
        if target is None:
            raise Refusal(ErrorCode.INVALID_MODEL, f"No model {params.get('model')!r} is served here.")
        if self._engine.load >= ANSWERS_AT_ONCE:
            raise Refusal(ErrorCode.ENGINE_OVERLOADED, f"{ANSWERS_AT_ONCE} answers are being written already.")
        refuse_unsupported(params)
        prompt = self._prompt(params)
        limit = int(params.get("max_new_tokens") or 256)
        if not prompt or len(prompt) + limit > self._model.context_tokens:
            raise Refusal(
                ErrorCode.CONTEXT_OVERFLOW,
                f"A prompt of {len(prompt)} tokens and {limit} new ones: at least 1 and at most "
                f"{self._model.context_tokens} in all can be served.",
            )
        # With greedy sampling all candidates would be the same.
        count = 1 if sampling(params).greedy else target.answers
        return [self._generation(params, prompt, limit, target, seed) for seed in seeds(params, count)]

    def _generation(
        self, params: Parameters, prompt: list[int], limit: int, target: Target, sampling_seed: int
    ) -> TextGeneration:
        end = min(self._model.stop_tokens)
        choice = choices(params, self._model.encode, end, limit)
        stop_tokens = set(params.get("stop_token_ids") or ()) | ({end} if choice else set())
        return TextGeneration(
            prompt=prompt,
            adapter=target.adapter,
            limit=limit,
            sampling=sampling(params),
            stop_tokens=frozenset(stop_tokens | (set() if params.get("ignore_eos") else self._model.stop_tokens)),
            transcript=DecodedText(self._model.decode, stop_strings(params)),
            deliver=lambda output: None,
            generator=torch.Generator().manual_seed(sampling_seed),
            choices=choice,
            streaming=bool(params.get("stream", True)) and target.answers == 1,
            in_tokens="prompt_token_ids" in params or bool(params.get("return_tokens")),
            echo=params["prompt"] if params.get("echo") else "",
        )

    def _prompt(self, params: Parameters) -> list[int]:
        if "prompt_token_ids" in params:
            return tokens_of_prompt(params, self._model.vocabulary)
        prompt = str(params.get("prompt", ""))
        if len(prompt) > self._model.longest_text:
            raise TooLong(self._model.context_tokens)
        messages = self._marked_prompt.messages(prompt)
        if messages is None:
            return self._model.encode(prompt)
        try:
            return self._model.encode(self._model.render(messages))
        except Exception as error:  # Chat templates are third-party programs and may raise anything.
            raise Refusal(ErrorCode.PARAM_OUT_OF_RANGE, f"The model's chat template refuses this: {error}") from error


def application(worker: Worker, address: str) -> FastAPI:
    """Return an app with the routes of FastChat's workers and controllers, /provenance and /health."""
    app = FastAPI()

    @app.post("/worker_generate")
    async def generate(request: Request) -> JSONResponse:
        return JSONResponse(await worker.generate(await request.json()))

    @app.post("/worker_generate_stream")
    async def generate_stream(request: Request) -> StreamingResponse:
        params = await request.json()

        async def lines() -> AsyncIterator[bytes]:
            async for answer in worker.stream({**params, "stream": True}):
                yield json.dumps(answer).encode() + PIECE_END

        return StreamingResponse(lines())

    @app.post("/worker_get_embeddings")
    async def embeddings() -> dict[str, Any]:
        return Refusal(ErrorCode.PARAM_OUT_OF_RANGE, "Embeddings are not served here.").answer

    @app.post("/count_token")
    async def count_token(request: Request) -> dict[str, int]:
        return await asyncio.to_thread(worker.count_token, await request.json())

    # The first two belong to controllers.
    facts: dict[str, Callable[[], Any]] = {
        "/refresh_all_workers": worker.list_models,
        "/list_models": worker.list_models,
        "/worker_get_status": worker.get_status,
        "/worker_get_conv_template": worker.get_conv_template,
        "/model_details": worker.model_details,
    }
    for path, answer in facts.items():
        app.post(path, response_model=None)(answer)

    @app.post("/get_worker_address")
    async def get_worker_address() -> dict[str, str]:
        return {"address": address}

    @app.get(HEALTH)
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ready"}) if worker.healthy else JSONResponse({"status": "stuck"}, 503)

    app.get("/provenance", response_model=Provenance)(lambda: worker.provenance)
    return app


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="as train.base_model")
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--quantization", choices=get_args(Quantization), default="none")
    parser.add_argument("--max-batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--alias", action="append", default=[], metavar="ALIAS=NAME")
    parser.add_argument("--reward", action="append", default=[], metavar="NAME+bestN=FOLDER of a reward model")
    parser.add_argument("--promotions", type=Path, metavar="FOLDER of the run", help="serve its promoted reflector")
    parser.add_argument("--follow", action="store_true", help="serve later promotions, too")
    parser.add_argument("--hand-over", action="store_true", help="take adapters and prompts in token ids")
    parser.add_argument(
        "--template-settings", type=json.loads, default={}, help="as train.chat_template_kwargs, in JSON"
    )
    parser.add_argument("--private", type=int, required=True, help="file descriptor with the secrets of the run")
    parser.add_argument("--socket", type=int, required=True, help="file descriptor")
    arguments = parser.parse_args(argv)
    private = read_private(arguments.private)
    allow_many_files()
    torch.set_num_threads(arguments.threads)
    folders = {name: Path(folder) for name, folder in (pair.split("=", 1) for pair in arguments.adapter)}
    aliases = dict(pair.split("=", 1) for pair in arguments.alias)
    reward_folders = {name: Path(folder) for name, folder in (pair.split("=", 1) for pair in arguments.reward)}
    base = base_model_folder(arguments.base)
    settings = arguments.template_settings
    targets, models = served_targets(base, folders, aliases, reward_folders, settings)
    loaded = {targets[name].adapter: folder for name, folder in folders.items()}
    rewards = {name: folder for folder, name in reward_names(reward_folders).items()}
    dtype = serving_dtype(arguments.dtype, base, torch)
    require_room(base, dtype, arguments.quantization)
    model = Model(base, loaded, dtype, rewards, settings, arguments.quantization)
    provenance = Provenance(models=models, dtype=dtype, quantization=model.quantization, versions=package_versions())
    engine = Engine(model, arguments.max_batch)
    worker = Worker(model, engine, targets, provenance, MarkedPrompt(private.marker))
    if arguments.promotions is not None:
        promoted = PromotedReflector(worker, model, engine, History(arguments.promotions))
        promoted.update()
        if arguments.follow:
            threading.Thread(target=promoted.follow, name="promotions", daemon=True).start()
    listening = socket.socket(fileno=arguments.socket)
    host, port = listening.getsockname()[:2]
    app = application(worker, f"http://{host}:{port}")
    if arguments.hand_over:
        add_worker_routes(app, worker, LoadedAdapters(worker, model, engine))
    guarded = KeyRequired(StopWhenClientLeaves(app), [private.worker_key])
    config = uvicorn.Config(
        guarded, http=BoundedConnection, ws="none", lifespan="off", log_level="error", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    asyncio.run(server.serve(sockets=[listening]))


def _answer(output: Output) -> dict[str, Any]:
    if output.failure:
        return Refusal(ErrorCode.INTERNAL_ERROR, output.failure).answer
    return {
        "text": output.text,
        "error_code": 0,
        "finish_reason": output.finish_reason,
        "usage": {
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.completion_tokens,
            "total_tokens": output.prompt_tokens + output.completion_tokens,
        },
        "cached_tokens": output.cached_tokens,
        **({"token_ids": output.tokens, "token_logprobs": output.log_probs} if output.tokens else {}),
    }


if __name__ == "__main__":
    run_command(main)
