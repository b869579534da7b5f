"""Tests of the pace: an overloaded address gets fewer requests at once, and more again when it recovers."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.model import LanguageModel
from retroformer.endpoint.retries import ModelAddress, Pace, least_loaded
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.errors import EndpointBusy, EndpointFailure
from tests.support.endpoint import Behaviour, Body, Endpoint


class Busy(Endpoint):
    """Server that answers at most `most` requests at once, and 429 to any other."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.refused, self.highest = most, 0, 0
        self.latency_seconds = 0.02
        self._at_once, self._lock = 0, threading.Lock()

    def answer(self, path: str, body: Body) -> bytes | None:
        with self._lock:
            self._at_once += 1
            too_many = self._at_once > self.most
            self.refused += too_many
            self.highest = max(self.highest, min(self._at_once, self.most))
        try:
            if too_many:
                with self._lock:
                    self.script.appendleft(Behaviour.BUSY)
            return super().answer(path, body)
        finally:
            with self._lock:
                self._at_once -= 1


@contextmanager
def served(*servers: Busy) -> Iterator[EndpointSection]:
    first, *others = servers
    first.__enter__()
    for other in others:
        other.__enter__()
    try:
        yield EndpointSection(base_url=first.url, replicas=tuple(other.url for other in others), timeout_seconds=20)
    finally:
        for server in servers:
            server.__exit__()


async def ask(model: LanguageModel, count: int) -> int:
    """Ask so many questions at once; return how many failed."""
    calls = (model.complete(f"question {n}", temperature=0.0, max_new_tokens=5) for n in range(count))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(answer, EndpointFailure) for answer in answers if isinstance(answer, BaseException))
    return sum(isinstance(answer, BaseException) for answer in answers)


def test_an_overloaded_address_gets_fewer_requests_and_more_when_it_recovers() -> None:
    paces: dict[str, Pace] = {}

    async def run(section: EndpointSection, server: Busy) -> None:
        model = LanguageModel(section, str(section.base_url), paces=paces)
        try:
            # Slow answers overlap even where this process is slow to ask.
            server.latency_seconds = 0.5
            await ask(model, 40)
            (pace,) = paces.values()
            assert pace.limit <= 22, "half of 40, and a little for each answer"
            # What the first storm has taught lets every later call through, although it has only three tries.
            server.latency_seconds, server.refused = 0.2, 0
            assert await ask(model, 60) == 0
            assert server.refused < 30
            slow = pace.limit
            server.latency_seconds, server.most = 0.02, 1_000
            await ask(model, 150)
            assert pace.limit > slow + 5
            server.latency_seconds, server.highest = 0.5, 0
            await ask(model, 40)
            assert server.highest > 8
        finally:
            await model.close()

    with served(server := Busy(most=8)) as section:
        asyncio.run(run(section, server))


def test_calls_are_spread_over_the_replicas_by_their_room() -> None:
    paces: dict[str, Pace] = {}

    async def run(section: EndpointSection) -> None:
        model = LanguageModel(section, str(section.base_url), paces=paces)
        try:
            for _ in range(20):
                assert await ask(model, 10) == 0
        finally:
            await model.close()

    with served(small := Busy(most=4), large := Busy(most=1_000)) as section:
        asyncio.run(run(section))
        answered = [len(server.requests) - server.refused for server in (small, large)]
    assert sum(answered) == 200
    assert 20 <= answered[0] < answered[1]


def test_a_call_goes_to_another_replica_when_one_is_down() -> None:
    async def run(section: EndpointSection) -> int:
        model = LanguageModel(section, str(section.base_url))
        try:
            return await ask(model, 6)
        finally:
            await model.close()

    with served(down := Busy(most=0), up := Busy(most=9)) as section:
        assert asyncio.run(run(section)) == 0
    assert down.refused > 0
    assert len(up.requests) == 6


def test_a_replica_that_asks_for_an_hour_is_left_alone_and_the_other_answers_at_once() -> None:
    async def run(section: EndpointSection) -> float:
        model, loop = LanguageModel(section, str(section.base_url)), asyncio.get_running_loop()
        try:
            began = loop.time()
            assert [await ask(model, 1) for _ in range(6)] == [0] * 6
            return loop.time() - began
        finally:
            await model.close()

    with served(away := Busy(most=9), up := Busy(most=9)) as section:
        away.behaviour = Behaviour.AWAY
        assert asyncio.run(run(section)) < 10
    assert (len(away.requests), len(up.requests)) == (1, 6)


def test_a_call_fails_if_all_replicas_ask_for_an_hour() -> None:
    async def run(section: EndpointSection) -> None:
        model = LanguageModel(section, str(section.base_url))
        try:
            with pytest.raises(EndpointBusy) as busy:
                await model.complete("question", temperature=0.0, max_new_tokens=5)
            assert busy.value.retry_after_seconds == 3600
        finally:
            await model.close()

    with served(first := Busy(most=9), second := Busy(most=9)) as section:
        first.behaviour = second.behaviour = Behaviour.AWAY
        asyncio.run(run(section))


def test_the_wait_for_a_turn_is_not_time_of_the_call() -> None:
    async def run(section: EndpointSection) -> int:
        pace = Pace()
        model = LanguageModel(section, str(section.base_url), paces={str(section.base_url): pace})
        try:
            async with pace.turn() as began:
                pace.slow_down(began, 0.0)
                assert pace.limit == 1
                waiting = asyncio.create_task(ask(model, 1))
                await asyncio.sleep(1.5)
                assert not waiting.done()
            return await waiting
        finally:
            await model.close()

    with served(Busy(most=9)) as section:
        assert asyncio.run(run(section.model_copy(update={"timeout_seconds": 1.0}))) == 0


def test_a_requested_pause_holds_for_all_calls() -> None:
    async def run() -> float:
        pace = Pace()
        async with pace.turn() as began:
            pace.slow_down(began, 0.3)
        async with pace.turn() as next_one:
            return next_one - began

    assert asyncio.run(run()) >= 0.3


def test_one_storm_halves_the_limit_once() -> None:
    async def run() -> tuple[float, float]:
        pace = Pace()
        turns = [pace.turn() for _ in range(16)]
        began = [await turn.__aenter__() for turn in turns]
        for start in began:
            pace.slow_down(start, 0.0)
        once = pace.limit
        for turn in turns:
            await turn.__aexit__(None, None, None)
        async with pace.turn() as later:
            pace.slow_down(later, 0.0)
        return once, pace.limit

    once, twice = asyncio.run(run())
    assert once == 8
    assert twice == pytest.approx(1.0)


@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["before it runs", "in a pause that it sees"])
def test_a_wait_that_is_woken_and_cancelled_passes_its_turn_on(pause: float) -> None:
    async def run() -> None:
        pace = Pace()

        async def wait() -> None:
            async with pace.turn():
                pass

        async with pace.turn() as began:
            pace.slow_down(began, 0.0)
            first, second = (asyncio.create_task(wait()) for _ in range(2))
            await asyncio.sleep(0)
            pace.slow_down(began, pause)
        if pause:
            await asyncio.sleep(pause / 6)
        first.cancel()
        await asyncio.wait({second}, timeout=5)
        assert second.done()

    asyncio.run(run())


def test_a_replica_with_room_is_taken_before_one_with_a_queue() -> None:
    async def run() -> list[int]:
        addresses = (SecretUrl(f"http://127.0.0.1:{port}/v1") for port in (1, 2))
        servers = [ModelAddress(address, None, Pace()) for address in addresses]  # type: ignore[arg-type]
        taken = [servers.index(least_loaded(servers))]
        async with servers[0].pace.turn() as began:
            servers[0].pace.slow_down(began, 0.0)
            taken.append(servers.index(least_loaded(servers)))
            async with servers[1].pace.turn(), servers[1].pace.turn():
                taken.append(servers.index(least_loaded(servers)))
        return taken

    assert asyncio.run(run()) == [0, 1, 1]
