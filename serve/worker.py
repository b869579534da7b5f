"""The process that holds the models and answers over HTTP: directly, and to FastChat where it is registered there.

The supervisor starts it with the file descriptor of the socket to listen on, and writes its WorkerSettings to the first
line of its input.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence

import torch
from starlette.routing import Route

from retroformer.endpoint.server import server_of
from retroformer.errors import run_command
from retroformer.models.embedded import base_model_folder
from retroformer.models.precision import serving_dtype
from retroformer.run.promotions import History

from .adapters import PromotedReflector, ServedModels, name_targets
from .answers import Answers, EngineAnswers
from .api import OpenAI, application
from .engine.engine import Engine
from .engine.model import Model
from .guards import Guards
from .memory_check import require_memory
from .served_names import WorkerSettings
from .supervisor import read_first_line
from .vllm_router import connect

MAX_BATCH = 64
"""Largest number of requests decoded together."""


def load(settings: WorkerSettings, begin: Callable[[Answers], None]) -> Answers:
    """Load the models, call `begin`, and serve later promotions of the run if they are to be followed."""
    torch.set_num_threads(settings.threads)
    names, template_settings = settings.names, settings.chat_template_kwargs
    base = base_model_folder(settings.base_model)
    targets = name_targets(base, names, template_settings)
    dtype = serving_dtype(settings.dtype, base, torch)
    if settings.vllm is not None:
        return _follow(connect(settings, settings.vllm, base, targets), settings, begin)
    require_memory(base, dtype, names.quantization)
    adapters = {str(folder): folder for folder in names.adapters.values()}
    rewards = {str(folder): folder for folder in names.best_of.values()}
    model = Model(base, adapters, dtype, rewards, template_settings, names.quantization)
    engine = Engine(model, MAX_BATCH, settings.gpu_share)
    answers = EngineAnswers(model, engine, ServedModels(model, engine.uses_adapter, targets, dtype))
    return _follow(answers, settings, begin)


def _follow(answers: Answers, settings: WorkerSettings, begin: Callable[[Answers], None]) -> Answers:
    if settings.promotions is not None:
        promoted = PromotedReflector(answers.served, History(settings.promotions))
        promoted.update()
        if settings.follow:
            threading.Thread(target=promoted.follow, name="promotions", daemon=True).start()
    begin(answers)
    return answers


async def serve(settings: WorkerSettings, listening: socket.socket) -> None:
    """Answer requests until the process is asked to stop. Raises what loading the models raises."""
    fastchat_routes, begin = list[Route](), lambda answers: None
    if settings.controller is not None:
        from .fastchat_worker import FastChatWorker

        fastchat = FastChatWorker(settings.controller, settings.address)
        fastchat_routes, begin = fastchat.routes(), fastchat.start
    loaded = asyncio.ensure_future(asyncio.to_thread(load, settings, begin))
    app = Guards(
        application([*OpenAI(loaded).routes(hand_over=settings.hand_over), *fastchat_routes]),
        loaded,
        settings.api_keys,
        loopback=settings.loopback,
        without_key=[route.path for route in fastchat_routes],  # FastChat's servers send no key.
    )
    server = server_of(app)
    listener = asyncio.create_task(server.serve(sockets=[listening]))
    await asyncio.wait([loaded, listener], return_when=asyncio.FIRST_COMPLETED)
    if loaded.done() and loaded.exception() is not None:
        server.should_exit = True  # A cancelled server would print a traceback.
    await listener
    if loaded.done():
        loaded.result()


def main(argv: Sequence[str]) -> None:
    settings = WorkerSettings.model_validate_json(read_first_line())
    asyncio.run(serve(settings, socket.socket(fileno=int(argv[0]))))


if __name__ == "__main__":
    run_command(main)
