"""Speed of rollouts: concurrent against sequential, and against a pure load generator.

    python benchmarks/rollouts.py                    a local endpoint of fixed latency, ReAct actor

A first, untimed pass starts the environments and records each request of each rollout. The load generator sends the
same requests with plain httpx: no environment, no store, no parsing, no client library. The order stays the same: the
requests of a rollout are sequential, and as many rollouts run concurrently. So its rate is the highest that any actor
could reach with this endpoint and these prompts. Their rounds alternate; medians are compared.
"""

import asyncio
import contextlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from retroformer.agents.arms.baselines import NoReflector
from retroformer.config.file import load_config
from retroformer.config.parts import Connections, Parts, chosen_tasks, make_actor, parts
from retroformer.config.sections.base import Endpoint
from retroformer.endpoint.model import LanguageModel
from retroformer.method.protocols import Actor
from retroformer.method.records import Key, Memory, Message, Outcome, Task
from retroformer.run.ledger import Ledger
from retroformer.run.store import Store

TASKS, CONCURRENCY, ROUNDS = 64, 16, 3
CONFIG = f"""
run: benchmark
environment: {{name: alfworld, source: generated, max_steps: 50}}
loop: {{actions: 12, repetitions: 12, retries: 0, concurrency: {CONCURRENCY}}}
actor: {{kind: react, endpoint: {{model: fixed-latency}}}}
"""
LATENCY_SECONDS, CAPACITY = 0.2, 16
"""Time of an answer of the local endpoint, which few models beat, and the requests that it answers at a time."""

Chains = dict[str, list[dict[str, Any]]]
"""Requests of each task's rollout, in order."""

_TASK: ContextVar[str] = ContextVar("task")
_SEEN = re.compile(r"you see ([^\n]*)\.")
_ASKED = re.compile(r"Thought (\d+):\s*$")


class RecordingModel(LanguageModel):
    """Language model that records each request under the task being played."""

    chains: Chains

    async def complete(self, prompt: Any, **options: Any) -> Any:
        body = {"model": self.model, "temperature": options["temperature"], "max_tokens": options["max_new_tokens"]}
        if stop := options.get("stop"):
            body["stop"] = list(stop)
        turns = (Message(role="user", content=prompt),) if isinstance(prompt, str) else prompt
        body["messages"] = [turn.model_dump() for turn in turns]
        self.chains.setdefault(_TASK.get(), []).append(body)
        return await super().complete(prompt, **options)


@dataclass(frozen=True)
class RecordingConnections(Connections):
    chains: Chains = field(default_factory=dict)

    def model(self, endpoint: Endpoint) -> LanguageModel:
        assert endpoint.base_url is not None
        model = RecordingModel(endpoint, endpoint.base_url)
        model.chains = self.chains
        self.opened.append(model)
        return model


async def side_by_side(work: Iterable[Awaitable[object]], concurrency: int) -> float:
    """Return the seconds that the work takes with at most `concurrency` pieces in flight."""
    slots = asyncio.Semaphore(concurrency)

    async def run_piece(piece: Awaitable[object]) -> None:
        async with slots:
            await piece

    started = time.perf_counter()
    await asyncio.gather(*(run_piece(piece) for piece in work))
    return time.perf_counter() - started


async def play(components: Parts, actor: Actor, store: Store, tasks: Sequence[Task], concurrency: int) -> float:
    """Return rollouts per second; they are stored like those of `collect`."""
    arm = f"round {time.time_ns()}"
    experience = replace(components, actor=actor).experience(Ledger(store), arm, NoReflector())

    async def rollout(task: Task) -> None:
        _TASK.set(task.id)
        trajectory = await experience.trajectory(task, Memory(), Key(arm=arm, task_id=task.id))
        if trajectory.outcome is Outcome.INVALID:
            sys.exit(f"A rollout was invalid, so nothing was measured: {trajectory.cause}")

    return len(tasks) / await side_by_side(map(rollout, tasks), concurrency)


async def generate_load(base_url: str, chains: Sequence[Sequence[dict[str, Any]]]) -> float:
    """Return chains of requests per second, with no work between a response and the next request."""
    ready = [[json.dumps(body).encode() for body in chain] for chain in chains]
    headers = {"content-type": "application/json", "authorization": "Bearer none"}
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=base_url, headers=headers, limits=limits, timeout=600) as client:

        async def replay(chain: Sequence[bytes]) -> None:
            for body in chain:
                (await client.post("chat/completions", content=body)).raise_for_status()

        return len(chains) / await side_by_side(map(replay, ready), CONCURRENCY)


async def measure(path: Path, base_url: str) -> None:
    config = load_config(path, [f"actor.endpoint.base_url={base_url}"])
    with tempfile.TemporaryDirectory() as folder:
        store = Store(f"sqlite:///{folder}/experience.db", "benchmark")
        async with parts(config, asks_reflector=False) as components:
            tasks = chosen_tasks(config.experiment, TASKS)
            recording = RecordingConnections(base_url)
            await play(components, make_actor(config.experiment, recording), store, tasks, CONCURRENCY)
            await recording.close()
            chains = [recording.chains[task.id] for task in tasks]
            few = tasks[: TASKS // CONCURRENCY]
            calls = sum(map(len, chains))
            print(f"{len(tasks)} rollouts, {calls} calls, {CONCURRENCY} at once, {os.cpu_count()} cores")
            rounds = []
            for number in range(ROUNDS):
                concurrent = await play(components, components.actor, store, tasks, CONCURRENCY)
                generated = await generate_load(base_url, chains)
                sequential = await play(components, components.actor, store, few, 1)
                rounds.append((concurrent, generated, sequential))
                print(f"round {number}: {concurrent:.2f}/s  load generator {generated:.2f}/s  alone {sequential:.2f}/s")
        store.close()
    concurrent, generated, sequential = map(statistics.median, zip(*rounds, strict=True))
    print(f"rollouts a second               {concurrent:8.2f}  ({concurrent * calls / len(tasks):.0f} calls a second)")
    print(f"{CONCURRENCY} at once / 1 at a time         {concurrent / sequential:8.2f}")
    print(f"rollouts / pure load generator  {concurrent / generated:8.3f}")


@contextlib.asynccontextmanager
async def fixed_latency_endpoint() -> AsyncIterator[str]:
    """Run an OpenAI-compatible server in a separate process, so that the event loop under test loses no time to it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--endpoint", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.kill()
        await process.wait()


async def serve() -> None:
    """Answer each request after `LATENCY_SECONDS`, at most `CAPACITY` at a time."""
    rows = asyncio.Semaphore(CAPACITY)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
                body = json.loads(await reader.readexactly(length))
                async with rows:
                    await asyncio.sleep(LATENCY_SECONDS)
                content = json.dumps(completion(body)).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
                writer.write(b"content-length: %d\r\n\r\n%s" % (len(content), content))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """Return the next step of a ReAct attempt, which visits one place of the room after another, or plain advice."""
    prompt, text = body["messages"][-1]["content"], "Look further."
    if asked := _ASKED.findall(prompt):
        places, number = re.findall(r"([a-z]+ \d+)", _SEEN.findall(prompt)[0]), int(asked[0])
        text = f" I look further.\nAction {number}: go to {places[number % len(places)]}"
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": len(prompt) // 4, "completion_tokens": 12, "total_tokens": len(prompt) // 4 + 12}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    kind = "chat.completion"
    return {"id": "c", "object": kind, "created": 0, "model": body["model"], "choices": [choice], "usage": usage}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "benchmark.yaml"
        config.write_text(CONFIG)
        async with fixed_latency_endpoint() as url:
            await measure(config, url)


if __name__ == "__main__":
    asyncio.run(serve() if "--endpoint" in sys.argv else main())
