"""What every campaign needs: a folder, an endpoint, runs that can be disturbed, and an unbroken run to compare with."""

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from retroformer.run.store import Store, open_store
from tests.faults.invariant import Ended, Whole, violations, whole_of
from tests.support.endpoint import Endpoint
from tests.support.runs import HOUSEHOLD, ROOT, open_config, write_config
from tests.support.waiting import becomes_true

SLOTS = 8
"""Rollouts in flight in one process, and so the most calls that a kill can waste."""
PATIENCE_SECONDS = 240.0
_MOST_STARTS = 200

Process: TypeAlias = "subprocess.Popen[str]"


class Outcome(NamedTuple):
    """What came of a campaign."""

    faults: int
    violations: list[str]
    left_out: str = ""
    """Reason why the campaign could not be run here."""


Campaign: TypeAlias = Callable[["World", int], Outcome]
"""Makes about so many faults."""


class World:
    """A folder, an endpoint, and what an unbroken run stores."""

    def __init__(self, folder: Path, server: Endpoint, chance: random.Random, path: Path | None = None) -> None:
        """Take the config at `path`, or write one whose reflector is the server."""
        self.folder, self.server, self.chance = folder, server, chance
        self.path = path or write_config(folder, server.url, HOUSEHOLD)
        self._runs = 0
        self.whole = cache(self._whole)

    def _whole(self, stage: str) -> Whole:
        self.server.requests.clear()
        process = self.start(f"whole-{stage}", stage=stage)
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, said
        with self.store(f"whole-{stage}") as store:
            return whole_of(store, len(self.server.requests))

    def new_run(self, stage: str = "collect") -> str:
        """Return the name of a run that nobody has started."""
        self.whole(stage)
        self._runs += 1
        self.server.requests.clear()
        return f"broken-{self._runs}"

    def start(
        self,
        run: str,
        *overrides: str,
        stage: str = "collect",
        wrapper: tuple[str, ...] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> Process:
        """Start a stage, or go on with it."""
        return subprocess.Popen(
            [sys.executable, *(wrapper or ("-m", stage)), str(self.path), f"run={run}", *overrides],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, run: str, *overrides: str, stage: str = "collect", wrapper: tuple[str, ...] = ()) -> list[str]:
        """Run until the stage succeeds; return a violation if it does not, or ends in a traceback."""
        said = ""
        for _ in range(_MOST_STARTS):
            process = self.start(run, *overrides, stage=stage, wrapper=wrapper)
            try:
                said, _ = process.communicate(timeout=PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                return [f"{run} hangs: {process.communicate()[0][-300:]}"]
            if "Traceback" in said:
                return [f"{run} ended in a traceback: {said[-600:]}"]
            if process.returncode == 0:
                return []
        return [f"{run} never ended: {said[-300:]}"]

    def judge(self, run: str, spare: int, *, stage: str = "collect", url: str = "") -> list[str]:
        """Compare a run that has ended with the unbroken one; `spare` calls may have been lost."""
        with self.store(run, url) as store:
            ended = Ended(len(self.server.requests), spare)
            return [f"{run}: {sentence}" for sentence in violations(store, self.whole(stage), ended)]

    @contextmanager
    def store(self, run: str, url: str = "") -> Iterator[Store]:
        """Open the store of a run."""
        address = f"store={url or f'sqlite:///{self.database(run)}'}"
        with closing(open_store(open_config(self.path, f"run={run}", address).experiment)) as store:
            yield store

    def database(self, run: str) -> Path:
        """Return the file of a run's store."""
        return self.folder / "runs" / run / "experience.db"

    def disturb(
        self,
        count: int,
        fault: Callable[[str, Process], int],
        *overrides: str,
        most: int,
        spare: Callable[[int], int],
        stage: str = "collect",
        url: str = "",
    ) -> Outcome:
        """Make faults while a run goes on, at most `most` in each; `spare` calls may be lost to so many of them."""
        faults, violations = 0, list[str]()
        with self.slowly(0.05):
            while faults < count:
                run, made = self.new_run(stage), 0
                process = self.start(run, *overrides, stage=stage)
                reader, said = _listening(process)
                while process.poll() is None and made < most and faults + made < count:
                    made += fault(run, process)
                reader.join(PATIENCE_SECONDS)
                if reader.is_alive():
                    process.kill()
                    reader.join()
                    violations.append(f"{run} hangs: {said[0][-300:]}")
                elif "Traceback" in said[0]:
                    violations.append(f"{run} ended in a traceback: {said[0][-600:]}")
                violations += self.finish(run, *overrides, stage=stage)
                violations += self.judge(run, spare(made), stage=stage, url=url)
                faults += made
        return Outcome(faults, violations)

    def kill_and_finish(self, count: int, stage: str, *overrides: str, longest: float, wasted: int) -> Outcome:
        """Kill a stage after a random time, up to five times, then let it end; `wasted` calls a kill may be lost."""
        faults, violations = 0, list[str]()
        with self.slowly(0.02):
            while faults < count:
                run, killed = self.new_run(stage), 0
                while faults < count and killed < 5:
                    process = self.start(run, *overrides, stage=stage)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(self.chance.uniform(0.2, longest))
                    ended = process.poll() is not None
                    kill(process)
                    if ended:
                        break
                    killed += 1
                    faults += 1
                # Whoever starts what is done asks its models once more, which no fault accounts for.
                if process.returncode:
                    violations += self.finish(run, *overrides, stage=stage)
                violations += self.judge(run, killed * wasted, stage=stage)
        return Outcome(faults, violations)

    @contextmanager
    def slowly(self, seconds: float) -> Iterator[None]:
        """Let the endpoint take this long for each answer, so that faults meet calls in flight."""
        self.whole("collect")
        self.server.latency_seconds = seconds
        yield
        self.server.latency_seconds = 0.0


def _listening(process: Process) -> tuple[Thread, list[str]]:
    """Read what a process says in a thread, so that its pipe never fills; the text is there when the thread ends."""
    said = list[str]()
    reader = Thread(target=lambda: said.append(process.communicate()[0]))
    reader.start()
    return reader, said


def still_runs_when(process: Process, condition: Callable[[], bool]) -> bool:
    """Wait until the condition holds or the process has ended; return True if it still runs."""
    assert becomes_true(lambda: condition() or process.poll() is not None), "a run hangs"
    return process.poll() is None


def kill(process: Process) -> None:
    """Kill a stage and wait for its end."""
    process.kill()
    process.communicate()
