"""Test that one process at a time works on a task, and that a dead process does not keep it."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from retroformer.run.store import Store
from retroformer.run.store.database import Database
from retroformer.run.store.leases import LEASE_SECONDS, Leases
from tests.support.runs import ROOT

TASKS = tuple("abcdefgh")
HOST = socket.gethostname()


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


def test_a_task_is_leased_to_one_process_until_it_is_released(database: Database) -> None:
    mine, other = Leases(database, "riddles"), Leases(database, "riddles")
    assert mine.take("collect", TASKS, 3) == ["a", "b", "c"]
    assert other.take("collect", TASKS, 3) == ["d", "e", "f"]
    assert other.take("collect", TASKS[:3], 3) == []
    mine.release("collect", "b")
    assert other.take("collect", TASKS[:3], 3) == ["b"]
    other.release("collect", "a")  # Another process cannot release it.
    assert other.take("collect", ["a"], 1) == []


def test_arms_and_experiments_are_leased_separately(database: Database) -> None:
    assert Leases(database, "riddles").take("collect", TASKS, 8) == list(TASKS)
    assert Leases(database, "riddles").take("eval/a", TASKS, 8) == list(TASKS)
    assert Leases(database, "others").take("collect", TASKS, 8) == list(TASKS)


def test_all_leases_of_a_process_are_released_at_once(database: Database) -> None:
    mine, other = Leases(database, "riddles"), Leases(database, "riddles")
    mine.take("collect", TASKS, 8)
    mine.release_all()
    assert other.take("collect", TASKS, 8) == list(TASKS)


def test_a_lease_that_was_not_renewed_in_time_may_be_taken_by_another_machine(database: Database) -> None:
    now = [1000.0]
    mine = Leases(database, "riddles", host="here", clock=lambda: now[0])
    other = Leases(database, "riddles", host="there", clock=lambda: now[0])
    assert mine.take("collect", TASKS, 2) == ["a", "b"]
    now[0] += LEASE_SECONDS - 1
    assert other.take("collect", TASKS[:2], 2) == []
    mine.renew()
    now[0] += 2
    assert other.take("collect", TASKS[:2], 2) == []
    now[0] += LEASE_SECONDS
    assert other.take("collect", TASKS[:2], 2) == ["a", "b"]


_DIES = """
import os, sys
from retroformer.run.store.database import Database
from retroformer.run.store.leases import Leases
print(*Leases(Database(sys.argv[1]), "riddles", host=sys.argv[2]).take("collect", ["a", "b", "c"], 3), flush=True)
os._exit(1)
"""


@pytest.mark.parametrize(("host", "taken"), [(HOST, ["a", "b", "c", "d"]), ("another", ["d", "e", "f", "g"])])
def test_the_leases_of_a_dead_process_of_this_machine_are_free_at_once(url: str, host: str, taken: list[str]) -> None:
    command = [sys.executable, "-c", _DIES, url, host]
    dying = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert dying.stdout.split() == ["a", "b", "c"], dying.stderr
    with closing(Store(url, "riddles")) as store:
        assert store.leases.take("collect", TASKS, 4) == taken


def test_no_two_concurrent_processes_get_the_same_task(url: str) -> None:
    tasks = [str(number) for number in range(40)]

    def take(_: int) -> list[str]:
        store, taken = Store(url, "riddles"), list[str]()
        while some := store.leases.take("collect", [task for task in tasks if task not in taken], 3):
            taken += some
        store.close()
        return taken

    with ThreadPoolExecutor(6) as processes:
        taken = [task for some in processes.map(take, range(6)) for task in some]
    # A process may stop early if others have locked all rows; no task is taken twice.
    assert len(taken) == len(set(taken)) >= 38


def test_leases_whose_reply_was_lost_are_taken_again(database: Database) -> None:
    mine = Leases(database, "riddles")
    assert mine.take("collect", TASKS, 2) == mine.take("collect", TASKS, 2) == ["a", "b"]


def test_a_lease_with_an_expiry_far_in_the_future_is_free(database: Database) -> None:
    wrong = Leases(database, "riddles", host="there", clock=lambda: 1e9)
    right = Leases(database, "riddles", host="here", clock=lambda: 1e6)
    assert wrong.take("collect", TASKS, 2) == ["a", "b"]
    assert right.take("collect", TASKS[:2], 2) == ["a", "b"]


def test_a_zombie_process_keeps_no_lease(url: str) -> None:
    dying = subprocess.Popen([sys.executable, "-c", _DIES, url, HOST], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert dying.stdout is not None
    assert dying.stdout.read().split() == ["a", "b", "c"]  # Its end closes the pipe; it is not reaped yet.
    with closing(Store(url, "riddles")) as store:
        until = time.monotonic() + 60
        while store.leases.take("collect", TASKS[:3], 3) != ["a", "b", "c"]:
            assert time.monotonic() < until
    dying.wait()
    dying.stdout.close()
