"""Tokens per CPU-second of our server, of openvino-genai and of FastChat's worker; and the cost of an agent's turns.

    python benchmarks/serving.py [--dtype float32]
    python benchmarks/serving.py --turns                           16 players with an adapter, against plain generation

All generate with the embedded model, on one thread each. The prompts have about 900 tokens, most of them shared, as in
rollouts of one agent; the shared part has been read once before the measurement. The measure is the CPU time of all
server processes (/proc/PID/stat), so other work on the machine has little effect. Ours and FastChat's worker compute
in `--dtype` and are called over HTTP; openvino-genai computes in float32 on weights of 4 bits, and is called directly
(serving_openvino.py). FastChat's worker does not run on current transformers, so it gets its own environment in the
cache, created on the first run, and so does openvino-genai.

A turn asks for one short line; its prompt, of 100 to 400 tokens, extends that of the last turn by about 20 tokens.
Plain generation is transformers' `generate` with peft's layers, one call at a time, with no cache between calls.
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from retroformer.files.cache import cache_folder
from retroformer.files.packages import MODEL, package_folder
from retroformer.models.embedded import GGUF_NAME, base_model_folder

FASTCHAT = ("fschat[model_worker]==0.2.36", "transformers==4.57.6", "torch==2.13.0", "peft", "accelerate")
OPENVINO = ("openvino-genai==2026.4.1.0",)
ROOT = Path(__file__).parents[1]
START_SECONDS = 300.0
CLIENTS, NEW_TOKENS = (1, 4, 16), 64
"""Numbers of clients that ask at once, and the length of an answer in tokens."""
PLAYERS, TURNS, TURN_TOKENS = 16, 12, 8
PLAIN_PLAYERS = 2
TICKS = os.sysconf("SC_CLK_TCK")
PLACES = ("cabinet", "drawer", "shelf", "countertop", "sideboard", "armchair", "dresser", "safe")
THINGS = ("a mug", "a book", "two pencils", "a vase and a key", "nothing", "a plate", "a lamp", "an apple")


@dataclass(frozen=True)
class Figures:
    clients: int
    requests: int
    prompt_tokens: int
    new_tokens: int
    cpu_seconds: float
    wall_seconds: float

    @property
    def tokens_per_cpu_second(self) -> float:
        return self.new_tokens / self.cpu_seconds


class Server:
    def __init__(self, url: str, model: str, pids: Sequence[int]) -> None:
        self.url = url
        self.model = model
        self.pids = pids

    def cpu_seconds(self) -> float:
        """Return the user and system time of all processes so far."""
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / TICKS

    def memory(self) -> float:
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in self.pids]
        return max(int(status.split("VmHWM:")[1].split()[0]) for status in statuses) / 1024**2


@contextlib.contextmanager
def run_retroformer(folder: Path, dtype: str, adapters: str = "{}") -> Iterator[Server]:
    """Run `retroformer serve`; `adapters` as in a config."""
    config = folder / "config.yaml"
    serve = f"{{port: 0, dtype: {dtype}, adapters: {adapters}}}"
    config.write_text(f"run: benchmark\nenvironment: {{name: alfworld}}\nserve: {serve}\n")
    command = [sys.executable, "-m", "serve", config.name, "--until-input-closes"]
    environment = {**_environment(), "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().split(" at ")[1].strip()
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            yield Server(url, "base", [process.pid, *map(int, children)])
        finally:
            process.terminate()


@contextlib.contextmanager
def run_fastchat(folder: Path, dtype: str) -> Iterator[Server]:
    """Run FastChat's controller, model worker and API server, unmodified, in their own environment."""
    python = environment_of("fastchat-stock", FASTCHAT)
    model = base_model_folder("embedded")
    controller, worker, api = (free_port() for _ in range(3))
    address = f"http://127.0.0.1:{controller}"
    local = ["--host", "127.0.0.1"]
    modules = [
        ["controller", *local, f"--port={controller}"],
        ["model_worker", *local, f"--port={worker}", f"--worker-address=http://127.0.0.1:{worker}",
         f"--controller-address={address}", f"--model-path={model}", "--device=cpu", f"--dtype={dtype}"],
        ["openai_api_server", *local, f"--port={api}", f"--controller-address={address}"],
    ]  # fmt: skip
    commands = [[str(python), "-m", f"fastchat.serve.{module}", *arguments] for module, *arguments in modules]
    with run_servers(commands, api, model.name, folder) as server:
        yield server


@contextlib.contextmanager
def run_servers(commands: Sequence[Sequence[str]], port: int, model: str, folder: Path) -> Iterator[Server]:
    """Run the commands until the server at this port lists the model. Exits if one ends, or if it takes too long."""
    processes: list[subprocess.Popen[bytes]] = []
    url, end = f"http://127.0.0.1:{port}/v1", time.monotonic() + START_SECONDS
    environment = {**_environment(), "LOGDIR": ""}
    try:
        for number, command in enumerate(commands):
            with (folder / f"server-{number}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
            # FastChat's worker exits if no controller responds.
            time.sleep(5 if number == 0 else 0)
        while not _lists(url, model):
            if time.monotonic() > end or any(process.poll() is not None for process in processes):
                logs = "\n".join(path.read_text()[-1000:] for path in folder.glob("server-*.log"))
                raise RuntimeError(f"The servers did not start:\n{logs}")
            time.sleep(1)
        yield Server(url, model, [process.pid for process in processes])
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _lists(url: str, model: str) -> bool:
    with contextlib.suppress(httpx.HTTPError, ValueError):
        return model in [card["id"] for card in httpx.get(f"{url}/models", timeout=10).json()["data"]]
    return False


def environment_of(name: str, packages: Sequence[str]) -> Path:
    """Return the Python of the environment `name` with these packages, created if missing."""
    folder = cache_folder() / name
    python, finished = folder / "bin" / "python", folder / "finished"
    if not finished.exists():
        print(f"Making an environment in {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        finished.touch()
    return python


async def measure(server: Server, clients: int) -> Figures:
    primer, waiting = _load(clients)
    requests = len(waiting)
    usages: list[dict[str, int]] = []

    async def client(http: httpx.AsyncClient) -> None:
        while waiting:
            body = {"model": server.model, "prompt": waiting.pop(), "temperature": 0, "max_tokens": NEW_TOKENS}
            answer = await http.post(f"{server.url}/completions", json=body)
            answer.raise_for_status()
            usages.append(answer.json()["usage"])

    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
        body = {"model": server.model, "prompt": primer, "max_tokens": 1}
        (await http.post(f"{server.url}/completions", json=body)).raise_for_status()
        cpu, wall = server.cpu_seconds(), time.monotonic()
        await asyncio.gather(*(client(http) for _ in range(clients)))
    return Figures(
        clients=clients,
        requests=requests,
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        new_tokens=sum(usage["completion_tokens"] for usage in usages),
        cpu_seconds=server.cpu_seconds() - cpu,
        wall_seconds=time.monotonic() - wall,
    )


def measure_openvino() -> list[Figures]:
    python, script = environment_of("openvino-genai", OPENVINO), Path(__file__).with_name("serving_openvino.py")
    pipe = subprocess.PIPE
    totals = []
    with subprocess.Popen([str(python), str(script)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        print(json.dumps(str(package_folder(MODEL) / GGUF_NAME)), file=process.stdin, flush=True)
        assert json.loads(process.stdout.readline()) == "ready"
        for count in CLIENTS:
            (primer, prompts), rows = _load(count), list[dict[str, Any]]()
            # It answers the prompts of a load together, so fewer clients than prompts are several loads.
            for start in range(0, len(prompts), count):
                part = prompts[start : start + count]
                load = {"primer": primer, "prompts": part, "new_tokens": NEW_TOKENS}
                print(json.dumps(load), file=process.stdin, flush=True)
                rows.append(json.loads(process.stdout.readline()))
            sums = {name: sum(row[name] for row in rows) for name in rows[0]}
            totals.append(_print(Figures(count, len(prompts), **sums)))
        process.stdin.close()
    return totals


def _print(row: Figures) -> Figures:
    print(
        f"  {row.clients:7d}  {row.requests:8d}  {row.prompt_tokens:13d}  {row.new_tokens:10d}  "
        f"{row.cpu_seconds:5.1f}  {row.wall_seconds:6.1f}  {row.tokens_per_cpu_second:12.1f}",
        flush=True,
    )
    return row


def run_turns(dtype: str) -> None:
    """Print the CPU-seconds of 100 turns, on our server and plain, with an adapter of rank 16 on all linear layers."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    base = base_model_folder("embedded")
    with tempfile.TemporaryDirectory() as name:
        adapter = Path(name) / "adapter"
        model: PeftModel = get_peft_model(
            AutoModelForCausalLM.from_pretrained(base, dtype=dtype),
            LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        model.save_pretrained(str(adapter))
        with run_retroformer(Path(name), dtype, f"{{player: {adapter}}}") as server:
            before = server.cpu_seconds()
            asyncio.run(_play(f"{server.url}/completions"))
            cost = 100 * (server.cpu_seconds() - before) / (PLAYERS * TURNS)
    print(f"retroformer, {PLAYERS} players at once: {cost:.1f} CPU-s for 100 turns", flush=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    prompts = [_turn(player, turn) for player in range(PLAIN_PLAYERS) for turn in range(TURNS)]
    before = time.process_time()
    for prompt in prompts:
        model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=TURN_TOKENS, do_sample=False)
    plain_cost = 100 * (time.process_time() - before) / len(prompts)
    print(f"transformers and peft, one call at a time: {plain_cost:.1f} CPU-s for 100 turns")
    print(f"plain / retroformer: {plain_cost / cost:.1f} times")


async def _play(url: str) -> None:
    """Play the turns of all players concurrently, and the turns of each player in order."""
    async with httpx.AsyncClient(timeout=None, trust_env=False) as http:

        async def play(player: int) -> None:
            for turn in range(TURNS):
                body = {"model": "player", "prompt": _turn(player, turn), "temperature": 0, "max_tokens": TURN_TOKENS}
                (await http.post(url, json=body)).raise_for_status()

        await asyncio.gather(*map(play, range(PLAYERS)))


def _turn(player: int, turn: int) -> str:
    steps = "".join(
        f"> go to {PLACES[(player + step) % 8]} {player}\nOn it, you see {THINGS[(player + 3 * step) % 8]}.\n"
        for step in range(turn + 3)
    )
    return f"Player {player} is in a house. The task is to find a mug.\n{steps}>"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--turns", action="store_true", help="an agent's turns alone")
    arguments = parser.parse_args()
    base_model_folder("embedded")
    if arguments.turns:
        run_turns(arguments.dtype)
        return
    tables: dict[str, list[Figures]] = {}
    for side in ("retroformer", "openvino", "fastchat"):
        print(f"{side}:\n  clients  requests  prompt tokens  new tokens  CPU-s  wall s  tokens/CPU-s", flush=True)
        if side == "openvino":
            tables[side] = measure_openvino()
            continue
        run = run_retroformer if side == "retroformer" else run_fastchat
        with tempfile.TemporaryDirectory() as folder, run(Path(folder), arguments.dtype) as server:
            tables[side] = [_print(asyncio.run(measure(server, count))) for count in CLIENTS]
            print(f"  highest memory of one process: {server.memory():.1f} GiB", flush=True)
    baseline = tables.pop("retroformer")
    for side, rows in tables.items():
        pairs = zip(baseline, rows, strict=True)
        ratios = [f"{row.tokens_per_cpu_second / other.tokens_per_cpu_second:.2f}" for row, other in pairs]
        print(f"retroformer / {side} at {CLIENTS} clients: {', '.join(ratios)} times")


def _load(clients: int) -> tuple[str, list[str]]:
    """Return a prompt that reads the shared part, and the prompts of a measurement."""
    return _prompt(1000 * clients + 999), [_prompt(1000 * clients + number) for number in range(max(3, clients))]


def _prompt(number: int) -> str:
    """Return a prompt with a long shared history and an ending specific to the number."""
    history = "\n".join(
        f"> go to {PLACES[step % 8]} {step}\nOn the {PLACES[step % 8]} {step}, you see {THINGS[step * 3 % 8]}."
        for step in range(36)
    )
    own = "\n".join(
        f"> go to {PLACES[step]} {number + step}\nYou see {THINGS[(number + step) % 8]}." for step in range(4)
    )
    task = "You are in a house. Your task is to find a mug."
    return f"{task}\n{history}\n{own}\nThe story of what happened next, at length:"


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


if __name__ == "__main__":
    main()
