"""`retroformer collect` killed at random moments stores in the end what an unbroken run stores."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from retroformer.config.file import Config
from tests.support.endpoint import Endpoint
from tests.support.killing import children_of, finish, run_and_kill
from tests.support.runs import Facts, facts, open_config, start, stored, write_config

SLOTS = 8
PATIENCE_SECONDS = 300.0
"""Upper bound on the duration of a stage on a loaded machine."""


class Hold:
    """Limit on the requests an endpoint answers, so that no stage ends before the test has seen its moment."""

    def __init__(self, server: Endpoint) -> None:
        self._changed, self._first = threading.Condition(), 1
        server.before_answer = self._wait

    def begin_at(self, number: int) -> None:
        """Answer only the requests before this one."""
        with self._changed:
            self._first = number
            self._changed.notify_all()

    def end(self, server: Endpoint) -> None:
        """Answer the waiting requests and all later ones."""
        server.before_answer = lambda number: None
        self.begin_at(len(server.requests) + 1)

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: number < self._first)


def in_folder(config: Config, folder: Path) -> Config:
    """Return the same config for another working folder: its store has an absolute URL."""
    store = f"sqlite:///{folder / config.experiment.folder / 'experience.db'}"
    return Config(config.path, config.overrides, config.experiment.model_copy(update={"store": store}))


def unbroken(folder: Path, server: Endpoint) -> tuple[Facts, int]:
    """Return the facts of an uninterrupted run, and the number of requests it took."""
    path = write_config(folder, server.url)
    before = len(server.requests)
    finish(folder, "collect", [str(path), "run=unbroken"])
    return facts(in_folder(open_config(path, "run=unbroken"), folder)), len(server.requests) - before


@pytest.mark.parametrize("kills", [3, pytest.param(5, marks=pytest.mark.slow)])
def test_a_killed_collect_continues_and_pays_for_nothing_twice(tmp_path: Path, kills: int) -> None:
    chance = random.Random(0)
    with Endpoint() as server:
        whole, price = unbroken(tmp_path, server)
        server.requests.clear()
        server.latency_seconds = 0.03
        # The same advice by a teacher: nothing is asked of the reflector, so its model is not even loaded.
        words = [
            "run=killed",
            "reflector.endpoint.base_url=",
            f"reflector.teacher={{base_url: {server.url}, model: big}}",
        ]
        config = in_folder(open_config(write_config(tmp_path, server.url), *words), tmp_path)
        hold = Hold(server)

        def asked(count: int) -> Callable[[], bool]:
            def come() -> bool:
                hold.begin_at(count)
                return len(server.requests) >= count

            return come

        def made(count: int) -> Callable[[], bool]:
            return lambda: stored(tmp_path / "runs" / "killed" / "experience.db") >= count

        moments = [made(2), *(asked(count) for count in sorted(chance.sample(range(1, price), kills - 1)))]
        killed = run_and_kill(tmp_path, "collect", [str(config.path), *words], moments)
        hold.end(server)
        first = finish(tmp_path, "collect", [str(config.path), *words])
        assert killed == len(moments)
        assert facts(config).same_as(whole)
        assert facts(config).invalid == 0
        assert price <= len(server.requests) <= price + killed * SLOTS
        assert max(Counter(str(request) for request in server.requests).values()) <= 1 + killed

        asked_before = len(server.requests)
        assert finish(tmp_path, "collect", [str(config.path), *words]) == first
        assert len(server.requests) == asked_before


@pytest.mark.slow
def test_two_stages_on_one_store_hold_the_same_facts_in_the_end_as_one(tmp_path: Path) -> None:
    with Endpoint() as server:
        whole, _ = unbroken(tmp_path, server)
        path = str(write_config(tmp_path, server.url))
        stages = [start(tmp_path, "collect", [path, "run=shared"]) for _ in range(2)]
        output = [stage.communicate(timeout=PATIENCE_SECONDS) for stage in stages]
        assert [stage.returncode for stage in stages] == [0, 0], output
    config = in_folder(open_config(Path(path), "run=shared"), tmp_path)
    assert facts(config).same_as(whole)


@pytest.mark.slow
def test_an_environment_process_that_is_killed_costs_attempts_but_no_facts(tmp_path: Path) -> None:
    with Endpoint() as server:
        whole, _ = unbroken(tmp_path, server)
        server.latency_seconds = 0.03
        server.requests.clear()
        hold = Hold(server)
        hold.begin_at(5)  # At this point 8 facts are stored, and more will follow.
        path = str(write_config(tmp_path, server.url))
        process = start(tmp_path, "collect", [path, "run=killed", "loop.retries=5"])
        database = tmp_path / "runs" / "killed" / "experience.db"
        for count in (1, 8):
            while process.poll() is None and stored(database) < count:
                time.sleep(0.005)
            assert process.poll() is None
            for worker in children_of(process.pid):
                with contextlib.suppress(ProcessLookupError):  # A process killed earlier only has to be waited for.
                    os.kill(worker, signal.SIGKILL)
        hold.end(server)
        _, stderr = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, stderr
    assert facts(in_folder(open_config(Path(path), "run=killed"), tmp_path)).same_as(whole)
