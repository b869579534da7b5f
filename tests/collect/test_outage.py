"""A store that fails in the middle of a paid run: the run stops paying, and a rerun ends like an unbroken run."""

import asyncio
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from collect.rate import rate_reflections
from retroformer.config.file import Config
from retroformer.errors import StoreError
from retroformer.method.records import Key
from retroformer.run.ledger import Ledger
from retroformer.run.store import NewTrajectory, Store, open_store
from tests.support.characters import CAPITAL, attempt_at
from tests.support.endpoint import Endpoint
from tests.support.postgres import PostgresDatabase
from tests.support.runs import ROOT, Facts, facts, open_config, write_config
from tests.support.waiting import becomes_true

pytestmark = pytest.mark.usefixtures("workplace")

CONCURRENCY = 4
WORDS = (f"loop.concurrency={CONCURRENCY}", "collect.tasks=12")
_PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Facts, int]:
    """Facts stored by a run without any fault, and the number of calls it pays for."""
    folder = tmp_path_factory.mktemp("unbroken")
    with Endpoint() as server, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        config = open_config(write_config(folder, server.url), *WORDS)
        asyncio.run(rate_reflections(config))
        return facts(config), len(server.requests)


def test_an_outage_that_passes_costs_nothing(
    tmp_path: Path, postgres: PostgresDatabase, unbroken: tuple[Facts, int]
) -> None:
    whole, price = unbroken
    with Endpoint() as server:

        def fail_for_a_while() -> None:
            postgres.server.stop(immediate=True)
            stopped = len(server.requests)
            # Calls in flight are answered, and no other call starts.
            assert becomes_true(lambda: server.answered == len(server.requests))
            time.sleep(0.5)
            assert len(server.requests) <= stopped + CONCURRENCY
            postgres.server.start()

        outage = threading.Thread(target=fail_for_a_while)
        server.before_answer = lambda number: outage.start() if number == 7 else None
        server.latency_seconds = 0.05
        config = open_config(write_config(tmp_path, server.url), *WORDS, f"store={postgres.url()}")
        asyncio.run(rate_reflections(config))
        outage.join()
        assert facts(config).same_as(whole)
        assert facts(config).invalid == 0
        assert len(server.requests) == price


@pytest.mark.parametrize("reacts", [False, True])
def test_an_interrupted_run_has_counted_every_call_it_paid_for(tmp_path: Path, reacts: bool) -> None:
    """Interrupt a run with calls of the actor, or of the reflector, in flight."""

    async def interrupted(config: Config) -> None:
        running = asyncio.create_task(rate_reflections(config))
        assert await asyncio.to_thread(becomes_true, lambda: len(server.requests) >= 9)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with Endpoint() as server:
        server.latency_seconds = 0.3
        acts = ("actor.kind=react", "actor.endpoint.model=actor", f"actor.endpoint.base_url={server.url}")
        config = open_config(write_config(tmp_path, server.url), *WORDS, *(acts if reacts else ()))
        asyncio.run(interrupted(config))
        with closing(open_store(config.experiment)) as store:
            assert store.usage("collect").calls == len(server.requests) >= 9
            assert store.leases.take("collect", ["anything"], 1) == ["anything"]


_SMALL_DISK = """
mount -t tmpfs -o size={kilobytes}k none {folder}/runs && {python} -m collect {config} {words}; status=$?
mkdir -p {folder}/saved && cp -r {folder}/runs/. {folder}/saved; exit $status
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_run_and_a_rerun_pays_only_for_what_is_missing(
    tmp_path: Path, unbroken: tuple[Facts, int]
) -> None:
    whole, price = unbroken
    (tmp_path / "runs").mkdir()
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*mount, f"mount -t tmpfs none {tmp_path / 'runs'}"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), *WORDS)
        script = _SMALL_DISK.format(
            kilobytes=500, folder=tmp_path, python=sys.executable, config=config.path, words=" ".join(WORDS)
        )
        done = subprocess.run([*mount, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 1, done.stderr
        *_, sentence = done.stderr.strip().splitlines()
        assert "database or disk is full" in sentence
        assert "free some space and run again" in sentence
        paid = len(server.requests)
        shutil.copytree(tmp_path / "saved", tmp_path / "runs", dirs_exist_ok=True)
        stored = len(facts(config).reflections)
        assert 0 < stored < len(whole.reflections)
        # Not stored: calls that were in flight when the first write failed, or waited for it.
        assert paid - stored <= 2 * CONCURRENCY
        asyncio.run(rate_reflections(config))
        assert facts(config).same_as(whole)
        assert len(server.requests) - paid == len(whole.reflections) - stored
        assert price == len(whole.reflections)


def test_after_a_permanent_store_error_every_later_query_fails_at_once(postgres: PostgresDatabase) -> None:
    key = Key(arm="collect", task_id=CAPITAL.id)

    async def use() -> None:
        store = Store(postgres.url(), "riddles", patience_seconds=0.2)
        ledger = Ledger(store)
        await ledger.keep_trajectory(NewTrajectory(key, attempt_at()))
        postgres.server.stop(immediate=True)
        with pytest.raises(StoreError, match="check that it can be reached and written and run again"):
            await ledger.keep_trajectory(NewTrajectory(key.model_copy(update={"trial": 1}), attempt_at()))
        postgres.server.start()
        with pytest.raises(StoreError):
            ledger.check()
        with pytest.raises(StoreError):
            await ledger.ask(store.trajectory, key)
        ledger.close()
        store.close()
        again = Store(postgres.url(), "riddles")
        assert [key for key, _ in again.stream_trajectories("collect")] == [key]
        again.close()

    asyncio.run(use())


@pytest.mark.slow
def test_a_server_that_is_stopped_for_good_ends_the_run_with_one_sentence(
    tmp_path: Path, postgres: PostgresDatabase, unbroken: tuple[Facts, int]
) -> None:
    whole, price = unbroken
    with Endpoint() as server:
        stopped_at = list[int]()

        def stop() -> None:
            postgres.server.stop(immediate=True)
            stopped_at.append(len(server.requests))

        outage = threading.Thread(target=stop)
        server.before_answer = lambda number: outage.start() if number == 7 else None
        server.latency_seconds = 0.05
        config = open_config(write_config(tmp_path, server.url), *WORDS, f"store={postgres.url()}")
        command = [sys.executable, "-m", "collect", str(config.path), *config.overrides]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)})
        outage.join()
        assert done.returncode == 1
        assert "check that it can be reached and written and run again" in done.stderr.splitlines()[-1]
        assert len(server.requests) <= stopped_at[0] + CONCURRENCY
        postgres.server.start()
        asyncio.run(rate_reflections(config))
        assert facts(config).same_as(whole)
        assert len(server.requests) <= price + 2 * CONCURRENCY


def test_an_interrupted_run_does_not_wait_for_an_unreachable_store(postgres: PostgresDatabase) -> None:
    key = Key(arm="collect", task_id=CAPITAL.id)

    async def use() -> None:
        store = Store(postgres.url(), "riddles", patience_seconds=3600.0)
        # Closing the ledger waits for its thread: a thread that waits for the server would block this test for an hour.
        with closing(store), closing(Ledger(store)) as ledger:
            await ledger.keep_trajectory(NewTrajectory(key, attempt_at()))
            postgres.server.stop(immediate=True)
            waiting = asyncio.create_task(ledger.ask(store.trajectory, key))
            await asyncio.sleep(0.3)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    asyncio.run(use())
    assert not postgres.server.running
    postgres.server.start()
