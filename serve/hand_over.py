"""What a training process asks of a worker: to take its policy's adapter, to draw in token ids, to give it back.

A worker has these routes only where the page has `serve.hand_over`; the API server, which knows the keys, calls them.
The protocol is vLLM's, but for the hashes that say what was loaded.
"""

import itertools
import os
import re
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeAlias

from fastapi import FastAPI, HTTPException
from fastapi.encoders import jsonable_encoder
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from retroformer.errors import MissingInput
from retroformer.own_server import seed_field
from retroformer.provenance import Provenance, ServedModel, folder_sha256
from serve import bounds
from serve.adapters import WEIGHTS
from serve.best_of import Target
from serve.engine import Engine
from serve.model import Model

MOST = 8
"""Adapters that were handed over and not taken back: a trainer has one at a time, unless it was killed."""
NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Training names its adapters by the folders that they lie in, whose names are no longer."""
LARGEST_BYTES = 16 * 1024**3
"""Of the files beside an adapter: it is read as a whole. Rank 256 on all layers of a model of 70B has 13 GB."""


class Answering(Protocol):
    """A worker, as far as it is needed here."""

    targets: Mapping[str, Target]
    provenance: Provenance

    def answer_to(self, targets: Mapping[str, Target], models: Mapping[str, ServedModel]) -> None:
        """Have these names from now on."""
        ...

    async def generate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """FastChat's answer to one request, once it is finished."""
        ...


class HandedOver:
    """The adapters that a worker was handed. Its methods may be called from any thread."""

    def __init__(self, worker: Answering, model: Model, engine: Engine) -> None:
        self._worker, self._model, self._engine = worker, model, engine
        self._adapters: dict[str, str] = {}
        """The engine's names, by those that are asked for."""
        self._numbers = itertools.count()
        self._change = threading.Lock()

    def take(self, name: str, folder: Path) -> ServedModel:
        """Read the adapter in `folder`, and answer to `name` with it; returns what now answers.

        Its hash is that of the files as this machine saw them before it read the weights.

        Raises:
            HTTPException: the name is not free, there are too many, or there is no adapter that can be served.
        """
        if not NAME.fullmatch(name):
            raise HTTPException(400, f"The name {name[:300]!a} is not free: one is {NAME.pattern}.")
        with self._change:
            _require_readable(folder)
            if name in self._adapters:
                known = self._worker.provenance.models[name]
                if known.adapter_sha256 == folder_sha256(folder):
                    return known  # Asked for once more: a client repeats what it got no answer to.
            if name in self._worker.targets:
                raise HTTPException(400, f"The name {name!r} is not free: take another one.")
            if len(self._adapters) >= MOST:
                held = ", ".join(self._adapters)
                raise HTTPException(
                    400, f"{MOST} adapters are held, and no more: give one back at /v1/unload_lora_adapter ({held})."
                )
            # A name that the engine has not known: it keeps computed beginnings of prompts under those it has.
            adapter = f"handed{next(self._numbers)}"
            try:
                sha256 = folder_sha256(folder)
                self._model.load_adapter(adapter, folder)
            except MissingInput as error:
                raise HTTPException(400, str(error)) from error
            models = self._worker.provenance.models
            served = models["base"].model_copy(update={"adapter_sha256": sha256})
            self._adapters[name] = adapter
            self._worker.answer_to({**self._worker.targets, name: Target(adapter)}, {**models, name: served})
            return served

    def give_back(self, name: str) -> None:
        """Forget an adapter that was handed over.

        Raises:
            HTTPException: there is none of this name, or requests for it are not finished.
        """
        with self._change:
            if name not in self._adapters:
                raise HTTPException(404, f"No adapter {name!r} was handed over.")
            if self._engine.works_on(self._adapters[name]):
                raise HTTPException(409, f"Requests for {name!r} are not finished.")
            targets, models = dict(self._worker.targets), dict(self._worker.provenance.models)
            del targets[name], models[name]
            self._worker.answer_to(targets, models)
            self._model.unload_adapter(self._adapters.pop(name))


def _require_readable(folder: Path) -> None:
    """Raise HTTPException where reading `folder` as an adapter would fail, or never end."""
    try:
        kinds = {file.name: file.stat() for file in os.scandir(folder)}
    except (OSError, ValueError):  # The latter where a path cannot be one.
        kinds = {}
    if WEIGHTS not in kinds:
        raise HTTPException(404, f"There is no {WEIGHTS} in {str(folder)[:300]!a} on the server's machine.")
    if any(not (stat.S_ISREG(kind.st_mode) or stat.S_ISDIR(kind.st_mode)) for kind in kinds.values()):
        raise HTTPException(400, f"{str(folder)!a} holds what is neither a file nor a folder.")
    if sum(kind.st_size for kind in kinds.values()) > LARGEST_BYTES:
        raise HTTPException(400, f"The files in {str(folder)!a} are larger than {LARGEST_BYTES} bytes.")


class Adapter(BaseModel):
    """An adapter to load or to unload, in vLLM's words."""

    lora_name: str
    lora_path: Path = Path()


Zero: TypeAlias = Annotated[float, Field(ge=0, le=0)]
One: TypeAlias = Annotated[float, Field(ge=1, le=1)]


class TokenCompletion(BaseModel):
    """A completion to draw in token ids, in the words of the OpenAI protocol and vLLM's.

    Other words, and other values of those that only have one, are refused: nothing that was asked for is left out.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    model: str
    prompt: list[int]
    max_tokens: Annotated[int, Field(ge=1, le=bounds.LARGEST_COUNT)] = 16
    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=bounds.LARGEST_COUNT)] = -1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop_token_ids: Annotated[list[int], Field(max_length=bounds.STOP_TOKENS)] = []
    ignore_eos: bool = False
    min_p: Zero = 0.0
    repetition_penalty: One = 1.0
    presence_penalty: Zero = 0.0
    frequency_penalty: Zero = 0.0
    n: Literal[1] = 1
    echo: Literal[False] = False
    stream: Literal[False] = False
    logprobs: Literal[0] = 0
    """Those of the drawn tokens and of no others, which every answer has."""
    return_token_ids: Literal[True] = True

    def parameters(self) -> dict[str, Any]:
        """The same in FastChat's words, as its API server says it to a worker."""
        return {
            "model": self.model,
            "prompt_token_ids": self.prompt,
            "max_new_tokens": self.max_tokens,
            "stop": [] if self.seed is None else [seed_field(self.seed % 2**63)],
            **self.model_dump(include={"temperature", "top_p", "top_k", "stop_token_ids", "ignore_eos"}),
        }


def add_worker_routes(app: FastAPI, worker: Answering, adapters: HandedOver) -> None:
    """Give a worker's application the routes that `serve.openai_routes` asks for."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Any, error: RequestValidationError) -> JSONResponse:
        # As vLLM does, and the OpenAI protocol. What was sent may be what JSON cannot say.
        faults = [{name: fault[name] for name in ("type", "loc", "msg")} for fault in error.errors()]
        return JSONResponse({"detail": jsonable_encoder(faults)}, status_code=400)

    @app.post("/load_lora_adapter")
    def load(asked: Adapter) -> dict[str, Any]:
        served = adapters.take(asked.lora_name, asked.lora_path)
        # vLLM answers with a sentence alone, and so proves nothing of what it has read.
        return {"lora_name": asked.lora_name, **served.model_dump(), "dtype": worker.provenance.dtype}

    @app.post("/unload_lora_adapter")
    def unload(asked: Adapter) -> str:
        adapters.give_back(asked.lora_name)
        return f"Unloaded {asked.lora_name}."

    @app.post("/draw_tokens")
    async def draw(asked: TokenCompletion) -> dict[str, Any]:
        if asked.model not in worker.targets:
            raise HTTPException(404, f"No model {asked.model[:300]!a} is served here.")
        answer = await worker.generate(asked.parameters())
        if answer["error_code"]:
            # Codes of FastChat's are those of HTTP with two digits more, and some say 403 of what is a bad request.
            status = answer["error_code"] // 100
            raise HTTPException(400 if status == 403 else status, answer["text"])
        tokens, log_probs = answer["token_ids"], answer["token_logprobs"]
        choice = {
            "index": 0,
            "text": answer["text"],
            "finish_reason": answer["finish_reason"],
            "token_ids": tokens,
            "logprobs": {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": log_probs},
        }
        return {"object": "text_completion", "model": asked.model, "choices": [choice], "usage": answer["usage"]}
