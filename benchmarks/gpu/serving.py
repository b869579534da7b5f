"""Tokens per second of servers on the card: Retroformer's, and vLLM where it is installed.

FastChat's own worker does not run on the transformers of this project; `benchmarks/serving.py` measures it in an
environment of its own.
"""

import asyncio
import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from benchmarks.gpu.piece import Bench, Piece
from benchmarks.serving import Server, free_port, run_retroformer, run_servers
from retroformer.models.embedded import base_model_folder

TITLE = "Serving"
COLUMNS = ("tokens per second", "requests per second", "seconds of a request, median")
NOTE = (
    "The embedded model in bfloat16, prompts of about 500 tokens with a common beginning, answers of 64 tokens. Every "
    "client sends one request after another. Another server is measured only if it is installed."
)
_NEW_TOKENS = 64
_ROOM = "You see a cabinet 1, a drawer 2, a shelf 3 and a countertop 4. " * 24


def pieces(bench: Bench) -> Iterator[Piece]:
    for server in ("retroformer", *(["vllm"] if importlib.util.find_spec("vllm") else [])):
        for clients in (1, 16, 64) if bench.on_gpu else (1, 4):
            yield Piece(f"serving/{server}, {clients} clients", partial(_work, bench, server, clients))


def _work(bench: Bench, server: str, clients: int) -> tuple[str, ...]:
    seconds = 20.0 if bench.on_gpu else 5.0
    with {"retroformer": run_retroformer, "vllm": _vllm}[server](bench.folder, "bfloat16") as running:
        times, elapsed = asyncio.run(_load(running.url, running.model, clients, seconds))
    middle = sorted(times)[len(times) // 2]
    return f"{len(times) * _NEW_TOKENS / elapsed:.0f}", f"{len(times) / elapsed:.1f}", f"{middle:.2f}"


async def _load(url: str, model: str, clients: int, seconds: float) -> tuple[list[float], float]:
    times = list[float]()
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=clients)) as client:

        async def ask(number: int) -> None:
            body: dict[str, Any] = {
                "model": model,
                "messages": [{"role": "user", "content": f"{_ROOM} This is question {number}: where is the mug?"}],
                "max_tokens": _NEW_TOKENS,
                "temperature": 1.0,
                "seed": number,
            }
            began = time.perf_counter()
            (await client.post("/chat/completions", json=body)).raise_for_status()
            times.append(time.perf_counter() - began)

        await ask(-1)  # Reads the common beginning.
        times.clear()
        began = time.perf_counter()

        async def keep_asking(first: int) -> None:
            number = first
            while time.perf_counter() - began < seconds:
                await ask(number)
                number += clients

        await asyncio.gather(*map(keep_asking, range(clients)))
        return times, time.perf_counter() - began


@contextlib.contextmanager
def _vllm(folder: Path, dtype: str) -> Iterator[Server]:
    port, base = free_port(), base_model_folder("embedded")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--dtype", dtype]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "base"]
    with run_servers([command], port, "base", folder) as server:
        yield server
