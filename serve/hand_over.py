"""Routes for a training process: load the adapter of its policy, draw completions in token ids, unload the adapter.

A worker has these routes only if the config has `serve.hand_over`; the API server, which knows the keys, calls them.
The protocol is vLLM's, except for the hashes of the loaded files.
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

from retroformer.endpoint.own_server import seed_field
from retroformer.errors import MissingInput
from retroformer.provenance import ADAPTER_WEIGHTS, Provenance, ServedModel, folder_sha256

from .api import bounds
from .engine.best_of import Target
from .engine.engine import Engine
from .engine.model import Model

MAX_ADAPTERS = 8
"""Limit of adapters loaded at once: a trainer has one at a time, unless it was killed."""
ADAPTER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
"""Allowed adapter names. Training names its adapters after their folders, whose names are no longer than this."""
MAX_FOLDER_BYTES = 16 * 1024**3
"""Limit of the files in an adapter's folder, which is read whole. Rank 256 on all layers of a 70B model has 13 GB."""


class AdapterHost(Protocol):
    """The part of a worker that is needed here."""

    targets: Mapping[str, Target]
    provenance: Provenance
    changing: threading.RLock
    """Held while the served names are replaced."""

    def replace_models(self, targets: Mapping[str, Target], models: Mapping[str, ServedModel]) -> None:
        """Serve these names from now on."""
        ...

    async def generate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return FastChat's response to one request, once it is finished."""
        ...


class LoadedAdapters:
    """Adapters that clients have loaded. Its methods may be called from any thread."""

    def __init__(self, worker: AdapterHost, model: Model, engine: Engine) -> None:
        self._worker, self._model, self._engine = worker, model, engine
        self._adapters: dict[str, str] = {}
        """The engine's names by the served names."""
        self._numbers = itertools.count()
        self._change = worker.changing

    def load(self, name: str, folder: Path) -> ServedModel:
        """Load the adapter in `folder`, serve it as `name`, and return its provenance.

        The hash in it is of the files as they were just before the weights were read.

        Raises:
            HTTPException: the name is not free, too many adapters are loaded, or the adapter cannot be served.
        """
        if not ADAPTER_NAME.fullmatch(name):
            raise HTTPException(400, f"The name {name[:300]!a} is not free: names match {ADAPTER_NAME.pattern}.")
        with self._change:
            _require_readable(folder)
            if name in self._adapters:
                loaded = self._worker.provenance.models[name]
                if loaded.adapter_sha256 == folder_sha256(folder):
                    return loaded  # A retry: the client did not get the first response.
            if name in self._worker.targets:
                raise HTTPException(400, f"The name {name!r} is not free: take another one.")
            if len(self._adapters) >= MAX_ADAPTERS:
                held = ", ".join(self._adapters)
                raise HTTPException(
                    400,
                    f"{MAX_ADAPTERS} adapters are loaded, which is the limit: unload one at /v1/unload_lora_adapter "
                    f"({held}).",
                )
            # A name that the engine never had: its prefix cache still has entries under earlier names.
            adapter = f"handed{next(self._numbers)}"
            try:
                sha256 = folder_sha256(folder)
                self._model.load_adapter(adapter, folder)
            except MissingInput as error:
                raise HTTPException(400, str(error)) from error
            models = self._worker.provenance.models
            served = models["base"].model_copy(update={"adapter_sha256": sha256})
            self._adapters[name] = adapter
            self._worker.replace_models({**self._worker.targets, name: Target(adapter)}, {**models, name: served})
            return served

    def unload(self, name: str) -> None:
        """Unload an adapter that a client has loaded.

        Raises:
            HTTPException: there is no such adapter, or requests for it are not finished.
        """
        with self._change:
            if name not in self._adapters:
                raise HTTPException(404, f"No adapter {name!r} was handed over.")
            if self._engine.works_on(self._adapters[name]):
                raise HTTPException(409, f"Requests for {name!r} are not finished.")
            targets, models = dict(self._worker.targets), dict(self._worker.provenance.models)
            del targets[name], models[name]
            self._worker.replace_models(targets, models)
            self._model.unload_adapter(self._adapters.pop(name))


def _require_readable(folder: Path) -> None:
    """Raise HTTPException if reading `folder` as an adapter would fail or never end."""
    try:
        kinds = {file.name: file.stat() for file in os.scandir(folder)}
    except (OSError, ValueError):  # ValueError if the text is no valid path.
        kinds = {}
    if ADAPTER_WEIGHTS not in kinds:
        raise HTTPException(404, f"There is no {ADAPTER_WEIGHTS} in {str(folder)[:300]!a} on the server's machine.")
    if any(not (stat.S_ISREG(kind.st_mode) or stat.S_ISDIR(kind.st_mode)) for kind in kinds.values()):
        raise HTTPException(400, f"{str(folder)!a} holds something that is neither a file nor a folder.")
    if sum(kind.st_size for kind in kinds.values()) > MAX_FOLDER_BYTES:
        raise HTTPException(400, f"The files in {str(folder)!a} are larger than {MAX_FOLDER_BYTES} bytes.")


class AdapterRequest(BaseModel):
    """Request to load or unload an adapter, in vLLM's format."""

    lora_name: str
    lora_path: Path = Path()


OnlyZero: TypeAlias = Annotated[float, Field(ge=0, le=0)]
OnlyOne: TypeAlias = Annotated[float, Field(ge=1, le=1)]


class TokenCompletionRequest(BaseModel):
    """Request to draw a completion in token ids, in the format of the OpenAI protocol and vLLM.

    Other fields, and other values of fields with one allowed value, are refused rather than ignored.
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
    min_p: OnlyZero = 0.0
    repetition_penalty: OnlyOne = 1.0
    presence_penalty: OnlyZero = 0.0
    frequency_penalty: OnlyZero = 0.0
    n: Literal[1] = 1
    echo: Literal[False] = False
    stream: Literal[False] = False
    logprobs: Literal[0] = 0
    """Log-probabilities of the drawn tokens only, which every response has."""
    return_token_ids: Literal[True] = True

    def parameters(self) -> dict[str, Any]:
        """Return the request in the format that FastChat's API server sends to a worker."""
        return {
            "model": self.model,
            "prompt_token_ids": self.prompt,
            "max_new_tokens": self.max_tokens,
            "stop": [] if self.seed is None else [seed_field(self.seed % 2**63)],
            **self.model_dump(include={"temperature", "top_p", "top_k", "stop_token_ids", "ignore_eos"}),
        }


def add_worker_routes(app: FastAPI, worker: AdapterHost, adapters: LoadedAdapters) -> None:
    """Add the routes that `serve.api.routes` calls to a worker's application."""

    @app.exception_handler(RequestValidationError)
    async def refuse(_: Any, error: RequestValidationError) -> JSONResponse:
        # Status 400 as in vLLM and the OpenAI protocol. The input is left out: it may not be representable in JSON.
        faults = [{name: fault[name] for name in ("type", "loc", "msg")} for fault in error.errors()]
        return JSONResponse({"detail": jsonable_encoder(faults)}, status_code=400)

    @app.post("/load_lora_adapter")
    def load(body: AdapterRequest) -> dict[str, Any]:
        served = adapters.load(body.lora_name, body.lora_path)
        # vLLM responds with a sentence only, which does not prove what it has read.
        here = {"dtype": worker.provenance.dtype, "quantization": worker.provenance.quantization}
        return {"lora_name": body.lora_name, **served.model_dump(), **here}

    @app.post("/unload_lora_adapter")
    def unload(body: AdapterRequest) -> str:
        adapters.unload(body.lora_name)
        return f"Unloaded {body.lora_name}."

    @app.post("/draw_tokens")
    async def draw(body: TokenCompletionRequest) -> dict[str, Any]:
        if body.model not in worker.targets:
            raise HTTPException(404, f"No model {body.model[:300]!a} is served here.")
        answer = await worker.generate(body.parameters())
        if answer["error_code"]:
            # FastChat's codes are HTTP statuses with two more digits; some have 403 for a bad request.
            status = answer["error_code"] // 100
            raise HTTPException(400 if status == 403 else status, answer["text"])
        tokens, log_probs = answer.get("token_ids", []), answer.get("token_logprobs", [])
        choice = {
            "index": 0,
            "text": answer["text"],
            "finish_reason": answer["finish_reason"],
            "token_ids": tokens,
            "logprobs": {"tokens": [f"token_id:{token}" for token in tokens], "token_logprobs": log_probs},
        }
        return {"object": "text_completion", "model": body.model, "choices": [choice], "usage": answer["usage"]}
