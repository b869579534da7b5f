"""Environments in processes: many episodes at once, and one that dies or hangs costs its own episodes alone."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from retroformer.environments import taskset
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.sections import Alfworld
from retroformer.errors import EnvironmentFailure
from retroformer.records import Task

HOMES = Alfworld(name="alfworld", source="generated", receptacles=8, max_steps=20)
TASKS = taskset(HOMES).tasks()[:24]

Play = Callable[[EnvironmentPool], Awaitable[None]]


def in_pool(play: Play, processes: int = 2, timeout_seconds: float = 300.0) -> None:
    async def played() -> None:
        async with EnvironmentPool(HOMES, 0, processes, timeout_seconds) as pool:
            await play(pool)

    asyncio.run(played())


def workers() -> list[int]:
    """Process ids of the children of this process, youngest last."""
    threads = Path("/proc/self/task").iterdir()
    return [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]


async def opening(pool: EnvironmentPool, task: Task) -> str:
    async with pool.episode(task) as episode:
        return (await episode.reset()).observation


def seconds_of_an_opening() -> float:
    """What a new process takes by the clock until it has begun an episode, here and now."""
    seconds = 0.0

    async def play(pool: EnvironmentPool) -> None:
        nonlocal seconds
        started = time.monotonic()
        await opening(pool, TASKS[0])
        seconds = time.monotonic() - started

    in_pool(play, processes=1)
    return seconds


def test_many_episodes_at_once_are_the_same_as_each_alone() -> None:
    async def walk(pool: EnvironmentPool, task: Task) -> list[str]:
        async with pool.episode(task) as episode:
            seen = [await episode.reset()]
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(await episode.step(seen[-1].choices[0]))
            return [one.observation for one in seen]

    async def play(pool: EnvironmentPool) -> None:
        together = await asyncio.gather(*(walk(pool, task) for task in TASKS))
        alone = [await walk(pool, task) for task in TASKS[:6]]
        assert together[:6] == alone
        assert len({seen[0] for seen in together}) == len(TASKS)

    in_pool(play)


def test_the_pool_starts_no_more_processes_than_it_was_told() -> None:
    before = set(workers())

    async def play(pool: EnvironmentPool) -> None:
        await asyncio.gather(*(opening(pool, task) for task in TASKS))
        assert len(set(workers()) - before) == 2

    in_pool(play)
    assert set(workers()) == before


def test_an_episode_whose_process_is_killed_fails_and_the_next_one_works() -> None:
    async def play(pool: EnvironmentPool) -> None:
        async with pool.episode(TASKS[0]) as episode:
            await episode.reset()
            os.kill(workers()[-1], signal.SIGKILL)
            await asyncio.sleep(0.2)
            with pytest.raises(EnvironmentFailure, match="The environment process died"):
                await episode.step("look")
        assert "Your task is to" in await opening(pool, TASKS[0])

    in_pool(play, processes=1)


def test_a_killed_process_takes_no_episode_of_another_with_it() -> None:
    async def play(pool: EnvironmentPool) -> None:
        async with pool.episode(TASKS[0]) as first, pool.episode(TASKS[1]) as second:
            await asyncio.gather(first.reset(), second.reset())
            os.kill(workers()[-1], signal.SIGKILL)
            await asyncio.sleep(0.2)
            answers = await asyncio.gather(first.step("look"), second.step("look"), return_exceptions=True)
            assert sum(isinstance(answer, EnvironmentFailure) for answer in answers) == 1

    in_pool(play)


def test_an_environment_that_hangs_is_given_up_after_its_time_and_replaced() -> None:
    # The time holds for the start of a process, too, which takes long on a busy machine.
    timeout_seconds = max(3.0, 10 * seconds_of_an_opening())

    async def play(pool: EnvironmentPool) -> None:
        async with pool.episode(TASKS[0]) as episode:
            await episode.reset()
            os.kill(workers()[-1], signal.SIGSTOP)
            with pytest.raises(EnvironmentFailure, match=f"did not answer within {timeout_seconds:g} s"):
                await episode.step("look")
        assert "Your task is to" in await opening(pool, TASKS[0])

    in_pool(play, processes=1, timeout_seconds=timeout_seconds)


def test_a_task_that_cannot_be_loaded_fails_alone() -> None:
    async def play(pool: EnvironmentPool) -> None:
        unknown = Task(id="generated/train/no-such-game-000000", environment="alfworld", split="train")
        async with pool.episode(TASKS[0]) as good, pool.episode(unknown) as bad:
            await good.reset()
            with pytest.raises(EnvironmentFailure, match="no-such-game"):
                await bad.reset()
            assert (await good.step("look")).observation

    in_pool(play, processes=1)


def test_a_call_that_was_given_up_does_no_harm_to_later_ones() -> None:
    async def play(pool: EnvironmentPool) -> None:
        for delay in (0.0, 0.0005, 0.001, 0.002, 0.005):
            async with pool.episode(TASKS[0]) as episode:
                await episode.reset()
                giving_up = asyncio.create_task(episode.step("look"))
                await asyncio.sleep(delay)
                giving_up.cancel()
                await asyncio.gather(giving_up, return_exceptions=True)
                assert (await episode.step("inventory")).observation == "You are not carrying anything."

    in_pool(play, processes=1)


def test_an_episode_may_be_left_before_it_began() -> None:
    async def play(pool: EnvironmentPool) -> None:
        for task in TASKS[:3]:
            async with pool.episode(task):
                pass
        assert await opening(pool, TASKS[0])

    in_pool(play, processes=1)


def test_environments_are_used_again_by_later_episodes() -> None:
    async def play(pool: EnvironmentPool) -> None:
        openings = [await opening(pool, task) for task in (*TASKS[:8], *TASKS[:8])]
        assert openings[:8] == openings[8:]

    in_pool(play, processes=1)
