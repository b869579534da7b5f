"""The loop that collects is the loop that evaluates: attempt, look back, attempt again."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from typing import Protocol, TypeVar

from retroformer.config import Loop
from retroformer.errors import InfrastructureFailure, usage_of
from retroformer.protocols import Agent, Episode, Scene
from retroformer.records import Ending, Memory, Outcome, Reflection, Step, Task, Trajectory, Transition, Usage

Result = TypeVar("Result")


class Attempt(Protocol):
    """Play the task once, with this memory, as candidate number `candidate` of trial number `trial`."""

    def __call__(self, memory: Memory, trial: int, candidate: int) -> Awaitable[Trajectory]: ...


class Advise(Protocol):
    """Look back on a failure and write the advice for candidate number `candidate` of trial number `trial`."""

    def __call__(
        self, failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int
    ) -> Awaitable[Reflection]: ...


async def improve(attempt: Attempt, advise: Advise, loop: Loop, candidates: int) -> None:
    """Retroformer, Algorithm 1, for one task: every failure brings `candidates` reflections, and each is tried.

    The chain goes on from the retry with the highest return, the first of equals (the "accepted" reflection of the
    paper). It stops at a success, after the last trial, and where a retry is invalid: which candidate is best is not
    known then, and a later run with the missing fact goes on from here.

    Raises:
        InfrastructureFailure: a reflection could not be written.
    """
    memory, accepted = Memory(), 0
    trajectory = await attempt(memory, 0, 0)
    for trial in range(1, loop.trials):
        if not trajectory.failed:
            return
        reflections = await finish_all(advise(trajectory, memory, trial, c, accepted) for c in range(candidates))
        last = trajectory if loop.last_attempt else None
        memories = [memory.remember(reflection.text, loop.memory, last) for reflection in reflections]
        retries = await finish_all(attempt(memories[c], trial, c) for c in range(candidates))
        if any(retry.outcome is Outcome.INVALID for retry in retries):
            return
        accepted = max(range(candidates), key=lambda c: retries[c].episode_return)
        memory, trajectory = memories[accepted], retries[accepted]


class Made(Protocol):
    """What `is_complete` looks at in an attempt that has been made."""

    @property
    def failed(self) -> bool: ...

    @property
    def episode_return(self) -> float: ...


def is_complete(
    attempts: Mapping[tuple[int, int, int], Made],
    advised: Set[tuple[int, int]],
    *,
    trials: int,
    candidates: int,
    repeats: int = 1,
) -> bool:
    """Whether `improve` would find everything it asks for about a task.

    Args:
        attempts: what has been made, by trial, candidate and repeat.
        advised: trial and candidate of the reflections that have been written.
        trials: attempts at the task, the first included.
        candidates: reflections on each failure.
        repeats: attempts with each reflection.
    """
    accepted = 0
    for trial in range(1, trials):
        attempt = attempts.get((trial - 1, accepted, 0))
        if attempt is None:
            return False
        if not attempt.failed:
            return True
        tried = [(trial, candidate) for candidate in range(candidates)]
        if not advised >= set(tried):
            return False
        if not all((*one, repeat) in attempts for one in tried for repeat in range(repeats)):
            return False
        accepted = max(range(candidates), key=lambda c: attempts[trial, c, 0].episode_return)
    return (trials - 1, accepted, 0) in attempts


async def rollout(task: Task, episode: Episode, agent: Agent, memory: Memory, loop: Loop, seed: int = 0) -> Trajectory:
    """One attempt, judged. Where the infrastructure fails it ends as invalid, with the cause; never a return of 0.

    An actor that samples repeats its attempt where `seed` is the same.
    """
    opening, steps, usage = "", list[Step](), Usage()
    try:
        seen = await episode.reset()
        opening = seen.observation
        while (ending := _ending(seen, steps, loop)) is None:
            scene = Scene(
                task=task,
                opening=opening,
                steps=tuple(steps),
                memory=memory,
                choices=seen.choices,
                seed=seed + len(steps),
            )
            move = await agent.actor.act(scene)
            usage += move.usage
            seen = await episode.step(move.action)
            steps.append(
                Step(thought=move.thought, action=move.action, observation=seen.observation, reward=seen.reward)
            )
        made = Trajectory(
            task=task,
            opening=opening,
            steps=tuple(steps),
            outcome=Outcome.SUCCESS if seen.success else Outcome.FAILURE,
            ending=ending,
            usage=usage,
        )
        if agent.evaluator is None:
            return made
        verdict = await agent.evaluator.judge(made, seen)
        return made.model_copy(update={"judged": verdict.solved, "usage": usage + verdict.usage})
    except InfrastructureFailure as failure:
        so_far = {"opening": opening, "steps": tuple(steps), "usage": usage + failure.usage}
        return Trajectory.invalid(task, str(failure)).model_copy(update=so_far)
    except asyncio.CancelledError as stopped:
        stopped.usage = usage + usage_of(stopped)  # type: ignore[attr-defined]  # For the accounts.
        raise


def _ending(seen: Transition, steps: Sequence[Step], loop: Loop) -> Ending | None:
    """Why the attempt is over now, if it is: the environment says so, or a heuristic of Reflexion (section 4.1)."""
    if seen.terminated:
        return Ending.SOLVED if seen.success else Ending.TERMINATED
    if seen.truncated:
        return Ending.STEP_LIMIT
    if len(steps) >= loop.actions:
        return Ending.TOO_MANY_ACTIONS
    same = Counter((step.action, step.observation) for step in steps)
    if same and max(same.values()) > loop.repetitions:
        return Ending.REPETITION
    return None


async def finish_all(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """All results in order. Where one fails, the others are finished first: what they cost is paid, so it is kept."""
    done: list[Result | BaseException] = await asyncio.gather(*work, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]
