"""Tokens per second of servers on the card: ours, and vLLM where it is installed.

FastChat's own worker does not run on the transformers of this project; `benchmarks/serving.py` measures it in an
environment of its own.
"""

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import yaml

from benchmarks.gpu.piece import Bench, Piece
from retroformer.models.embedded import base_model_folder

TITLE = "Serving"
COLUMNS = ("tokens per second", "requests per second", "seconds of a request, median")
NOTE = (
    "The embedded model in bfloat16, prompts of about 500 tokens with a common beginning, answers of 64 tokens. Every "
    "client sends one request after another. Another server is measured only if it is installed."
)
_START_SECONDS = 300.0
_NEW_TOKENS = 64
_ROOM = "You see a cabinet 1, a drawer 2, a shelf 3 and a countertop 4. " * 24


def pieces(bench: Bench) -> Iterator[Piece]:
    """Yield a piece for each server and number of clients."""
    for server in ("ours", *(["vllm"] if importlib.util.find_spec("vllm") else [])):
        for clients in (1, 16, 64) if bench.on_gpu else (1, 4):
            yield Piece(f"serving/{server}, {clients} clients", lambda of=(server, clients): _work(bench, *of))


def _work(bench: Bench, server: str, clients: int) -> tuple[str, ...]:
    seconds = 20.0 if bench.on_gpu else 5.0
    with {"ours": _ours, "vllm": _vllm}[server](bench) as (url, model):
        times, elapsed = asyncio.run(_load(url, model, clients, seconds))
    middle = sorted(times)[len(times) // 2]
    return f"{len(times) * _NEW_TOKENS / elapsed:.0f}", f"{len(times) / elapsed:.1f}", f"{middle:.2f}"


async def _load(url: str, model: str, clients: int, seconds: float) -> tuple[list[float], float]:
    """Return how long each request took, and how long all of them took together."""
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
def _ours(bench: Bench) -> Iterator[tuple[str, str]]:
    folder = bench.folder / "serving"
    folder.mkdir(exist_ok=True)
    config = {
        "run": "serving",
        "environment": {"name": "alfworld", "source": "generated"},
        "serve": {"dtype": "bfloat16"},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    port = _free_port()
    command = [sys.executable, "-m", "serve", "config.yaml", f"serve.port={port}", "--until-input-closes"]
    with _running(command, folder, port):
        yield f"http://127.0.0.1:{port}/v1", "base"


@contextlib.contextmanager
def _vllm(bench: Bench) -> Iterator[tuple[str, str]]:
    port, base = _free_port(), base_model_folder("embedded")
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(base), "--dtype", "bfloat16"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--served-model-name", "base"]
    with _running(command, bench.folder, port):
        yield f"http://127.0.0.1:{port}/v1", "base"


@contextlib.contextmanager
def _running(command: Sequence[str], folder: Path, port: int) -> Iterator[None]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "HF_HUB_OFFLINE": "1"}
    log = (folder / "server.log").open("w")
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5).status_code == 200:
                    break
            time.sleep(0.5)
        else:
            raise RuntimeError(f"the server did not start: {(folder / 'server.log').read_text()[-300:]}")
        yield
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
