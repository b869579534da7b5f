"""Campaigns of faults. Each repeats one kind of fault at random moments until it has had its share of them.

A run of a campaign collects on a few games, with faults, and is started again until it ends. What it stores is compared
with an unbroken run.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from retroformer.arm_names import COLLECT
from retroformer.experiment.storage import open_store
from retroformer.store import Store
from tests.faults.invariant import Ended, Whole, violations, whole_of
from tests.support.endpoint import Behaviour, Body, Endpoint
from tests.support.killing import children_of
from tests.support.runs import HOUSEHOLD, ROOT, open_config, write_config

SLOTS = 8
"""Rollouts in flight in one process, and so the most calls that a kill can waste."""
_PATIENCE_SECONDS = 240.0
_MOST_STARTS = 200


class Outcome(NamedTuple):
    """What came of a campaign."""

    faults: int
    violations: list[str]


class World:
    """A folder, an endpoint, and what an unbroken run stores."""

    def __init__(self, folder: Path, server: Endpoint, chance: random.Random) -> None:
        self.folder, self.server, self.chance = folder, server, chance
        self.path = write_config(folder, server.url, HOUSEHOLD)
        self._runs = 0
        self.whole = self._unbroken()

    def _unbroken(self) -> Whole:
        process = self.start("whole")
        said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
        assert process.returncode == 0, said
        with self.store("whole") as store:
            return whole_of(store, COLLECT, len(self.server.requests))

    def new_run(self) -> str:
        """Return the name of a run that nobody has started."""
        self._runs += 1
        self.server.requests.clear()
        return f"broken-{self._runs}"

    def start(self, run: str, *overrides: str, wrapper: tuple[str, ...] = ("-m", "collect")) -> "subprocess.Popen[str]":
        """Start collecting, or going on with it."""
        return subprocess.Popen(
            [sys.executable, *wrapper, str(self.path), f"run={run}", *overrides],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, run: str, *overrides: str, wrapper: tuple[str, ...] = ("-m", "collect")) -> list[str]:
        """Run until collecting succeeds; return a violation if it does not or ends in a traceback."""
        said = ""
        for _ in range(_MOST_STARTS):
            process = self.start(run, *overrides, wrapper=wrapper)
            try:
                said, _ = process.communicate(timeout=_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return [f"{run} hangs: {process.communicate()[0][-300:]}"]
            if "Traceback" in said:
                return [f"{run} ended in a traceback: {said[-600:]}"]
            if process.returncode == 0:
                return []
        return [f"{run} never ended: {said[-300:]}"]

    def judge(self, run: str, faults: int, spare: int) -> list[str]:
        """Compare a run that has ended with the unbroken one."""
        with self.store(run) as store:
            ended = Ended(faults, len(self.server.requests), spare)
            return [f"{run}: {sentence}" for sentence in violations(store, COLLECT, self.whole, ended)]

    @contextmanager
    def store(self, run: str) -> Iterator[Store]:
        """Open the store of a run."""
        url = f"store=sqlite:///{self.database(run)}"
        with closing(open_store(open_config(self.path, f"run={run}", url).experiment)) as store:
            yield store

    def database(self, run: str) -> Path:
        """Return the file of a run's store."""
        return self.folder / "runs" / run / "experience.db"


def kills(world: World, share: int) -> Outcome:
    """Kill collecting with SIGKILL after a random part of its work."""
    faults, found = 0, list[str]()
    world.server.latency_seconds = 0.02
    while faults < share:
        run, killed = world.new_run(), 0
        while faults < share and killed < 5:
            process, moment = world.start(run), world.chance.uniform(0.2, 4.0)
            with suppress(subprocess.TimeoutExpired):
                process.wait(moment)
            ended = process.poll() is not None
            process.kill()
            process.communicate()
            if ended:
                break
            killed += 1
            faults += 1
        found += world.finish(run) + world.judge(run, killed, killed * SLOTS)
    world.server.latency_seconds = 0.0
    return Outcome(faults, found)


def storms(world: World, share: int) -> Outcome:
    """Let the endpoint misbehave at a third of its answers, in all ways that it knows."""
    faults, found = 0, list[str]()
    # Without the one that asks for an hour of rest, which ends a stage by design, and refused keys, which do so too.
    ways = [way for way in Behaviour if way not in (Behaviour.WELL, Behaviour.AWAY, Behaviour.UNAUTHORIZED)]
    while faults < share:
        run, lock, drawn = world.new_run(), threading.Lock(), [0]

        def mood(body: Body, came_before: int, lock: threading.Lock = lock, drawn: list[int] = drawn) -> Behaviour:
            with lock:
                if world.chance.random() > 1 / 3:
                    return Behaviour.WELL
                drawn[0] += 1
                return world.chance.choice(ways)

        world.server.mood = mood
        found += world.finish(run, "reflector.endpoint.timeout_seconds=2", "loop.retries=3")
        world.server.mood = None
        # Every faulty answer may have been paid for; a call that timed out was, too.
        found += world.judge(run, drawn[0], 2 * drawn[0])
        faults += drawn[0]
    return Outcome(faults, found)


def environment_deaths(world: World, share: int) -> Outcome:
    """Kill or stop processes of the environment while they play."""

    def hit(run: str, process: "subprocess.Popen[str]") -> int:
        time.sleep(world.chance.uniform(0.2, 0.8))
        for child in sorted(children_of(process.pid))[:1]:
            with suppress(ProcessLookupError):
                os.kill(child, world.chance.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)))
                return 1
        return 0

    return _while_it_runs(
        world, share, hit, "loop.retries=10", "loop.step_timeout_seconds=5", most=6, spare=lambda made: made * SLOTS
    )


def locked_databases(world: World, share: int) -> Outcome:
    """Lock the store for a random time while facts are written."""

    def lock(run: str, process: "subprocess.Popen[str]") -> int:
        time.sleep(world.chance.uniform(0.1, 0.5))
        if not world.database(run).exists():
            return 0
        locked = 0
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(world.database(run))) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            locked = 1
            time.sleep(world.chance.uniform(0.05, 1.5))
            connection.rollback()
        return locked

    return _while_it_runs(world, share, lock, most=share, spare=lambda made: SLOTS)


def _while_it_runs(
    world: World,
    share: int,
    fault: Callable[[str, "subprocess.Popen[str]"], int],
    *overrides: str,
    most: int,
    spare: Callable[[int], int],
) -> Outcome:
    """Make faults while a run goes on, at most `most` in each; `spare` calls may be lost to so many of them."""
    faults, found = 0, list[str]()
    world.server.latency_seconds = 0.05
    while faults < share:
        run, made = world.new_run(), 0
        process = world.start(run, *overrides)
        threading.Thread(target=process.communicate, daemon=True).start()
        while process.poll() is None and made < most and faults + made < share:
            made += fault(run, process)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
        found += world.finish(run) + world.judge(run, made, spare(made))
        faults += made
    world.server.latency_seconds = 0.0
    return Outcome(faults, found)


def two_collectors(world: World, share: int) -> Outcome:
    """Run two collectors on one store, and kill one of them."""
    faults, found = 0, list[str]()
    world.server.latency_seconds = 0.02
    while faults < share:
        run = world.new_run()
        first, second = world.start(run), world.start(run)
        with suppress(subprocess.TimeoutExpired):
            first.wait(world.chance.uniform(0.5, 3.0))
        first.kill()
        first.communicate()
        said, _ = second.communicate(timeout=_PATIENCE_SECONDS)
        faults += 1
        found += [f"{run}: {said[-300:]}"] if "Traceback" in said else []
        found += world.finish(run) + world.judge(run, 1, 2 * SLOTS)
    world.server.latency_seconds = 0.0
    return Outcome(faults, found)


_JUMPING = """
import random, runpy, sys, time
chance, real = random.Random({seed}), time.time
offset = [0.0]
def jumped():
    if chance.random() < 0.02:
        offset[0] = chance.uniform(-1e6, 1e6)
    return real() + offset[0]
time.time = jumped
sys.argv = ["collect", *sys.argv[1:]]
runpy.run_module("collect", run_name="__main__", alter_sys=True)
"""


def clock_jumps(world: World, share: int) -> Outcome:
    """Let the clock jump by up to eleven days, forwards and backwards, while collecting."""
    found = list[str]()
    for _ in range(share):
        run, seed = world.new_run(), world.chance.randrange(1_000_000)
        found += world.finish(run, wrapper=("-c", _JUMPING.format(seed=seed))) + world.judge(run, 1, 0)
    return Outcome(share, found)


def flipped_bits(world: World, share: int) -> Outcome:
    """Flip a bit in the file of a finished store: it must be noticed, or change no fact."""
    found, whole = list[str](), world.database("whole").read_bytes()
    for number in range(share):
        run = world.new_run()
        path = world.database(run)
        path.parent.mkdir(parents=True)
        # The copy is of the run `whole`, under its own name, since facts carry the name of their run.
        place, bit = world.chance.randrange(len(whole)), world.chance.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        code = (
            "import json, sys\nfrom tests.faults.reading import what_is_read\n"
            "print(json.dumps(what_is_read(sys.argv[1], sys.argv[2])))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(world.path), f"sqlite:///{path}"],
            capture_output=True,
            text=True,
            cwd=world.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        noticed = done.returncode != 0 and "Traceback" not in done.stderr
        if not noticed and (done.returncode != 0 or json.loads(done.stdout) != _read_whole(world)):
            found.append(f"bit {bit} of byte {place} ({number}): {done.stderr[-300:] or 'facts differ'}")
    return Outcome(share, found)


def _read_whole(world: World) -> object:
    from tests.faults.reading import what_is_read

    return json.loads(json.dumps(what_is_read(str(world.path), f"sqlite:///{world.database('whole')}")))


CAMPAIGNS: dict[str, tuple[Callable[[World, int], Outcome], int]] = {
    "SIGKILL while collecting": (kills, 100),
    "endpoint storms": (storms, 120),
    "environment processes killed or stopped": (environment_deaths, 30),
    "store locked": (locked_databases, 25),
    "two collectors, one killed": (two_collectors, 10),
    "clock jumps": (clock_jumps, 10),
    "flipped bits in the store": (flipped_bits, 60),
}
"""Campaigns by name, each with its number of faults."""
