"""`python -m collect` killed at random moments: what is stored in the end is what an unbroken run stores."""

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from retroformer.assembly import Page
from tests.support.endpoint import Endpoint
from tests.support.killing import children_of, finish, run_and_kill
from tests.support.runs import Facts, facts, open_page, start, stored, write_page

SLOTS = 8
PATIENCE_SECONDS = 300.0
"""Longer than a stage takes here on a loaded machine."""


class Hold:
    """Lets an endpoint answer so many requests and no more, so that no stage ends before its moment is seen."""

    def __init__(self, server: Endpoint) -> None:
        self._changed, self._first = threading.Condition(), 1
        server.before_answer = self._wait

    def begin_at(self, number: int) -> None:
        """The requests before this one are answered."""
        with self._changed:
            self._first = number
            self._changed.notify_all()

    def end(self, server: Endpoint) -> None:
        """Those that wait are answered, and all that follow."""
        server.before_answer = lambda number: None
        self.begin_at(len(server.requests) + 1)

    def _wait(self, number: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: number < self._first)


def in_folder(page: Page, folder: Path) -> Page:
    """The same page as seen from elsewhere: its store by an absolute address."""
    store = f"sqlite:///{folder / page.experiment.folder / 'experience.db'}"
    return Page(page.path, page.overrides, page.experiment.model_copy(update={"store": store}))


def unbroken(folder: Path, server: Endpoint) -> tuple[Facts, int]:
    """The facts of a run that nobody killed, and how many requests it took."""
    path = write_page(folder, server.url)
    before = len(server.requests)
    finish(folder, "collect", [str(path), "run=unbroken"])
    return facts(in_folder(open_page(path, "run=unbroken"), folder)), len(server.requests) - before


def test_a_killed_collect_goes_on_where_it_was_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(0)
    with Endpoint() as server:
        whole, price = unbroken(tmp_path, server)
        server.requests.clear()
        server.latency_seconds = 0.03
        page = in_folder(open_page(write_page(tmp_path, server.url), "run=killed"), tmp_path)
        hold = Hold(server)

        def asked(count: int) -> Callable[[], bool]:
            def come() -> bool:
                hold.begin_at(count)
                return len(server.requests) >= count

            return come

        def made(count: int) -> Callable[[], bool]:
            return lambda: stored(tmp_path / "runs" / "killed" / "experience.db") >= count

        moments = [made(2), *(asked(count) for count in sorted(chance.sample(range(1, price), 4)))]
        killed = run_and_kill(tmp_path, "collect", [str(page.path), "run=killed"], moments)
        hold.end(server)
        first = finish(tmp_path, "collect", [str(page.path), "run=killed"])
        assert killed == len(moments)
        assert facts(page).same_as(whole)
        assert facts(page).invalid == 0
        assert price <= len(server.requests) <= price + killed * SLOTS
        assert max(Counter(str(request) for request in server.requests).values()) <= 1 + killed

        asked_before = len(server.requests)
        assert finish(tmp_path, "collect", [str(page.path), "run=killed"]) == first
        assert len(server.requests) == asked_before


def test_two_stages_on_one_store_hold_the_same_facts_in_the_end_as_one(tmp_path: Path) -> None:
    with Endpoint() as server:
        whole, _ = unbroken(tmp_path, server)
        path = str(write_page(tmp_path, server.url))
        stages = [start(tmp_path, "collect", [path, "run=shared"]) for _ in range(2)]
        said = [stage.communicate(timeout=PATIENCE_SECONDS) for stage in stages]
        assert [stage.returncode for stage in stages] == [0, 0], said
    page = in_folder(open_page(Path(path), "run=shared"), tmp_path)
    assert facts(page).same_as(whole)


def test_an_environment_process_that_is_killed_costs_attempts_but_no_facts(tmp_path: Path) -> None:
    with Endpoint() as server:
        whole, _ = unbroken(tmp_path, server)
        server.latency_seconds = 0.03
        server.requests.clear()
        hold = Hold(server)
        hold.begin_at(5)  # By then there are 8 facts, and more to come.
        path = str(write_page(tmp_path, server.url))
        process = start(tmp_path, "collect", [path, "run=killed", "loop.retries=5"])
        database = tmp_path / "runs" / "killed" / "experience.db"
        for count in (1, 8):
            while process.poll() is None and stored(database) < count:
                time.sleep(0.005)
            assert process.poll() is None
            for worker in children_of(process.pid):
                with contextlib.suppress(ProcessLookupError):  # One that was killed before may just be waited for.
                    os.kill(worker, signal.SIGKILL)
        hold.end(server)
        _, told = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, told
    assert facts(in_folder(open_page(Path(path), "run=killed"), tmp_path)).same_as(whole)
