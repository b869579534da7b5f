"""Tests of the process pool: many episodes at once; a process that dies or hangs costs only its own episodes."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.registry import taskset
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import EnvironmentFailure
from retroformer.method.records import Task, Transition
from tests.support import napping

HOMES = Alfworld(name="alfworld", source="generated", receptacles=8, max_steps=20)
TASKS = taskset(HOMES).tasks()[:24]

Play = Callable[[EnvironmentPool], Awaitable[None]]


def in_pool(
    play: Play, processes: int = 2, timeout_seconds: float = 300.0, section: EnvironmentSection = HOMES
) -> None:
    async def played() -> None:
        async with EnvironmentPool(section, 0, processes, timeout_seconds) as pool:
            await play(pool)

    asyncio.run(played())


def workers() -> list[int]:
    """Return the process ids of this process's children, youngest last."""
    started = list[int]()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The thread has ended.
            started += map(int, (thread / "children").read_text().split())
    return started


async def opening(pool: EnvironmentPool, task: Task) -> str:
    async with pool.episode(task) as episode:
        return (await episode.reset()).observation


def seconds_of_an_opening(section: EnvironmentSection = HOMES, task: Task = TASKS[0]) -> float:
    """Return the wall-clock seconds that a new process takes at the moment to begin an episode."""
    seconds = 0.0

    async def play(pool: EnvironmentPool) -> None:
        nonlocal seconds
        started = time.monotonic()
        await opening(pool, task)
        seconds = time.monotonic() - started

    in_pool(play, processes=1, section=section)
    return seconds


def test_many_episodes_at_once_are_the_same_as_each_alone() -> None:
    async def walk(pool: EnvironmentPool, task: Task) -> list[str]:
        async with pool.episode(task) as episode:
            seen = [await episode.reset()]
            for _ in range(5):
                await asyncio.sleep(0)
                seen.append(await episode.step(seen[-1].choices[0]))
            return [transition.observation for transition in seen]

    async def play(pool: EnvironmentPool) -> None:
        together = await asyncio.gather(*(walk(pool, task) for task in TASKS))
        alone = [await walk(pool, task) for task in TASKS[:6]]
        assert together[:6] == alone
        assert len({seen[0] for seen in together}) == len(TASKS)

    in_pool(play)


def test_the_pool_starts_no_more_processes_than_configured() -> None:
    before = set(workers())

    async def play(pool: EnvironmentPool) -> None:
        await asyncio.gather(*(opening(pool, task) for task in TASKS))
        assert len(set(workers()) - before) == 2

    in_pool(play)
    assert set(workers()) == before


def test_an_episode_fails_if_its_process_is_killed_and_the_next_one_works() -> None:
    async def play(pool: EnvironmentPool) -> None:
        async with pool.episode(TASKS[0]) as episode:
            await episode.reset()
            os.kill(workers()[-1], signal.SIGKILL)
            await asyncio.sleep(0.2)
            with pytest.raises(EnvironmentFailure, match="The environment process was killed by signal 9"):
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


def test_a_hanging_environment_is_replaced_after_its_time_limit() -> None:
    # The limit includes the start of a process, which takes long on a busy machine.
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


def test_an_abandoned_call_does_not_affect_later_ones() -> None:
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


def test_an_episode_may_be_left_before_it_begins() -> None:
    async def play(pool: EnvironmentPool) -> None:
        for task in TASKS[:3]:
            async with pool.episode(task):
                pass
        assert await opening(pool, TASKS[0])

    in_pool(play, processes=1)


def test_environments_are_reused_by_later_episodes() -> None:
    async def play(pool: EnvironmentPool) -> None:
        openings = [await opening(pool, task) for task in (*TASKS[:8], *TASKS[:8])]
        assert openings[:8] == openings[8:]

    in_pool(play, processes=1)


@pytest.fixture
def beds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Task, ...]:
    """Return tasks whose actions set the duration of each step."""
    monkeypatch.setenv("PYTHONPATH", napping.installed(tmp_path, os.environ))
    return napping.taskset(napping.Section()).tasks()


def patience(beds: tuple[Task, ...]) -> float:
    """Return a time limit for one step within which a process surely starts at the moment."""
    return max(3.0, 10 * seconds_of_an_opening(napping.Section(), beds[0]))


@pytest.mark.slow
def test_waiting_for_a_process_does_not_count_as_time_of_the_step(beds: tuple[Task, ...]) -> None:
    seconds = patience(beds)

    async def nap(pool: EnvironmentPool, task: Task) -> str:
        async with pool.episode(task) as episode:
            await episode.reset()
            return (await episode.step(f"nap {seconds / 16}")).observation

    async def play(pool: EnvironmentPool) -> None:
        seen = await asyncio.gather(*(nap(pool, task) for task in beds))
        assert seen == [f"{task.id}: nap {seconds / 16}" for task in beds]

    in_pool(play, 1, seconds, napping.Section())


@pytest.mark.parametrize(("end", "cause"), [("hang", "did not answer within"), ("crash", "ended with status 0")])
def test_an_episode_that_costs_its_process_leaves_its_neighbours_unharmed(
    beds: tuple[Task, ...], end: str, cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def neighbour(pool: EnvironmentPool, task: Task, fallen: asyncio.Event) -> Transition:
        async with pool.episode(task) as episode:
            await episode.reset()
            await episode.step("look")
            if task in beds[:4]:
                await fallen.wait()
            for action in ("turn", "look again"):
                seen = await episode.step(action)
            return seen

    async def fall(pool: EnvironmentPool, task: Task, fallen: asyncio.Event) -> None:
        async with pool.episode(task) as episode:
            await episode.reset()
            with pytest.raises(EnvironmentFailure, match=cause):
                await episode.step(end)
            fallen.set()

    async def play(pool: EnvironmentPool) -> None:
        fallen = asyncio.Event()
        others = (neighbour(pool, task, fallen) for task in beds[:8])
        *seen, _ = await asyncio.gather(*others, fall(pool, beds[8], fallen))
        assert [transition.observation for transition in seen if transition] == [
            f"{bed.id}: look, turn, look again" for bed in beds[:8]
        ]

    in_pool(play, 1, patience(beds), napping.Section())
    assert caplog.text == ""


MAIN = """
import asyncio
from retroformer.environments.pool import EnvironmentPool
from tests.support import napping

async def play():
    [task, *_] = napping.NappingTaskset().tasks()
    async with EnvironmentPool(napping.Section(), 0, 1, 300.0) as pool, pool.episode(task) as episode:
        await episode.reset()
        print((await episode.step("note")).observation, flush=True)
        await episode.step("hang")

asyncio.run(play())
"""


@pytest.mark.usefixtures("beds")
@pytest.mark.skipif(sys.platform != "linux", reason="the process is found in /proc")
def test_a_worker_in_the_middle_of_an_attempt_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", MAIN], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        scratch = Path(parent.stdout.readline()).parent
        [worker] = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        parent.kill()

    def runs() -> bool:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return scratch.name in Path(f"/proc/{worker}/cmdline").read_text()
        return False

    end = time.monotonic() + 60
    while (runs() or scratch.exists()) and time.monotonic() < end:
        time.sleep(0.05)
    assert not runs()
    assert not scratch.exists()


@pytest.mark.slow
def test_two_episodes_that_hang_cost_two_processes_and_no_third_episode(beds: tuple[Task, ...]) -> None:
    async def play(pool: EnvironmentPool) -> None:
        async def do(task: Task, action: str) -> str:
            async with pool.episode(task) as episode:
                await episode.reset()
                try:
                    return (await episode.step(action)).observation
                except EnvironmentFailure as failure:
                    return str(failure)[:26]

        seen = await asyncio.gather(*(do(bed, "hang" if bed in beds[1:3] else "look") for bed in beds[:6]))
        hung = "The environment did not an"
        assert seen == [hung if bed in beds[1:3] else f"{bed.id}: look" for bed in beds[:6]]

    in_pool(play, 1, patience(beds), napping.Section())


@pytest.mark.parametrize("end", ["look", pytest.param("hang", marks=pytest.mark.slow), "crash"])
def test_no_temporary_file_outlives_the_process_that_wrote_it(beds: tuple[Task, ...], end: str) -> None:
    notes = []

    async def play(pool: EnvironmentPool) -> None:
        async with pool.episode(beds[0]) as episode:
            await episode.reset()
            notes.append(Path((await episode.step("note")).observation))
            assert notes[0].is_file()
            with contextlib.suppress(EnvironmentFailure):
                await episode.step(end)

    in_pool(play, 1, patience(beds), napping.Section())
    assert not notes[0].parent.exists()
