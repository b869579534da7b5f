"""Test that the event loop never waits for the store, and that nothing is read or written after a failure."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event

from retroformer.errors import ConfigError, StoreError
from retroformer.method.records import Key, Trajectory
from retroformer.run.ledger import Ledger
from retroformer.run.store import NewInvalid, NewTrajectory, Store
from tests.support.characters import CAPITAL, PRICE, attempt_at
from tests.support.facts import add_trajectory, causes

KEY = Key(arm="collect", task_id=CAPITAL.id)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")) as store, closing(Ledger(store)) as made:
        yield made


def test_the_event_loop_runs_while_the_store_is_queried(ledger: Ledger) -> None:
    answered = threading.Event()

    async def ask_and_answer() -> bool:
        asked = asyncio.create_task(ledger.ask(answered.wait, 30.0))
        await asyncio.sleep(0)
        answered.set()  # An event loop that waits for the answer would never reach this line.
        return await asked

    assert asyncio.run(ask_and_answer())


def test_facts_that_arrive_while_a_transaction_runs_are_stored_together(ledger: Ledger) -> None:
    async def keep_many() -> list[object]:
        facts = [NewTrajectory(KEY.model_copy(update={"repeat": number}), attempt_at()) for number in range(300)]
        return list(await asyncio.gather(*(ledger.keep_trajectory(fact) for fact in facts)))

    commits = list[object]()
    event.listen(ledger.store._database._engine, "commit", commits.append)
    kept = asyncio.run(keep_many())
    assert len(kept) == 300
    assert len(commits) <= 3
    assert ledger.store.arm_counts()["collect"].attempts == 300
    assert ledger.store.usage("collect").calls == 300


def test_facts_of_interrupted_callers_are_stored(ledger: Ledger) -> None:
    async def interrupt() -> None:
        busy = threading.Event()
        asked = asyncio.create_task(ledger.ask(busy.wait, 30.0))
        facts = [NewTrajectory(KEY.model_copy(update={"repeat": number}), attempt_at()) for number in range(300)]
        keeping = [asyncio.create_task(ledger.keep_trajectory(fact)) for fact in facts]
        await asyncio.sleep(0)
        for task in keeping:
            task.cancel()
        busy.set()
        await ledger.settle()
        ledger.close()
        assert await asked
        assert all(
            isinstance(end, asyncio.CancelledError) for end in await asyncio.gather(*keeping, return_exceptions=True)
        )

    asyncio.run(interrupt())
    assert ledger.store.usage("collect").calls == 300


def test_after_a_permanent_error_nothing_is_read_or_written(ledger: Ledger, tmp_path: Path) -> None:
    with closing(Store(f"sqlite:///{tmp_path / 'experience.db'}", "riddles")) as other:
        other.declare("collect", {"seed": 1})
        add_trajectory(other, KEY, attempt_at())
    paid = list[int]()

    async def go_on() -> None:
        written = asyncio.create_task(ledger.keep_trajectory(NewTrajectory(KEY, attempt_at())))
        for _ in range(5):
            await asyncio.sleep(0)  # The write is in the thread now, and the question waits behind it.
        refused, waited = await asyncio.gather(written, ledger.ask(paid.append, 1), return_exceptions=True)
        assert isinstance(refused, ConfigError)
        assert isinstance(waited, ConfigError)
        with pytest.raises(ConfigError):
            await ledger.keep_invalid(NewInvalid(KEY, "It was spoiled.", PRICE))
        with pytest.raises(ConfigError):
            ledger.check()

    asyncio.run(go_on())
    assert paid == []
    assert ledger.store.arm_counts()["collect"].invalid == 0


def test_a_service_tries_a_store_that_failed_again_after_a_while(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def locked() -> None:
        raise StoreError("the database is locked")

    async def go_on(retried: Ledger) -> list[str]:
        with pytest.raises(StoreError):
            await retried.ask(locked)
        with pytest.raises(StoreError):
            await retried.ask(ledger.store.arms)
        later = time.monotonic() + 30
        monkeypatch.setattr(time, "monotonic", lambda: later)
        return await retried.ask(ledger.store.arms)

    with closing(Ledger(ledger.store, retry_after=30.0)) as service:
        assert asyncio.run(go_on(service)) == []
    with pytest.raises(StoreError):
        asyncio.run(go_on(ledger))


def test_a_query_that_fails_by_itself_stops_no_other(ledger: Ledger) -> None:
    def fail() -> None:
        raise KeyError("a bug")

    async def go_on() -> list[str]:
        with pytest.raises(KeyError):
            await ledger.ask(fail)
        return await ledger.ask(ledger.store.arms)

    assert asyncio.run(go_on()) == []


def test_a_lost_database_fails_everything_that_waits(ledger: Ledger, tmp_path: Path) -> None:
    for path in tmp_path.glob("experience.db*"):
        path.write_bytes(b"no database " * 1000)

    async def go_on() -> None:
        facts = [NewTrajectory(KEY.model_copy(update={"repeat": number}), attempt_at()) for number in range(5)]
        ended = await asyncio.gather(*(ledger.keep_trajectory(fact) for fact in facts), return_exceptions=True)
        assert all(isinstance(error, StoreError) for error in ended)
        with pytest.raises(StoreError):
            await ledger.ask(ledger.store.arms)

    asyncio.run(go_on())


def test_an_attempt_that_is_too_long_is_invalid_and_costs_no_other_fact(ledger: Ledger) -> None:
    long = attempt_at().model_copy(update={"opening": "x" * (65 << 20)})
    facts = [NewTrajectory(KEY.model_copy(update={"repeat": n}), long if n == 1 else attempt_at()) for n in range(3)]

    async def keep() -> list[Trajectory]:
        return list(await asyncio.gather(*map(ledger.keep_trajectory, facts)))

    kept = asyncio.run(keep())
    assert [attempt.outcome.value for attempt in kept] == ["failure", "invalid", "failure"]
    assert ledger.store.arm_counts()["collect"] == (2, 0, 1)
    assert causes(ledger.store, "collect") == ["A fact of 65 MiB is too long: at most 64 MiB."]
