"""How collecting scales with workers: measured on this machine, and simulated for fifty.

    python -m benchmarks.cluster            1, 2, 4 and 8 workers of a local Ray cluster against a 200 ms endpoint

Each number of workers collects with a ReAct actor, four rollouts in flight in each. The rate is that of the calls in
the middle of a run, without its start and its end, as is the number of busy cores. Efficiency is the rate per worker,
relative to one worker.

The simulation has the same workers as processes of a queueing model: a call computes on one of the machine's cores,
then waits for the endpoint; a finished rollout is written to one store. What a call computes, in the worker and in the
endpoint, which here share the cores, is measured with one worker; what a write takes, with eight writers. It is checked
against the measured rates before it says anything about fifty machines.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import simpy

from benchmarks.rollouts import fixed_latency_endpoint
from retroformer.records import Ending, Key, Outcome, Step, Task, Trajectory
from retroformer.store import NewTrajectory, Store
from tests.support.killing import cpu_seconds
from tests.support.postgres import database_on, find_programs, server_of
from tests.support.ray_cluster import cluster_of, ray_folder

CONFIG = """
run: scaling
environment: {{name: alfworld, source: generated, split: train, max_steps: 50}}
loop: {{trials: 2, actions: 12, repetitions: 12, retries: 0, concurrency: {slots}}}
actor: {{kind: react, endpoint: {{model: fixed-latency, base_url: {url}}}}}
reflector: {{endpoint: {{model: fixed-latency, base_url: {url}}}}}
collect: {{backend: ray, tasks: {tasks}, candidates: 1}}
"""
SLOTS = 4
"""Rollouts in flight in each worker."""
TASKS_OF_WORKER = 24
CALLS = 12
"""Calls of a rollout."""
_MIDDLE = 0.25, 0.75
"""Shares of the calls between which the rate is measured."""


class Measured(NamedTuple):
    """Collecting with some workers."""

    workers: int
    rate: float
    """Calls per second."""
    worker_seconds: float
    """CPU seconds of the workers and their environments for each call."""
    endpoint_seconds: float
    """CPU seconds of the endpoint for each call."""
    busy: float
    """Number of busy cores of the machine, with everything that runs on it."""


class Machine(NamedTuple):
    """What the simulation knows of a machine, and of what it talks to."""

    cores: int
    worker_seconds: float
    endpoint_seconds: float
    """0 if the endpoint is elsewhere."""
    write_seconds: float
    latency_seconds: float


async def measure(workers: int, milliseconds: float) -> Measured:
    """Collect with this many workers."""
    with ray_folder() as folder:
        times = folder / "times"
        async with fixed_latency_endpoint(milliseconds, 10_000, times) as url:
            config = folder / "scaling.yaml"
            config.write_text(CONFIG.format(slots=SLOTS, url=url, tasks=TASKS_OF_WORKER * workers))
            with cluster_of(1, folder, cpus=workers) as cluster:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "collect", str(config)),
                    cwd=folder,
                    env=os.environ | {"RAY_ADDRESS": cluster.address, "PYTHONPATH": str(Path(__file__).parents[1])},
                )
                spent, used = await _cpu_seconds_while(process)
                if process.returncode:
                    sys.exit(f"collect ended with {process.returncode}")
            endpoint, *lines = times.read_text().split()
            moments = sorted(map(float, lines))
            first, last = (round(share * len(moments)) for share in _MIDDLE)
            rate = (last - first) / (moments[last] - moments[first])
            (begin, before), *_, (end, after) = [at for at in used if moments[first] <= at[0] <= moments[last]]
            busy, calls = (after - before) / (end - begin), len(moments)
            return Measured(workers, rate, spent / calls, cpu_seconds(int(endpoint)) / calls, busy)


async def _cpu_seconds_while(process: asyncio.subprocess.Process) -> tuple[float, list[tuple[float, float]]]:
    """Wait for the end of a run.

    Return the CPU seconds of Ray's workers and environments, without their start; and those of the whole machine at
    several times.
    """
    started, latest, machine = dict[int, float](), dict[int, float](), list[tuple[float, float]]()
    while process.returncode is None:
        machine.append((time.time(), _cpu_seconds_of_machine()))
        for pid in _workers():
            latest[pid] = cpu_seconds(pid)
            started.setdefault(pid, latest[pid])
        try:
            await asyncio.wait_for(process.wait(), 0.2)
        except TimeoutError:
            continue
    return sum(latest[pid] - started[pid] for pid in latest), machine


def _cpu_seconds_of_machine() -> float:
    """Return the time that all cores have worked since the machine was started."""
    user, nice, system, _, _, interrupts, soft_interrupts, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def _workers() -> Iterator[int]:
    """Yield the processes that play: Ray's workers that have a player, and the environments that these have started."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_text()
        except OSError:
            continue
        if command.startswith("ray::Worker.play") or "multiprocessing" in command:
            yield int(path.parent.name)


def seconds_of_write() -> tuple[str, float]:
    """Return the name of a database, and the seconds that it takes for each attempt that several writers store."""
    programs = find_programs()
    if programs is None:
        with tempfile.TemporaryDirectory() as folder:
            return "SQLite", _seconds_of_write(f"sqlite:///{folder}/experience.db")
    with server_of(programs) as server, database_on(server) as database:
        return "PostgreSQL", _seconds_of_write(database.url())


def _seconds_of_write(url: str, writers: int = 8, count: int = 50) -> float:
    steps = tuple(Step(action=f"go to drawer {number}", observation="The drawer is closed.") for number in range(CALLS))

    def write(writer: int) -> None:
        with closing(Store(url, "scaling")) as store:
            for number in range(count):
                task = Task(id=f"task {writer} {number}", environment="alfworld", split="train")
                attempt = Trajectory(
                    task=task, opening="A room.", steps=steps, outcome=Outcome.FAILURE, ending=Ending.STEP_LIMIT
                )
                store.add([NewTrajectory(Key(arm="collect", task_id=task.id), attempt)])

    with ThreadPoolExecutor(writers) as threads:
        began = time.perf_counter()
        for done in [threads.submit(write, writer) for writer in range(writers)]:
            done.result()
        return (time.perf_counter() - began) / (writers * count)


def simulate(machine: Machine, machines: int, workers: int, seconds: float = 200.0, seed: int = 0) -> float:
    """Return the calls per second of machines with this many workers each."""
    world, chance = simpy.Environment(), random.Random(seed)
    store = simpy.Resource(world, capacity=1)
    calls = 0

    def rollouts(cores: simpy.Resource) -> Iterator[simpy.Event]:
        nonlocal calls
        # Rollouts do not all begin at once.
        yield world.timeout(chance.uniform(0.0, CALLS * machine.latency_seconds))
        while True:
            for _ in range(CALLS):
                for busy in (machine.worker_seconds, machine.endpoint_seconds):
                    with cores.request() as core:
                        yield core
                        yield world.timeout(chance.expovariate(1 / busy) if busy else 0.0)
                yield world.timeout(machine.latency_seconds)
                calls += world.now > seconds / 4
            with store.request() as turn:
                yield turn
                yield world.timeout(chance.expovariate(1 / machine.write_seconds))

    for _ in range(machines):
        cores = simpy.Resource(world, capacity=machine.cores)
        for _ in range(workers * SLOTS):
            world.process(rollouts(cores))
    world.run(seconds)
    return calls / (seconds * 3 / 4)


async def main(arguments: argparse.Namespace) -> None:
    """Print measured and simulated rates."""
    latency, cores = arguments.latency_ms / 1000, os.cpu_count() or 1
    database, write = seconds_of_write()
    print(f"{cores} cores, endpoint of {arguments.latency_ms:g} ms, {SLOTS} rollouts in flight in each worker")
    print(f"a write to {database}: {write * 1000:.1f} ms\n")
    print("| workers | calls/s | efficiency | CPU ms a call, worker and endpoint | busy cores | simulated calls/s |")
    print("|---|---|---|---|---|---|")
    measured = list[Measured]()
    for workers in arguments.workers:
        rates = [await measure(workers, arguments.latency_ms) for _ in range(arguments.repeats)]
        one = sorted(rates, key=lambda each: each.rate)[len(rates) // 2]
        measured.append(one)
        here = Machine(cores, measured[0].worker_seconds, measured[0].endpoint_seconds, write, latency)
        simulated = simulate(here, 1, workers)
        efficiency = one.rate / workers / (measured[0].rate / measured[0].workers)
        costs = f"{one.worker_seconds * 1000:.1f} + {one.endpoint_seconds * 1000:.1f}"
        row = f"{one.rate:.1f} | {efficiency:.2f} | {costs} | {one.busy:.2f} of {cores} | {simulated:.1f}"
        print(f"| {workers} | {row} |", flush=True)
    first = measured[0]
    print("\nSimulated: machines of 8 cores with 8 workers each, the endpoint elsewhere, one store for all\n")
    print("| machines | calls/s | efficiency | writes/s |")
    print("|---|---|---|---|")
    alone = 0.0
    for machines in (1, 10, 25, 50):
        rate = simulate(Machine(8, first.worker_seconds, 0.0, write, latency), machines, 8, seconds=60.0)
        alone = alone or rate
        print(f"| {machines} | {rate:.0f} | {rate / machines / alone:.2f} | {rate / CALLS:.0f} |", flush=True)
    differences = [abs(simulate(here, 1, one.workers) / one.rate - 1) for one in measured]
    print(f"\nlargest difference between simulated and measured: {max(differences):.0%}")
    print(f"median: {statistics.median(differences):.0%}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    asyncio.run(main(parser.parse_args()))
