"""Faults around a collecting process: kills, a misbehaving endpoint, dying environments, a second collector, clocks."""

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World, kill
from tests.support.endpoint import Behaviour, Body
from tests.support.killing import children_of


def kills(world: World, count: int) -> Outcome:
    """Kill collecting with SIGKILL after a random part of its work."""
    return world.kill_and_finish(count, "collect", longest=4.0, wasted=SLOTS)


def storms(world: World, count: int) -> Outcome:
    """Let the endpoint misbehave at a third of its answers, in all ways that it knows."""
    faults, violations = 0, list[str]()
    # Without the one that asks for an hour of rest, which ends a stage by design, and refused keys, which do so too.
    ways = [way for way in Behaviour if way not in (Behaviour.WELL, Behaviour.AWAY, Behaviour.UNAUTHORIZED)]
    while faults < count:
        run, lock, drawn = world.new_run(), threading.Lock(), [0]

        def mood(body: Body, came_before: int, lock: threading.Lock = lock, drawn: list[int] = drawn) -> Behaviour:
            with lock:
                if world.chance.random() > 1 / 3:
                    return Behaviour.WELL
                drawn[0] += 1
                return world.chance.choice(ways)

        world.server.mood = mood
        violations += world.finish(run, "reflector.endpoint.timeout_seconds=2", "loop.retries=3")
        world.server.mood = None
        # Every faulty answer may have been paid for; a call that timed out was, too.
        violations += world.judge(run, 2 * drawn[0])
        faults += drawn[0]
    return Outcome(faults, violations)


def environment_deaths(world: World, count: int) -> Outcome:
    """Kill or stop processes of the environment while they play."""

    def hit(run: str, process: Process) -> int:
        time.sleep(world.chance.uniform(0.2, 0.8))
        for child in sorted(children_of(process.pid))[:1]:
            with suppress(ProcessLookupError):
                os.kill(child, world.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)))
                return 1
        return 0

    return world.disturb(count, hit, "loop.retries=10", most=6, spare=lambda made: made * SLOTS)


def two_collectors(world: World, count: int) -> Outcome:
    """Run two collectors on one store, and kill one of them."""
    faults, violations = 0, list[str]()
    with world.slowly(0.02):
        while faults < count:
            run = world.new_run()
            first, second = world.start(run), world.start(run)
            with suppress(subprocess.TimeoutExpired):
                first.wait(world.chance.uniform(0.5, 3.0))
            kill(first)
            said, _ = second.communicate(timeout=PATIENCE_SECONDS)
            faults += 1
            violations += [f"{run}: {said[-300:]}"] if "Traceback" in said else []
            violations += world.finish(run) + world.judge(run, 2 * SLOTS)
    return Outcome(faults, violations)


_JUMPING = """
import random, runpy, sys, time
chance, real = random.Random({seed}), time.time
offset = [0.0]
def jumped():
    if chance.random() < 0.02:
        offset[0] = chance.uniform(-1e6, 1e6)
        with open({jumps!r}, "a") as file:
            file.write("jump\\n")
    return real() + offset[0]
time.time = jumped
sys.argv = ["collect", *sys.argv[1:]]
runpy.run_module("collect", run_name="__main__", alter_sys=True)
"""


def clock_jumps(world: World, count: int) -> Outcome:
    """Let the clock jump by up to eleven days, forwards and backwards, while collecting."""
    faults, violations = 0, list[str]()
    while faults < count:
        run, seed = world.new_run(), world.chance.randrange(1_000_000)
        jumps = world.folder / f"jumps-{run}"
        violations += world.finish(run, wrapper=("-c", _JUMPING.format(seed=seed, jumps=str(jumps)))) + world.judge(
            run, 0
        )
        faults += jumps.read_text().count("jump") if jumps.exists() else 0
    return Outcome(faults, violations)
