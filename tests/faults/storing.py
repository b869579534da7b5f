"""Faults of what lies under a run: its database, its disk, and bits in its file."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.faults.reading import what_is_read
from tests.faults.world import PATIENCE_SECONDS, SLOTS, Outcome, Process, World, kill
from tests.support.postgres import database_on, find_programs, server_of
from tests.support.runs import ROOT


def locked_databases(world: World, count: int) -> Outcome:
    """Lock the store for a random time while facts are written."""

    def lock(run: str, process: Process) -> int:
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

    return world.disturb(count, lock, most=count, spare=lambda made: SLOTS)


def restarted_servers(world: World, count: int) -> Outcome:
    """Stop a PostgreSQL server as in an outage while facts are written, and start it again."""
    programs = find_programs()
    if programs is None:
        return Outcome(0, [], "PostgreSQL's server is not installed")
    faults, found = 0, list[str]()
    with server_of(programs) as server:
        while faults < count:
            with database_on(server) as database:

                def restart(run: str, process: Process) -> int:
                    time.sleep(world.chance.uniform(0.5, 2.0))
                    if process.poll() is not None:
                        return 0
                    server.stop(immediate=True)
                    time.sleep(world.chance.uniform(0.0, 1.0))
                    server.start()
                    return 1

                most = min(4, count - faults)
                outcome = world.disturb(
                    1,
                    restart,
                    f"store={database.url()}",
                    most=most,
                    spare=lambda made: made * SLOTS,
                    url=database.url(),
                )
                faults, found = faults + outcome.faults, found + outcome.violations
    return Outcome(faults, found)


def full_disks(world: World, count: int) -> Outcome:
    """Collect on a disk that is too small, which then grows."""
    found = list[str]()
    for _ in range(count):
        run = world.new_run()
        folder = world.database(run).parent
        with _disk(folder, f"size={world.chance.randrange(80, 240)}k") as has_disk:
            if not has_disk:
                return Outcome(0, [], "mounting a small disk needs root")
            found += _refused(world, run)
            _remount(folder, "size=64m")
            found += world.finish(run) + world.judge(run, SLOTS)
    return Outcome(count, found)


def read_only_folders(world: World, count: int) -> Outcome:
    """Kill collecting and start it again on a read-only disk, which it must refuse, and then on a writable one."""
    faults, found = 0, list[str]()
    while faults < count:
        run = world.new_run()
        folder = world.database(run).parent
        with _disk(folder, "size=64m") as has_disk, world.slowly(0.05):
            if not has_disk:
                return Outcome(0, [], "remounting a disk needs root")
            process = world.start(run, "collect.tasks=6")
            with suppress(subprocess.TimeoutExpired):
                process.wait(world.chance.uniform(0.5, 2.5))
            # A disk that a program writes to cannot be remounted, so it is killed before.
            ended = process.poll() is not None
            kill(process)
            if not ended:
                _remount(folder, "ro")
                found += _refused(world, run)
                _remount(folder, "rw")
                faults += 1
            found += world.finish(run) + world.judge(run, 2 * SLOTS)
    return Outcome(faults, found)


def flipped_bits(world: World, count: int) -> Outcome:
    """Flip a bit in the file of a finished store: it must be noticed, or change no fact."""
    world.whole("collect")
    whole_run = "whole-collect"
    found, whole = list[str](), world.database(whole_run).read_bytes()
    undamaged = _read(world, whole_run, world.database(whole_run))
    for number in range(count):
        path = world.database(world.new_run())
        path.parent.mkdir(parents=True)
        place, bit = world.chance.randrange(len(whole)), world.chance.randrange(8)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
        # Facts carry the name of their run, which is still that of the original.
        code = (
            "import json, sys\nfrom tests.faults.reading import what_is_read\n"
            "print(json.dumps(what_is_read(*sys.argv[1:])))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(world.path), whole_run, f"sqlite:///{path}"],
            capture_output=True,
            text=True,
            cwd=world.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        noticed = done.returncode != 0 and "Traceback" not in done.stderr
        if not noticed and (done.returncode != 0 or json.loads(done.stdout) != undamaged):
            found.append(f"bit {bit} of byte {place} ({number}): {done.stderr[-300:] or 'facts differ'}")
    return Outcome(count, found)


def _read(world: World, run: str, path: Path) -> Any:
    return json.loads(json.dumps(what_is_read(str(world.path), run, f"sqlite:///{path}")))


def _refused(world: World, run: str) -> list[str]:
    """Start collecting where it cannot write; return a violation unless it says so in a sentence."""
    said, _ = (process := world.start(run)).communicate(timeout=PATIENCE_SECONDS)
    if process.returncode == 0 or "Traceback" in said:
        return [f"{run} did not say that it could not write: {said[-300:]}"]
    return []


@contextmanager
def _disk(folder: Path, options: str) -> Iterator[bool]:
    """Mount a disk in memory; False if this is not allowed."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _remount(folder: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
