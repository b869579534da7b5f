"""Time that the gateway adds to a call: 50 clients, each calling a provider directly and through the gateway in turn.

    python benchmarks/gateway.py [--clients 50] [--calls 40] [--latency 0.2]

The baseline is the same call without the gateway, in the same run: so other work on the machine slows both. Provider,
gateway and clients are processes of their own. The provider streams 20 events over the latency. Each client has a run
of its own whose conversation grows by two messages a call, and every call of the gateway is recorded in its store.
Clients begin at different moments and pause between calls, as agents do. A figure is the difference of the medians, or
of the 95th percentiles, of all calls through the gateway and all direct calls.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import yaml
from aiohttp import web

ROOT = Path(__file__).parents[1]
EVENTS = 20
WARM_UP_CALLS = 3
"""Calls of each client and way that are not counted."""
TASK = "Refund order 4711. " * 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--calls", type=int, default=40, help="calls of each client in each way")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds of one answer of the provider")
    parser.add_argument("--provider", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.provider:
        asyncio.run(provide(arguments.latency))
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), arguments)


def measure(folder: Path, arguments: argparse.Namespace) -> None:
    """Start provider and gateway, measure, and print the figures."""
    provider = started(sys.executable, __file__, "--provider", "--latency", str(arguments.latency))
    direct = address(provider)
    config = folder / "gateway.yaml"
    store = f"sqlite:///{folder}/bench.db"
    reflector = {"endpoint": {"base_url": direct}}
    config.write_text(
        yaml.safe_dump({"run": "bench", "store": store, "environment": {"name": "agent"}, "reflector": reflector})
    )
    words = ("-m", "retroformer", "gateway", str(config), "--upstream", direct, "--port", "0")
    gateway = started(sys.executable, *words)
    try:
        through = address(gateway).removesuffix("/v1")
        before = cpu_seconds(gateway.pid)
        times = asyncio.run(load(direct, through, arguments.clients, arguments.calls))
        used = cpu_seconds(gateway.pid) - before
    finally:
        for process in (gateway, provider):
            process.terminate()
            process.communicate()
    show(times, used, arguments)


def show(times: dict[str, list[float]], used: float, arguments: argparse.Namespace) -> None:
    calls = arguments.clients * arguments.calls
    total = arguments.clients * (arguments.calls + WARM_UP_CALLS)
    print(f"{arguments.clients} clients, {calls} calls each way, answers of {arguments.latency * 1000:.0f} ms")
    print(f"{'':10}{'median':>10}{'p95':>10}   (ms)")
    figures = {way: (median(taken) * 1000, quantiles(taken, n=20)[-1] * 1000) for way, taken in times.items()}
    for way, (middle, high) in figures.items():
        print(f"{way:10}{middle:10.2f}{high:10.2f}")
    added = [through - direct for direct, through in zip(figures["direct"], figures["gateway"], strict=True)]
    print(f"{'added':10}{added[0]:10.2f}{added[1]:10.2f}")
    print(f"CPU time of the gateway: {used / total * 1000:.2f} ms a call; load average {os.getloadavg()[0]:.1f}")


async def load(direct: str, through: str, clients: int, calls: int) -> dict[str, list[float]]:
    """Return the seconds of all calls by way."""
    times: dict[str, list[float]] = {"direct": [], "gateway": []}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def client(number: int) -> None:
            chance = random.Random(number)
            messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
            urls = {"direct": direct, "gateway": f"{through}/runs/client-{number}/v1"}
            for call_number in range(calls + WARM_UP_CALLS):
                for way in chance.sample(sorted(urls), 2):
                    await asyncio.sleep(chance.random() * 0.2)
                    taken, said = await call(session, urls[way], messages)
                    if call_number >= WARM_UP_CALLS:
                        times[way].append(taken)
                messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "Go on."}]

        await asyncio.gather(*map(client, range(clients)))
    return times


async def call(session: aiohttp.ClientSession, url: str, messages: list[dict[str, Any]]) -> tuple[float, str]:
    """Call once. Return the seconds until the last byte, and the text."""
    body = json.dumps({"model": "small", "stream": True, "messages": messages}).encode()
    began = time.perf_counter()
    async with session.post(f"{url}/chat/completions", data=body) as answer:
        data = await answer.read()
    taken = time.perf_counter() - began
    assert answer.status == 200, data
    lines = [line[6:] for line in data.split(b"\n") if line.startswith(b"data: {")]
    return taken, "".join(json.loads(line)["choices"][0]["delta"]["content"] for line in lines)


async def provide(latency: float) -> None:
    """Serve an answer of EVENTS events until the process ends; print the address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(EVENTS):
            await asyncio.sleep(latency / EVENTS)
            event = {"choices": [{"index": 0, "delta": {"content": f"word {number} "}}]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


def started(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment)


def address(process: subprocess.Popen[str]) -> str:
    """Return the address in the first line of a server."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return "http://" + line.partition("http://")[2].partition("/v1")[0] + "/v1"


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
