"""Trial loop, which collect and eval share: attempt, reflect, attempt again."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol, TypeVar

from retroformer.errors import InfrastructureFailure, usage_of
from retroformer.experiment.sections.base import Branch, Loop
from retroformer.protocols import Agent, Episode, Move, Scene
from retroformer.records import Ending, Memory, Outcome, Reflection, Step, Task, Trajectory, Transition, Usage

Result = TypeVar("Result")


class Play(Protocol):
    """Play the task once with this memory, as candidate number `candidate` of trial number `trial`."""

    def __call__(self, memory: Memory, trial: int, candidate: int) -> Awaitable[Trajectory]: ...


class Advise(Protocol):
    """Reflect on a failure and write the advice for candidate number `candidate` of trial number `trial`."""

    def __call__(
        self, failure: Trajectory, memory: Memory, trial: int, candidate: int, previous: int
    ) -> Awaitable[Reflection]: ...


class _Way(NamedTuple):
    """An attempt that the loop may go on from: its candidate number, and the memory that it was played with."""

    candidate: int
    memory: Memory
    attempt: Trajectory


async def improve(
    attempt: Play,
    advise: Advise,
    loop: Loop,
    candidates: int,
    branch: Branch = "best",
    *,
    unadvised: bool = False,
    memory: Memory = Memory(),  # noqa: B008 - a record never changes
) -> None:
    """Run Retroformer's Algorithm 1 for one task: each failure gets `candidates` reflections, and each one is tried.

    The first attempt reads `memory`. With `unadvised` each failure is also retried without advice, as one more
    candidate, from which the loop never goes on.

    With branch `best` it goes on from the retry with the highest return, the first among equals (the "accepted"
    reflection of the paper), with `every` from every failed retry. It stops at a success, after the last trial, and at
    an invalid retry: the best candidate is unknown then, and a later run continues from here once it has the missing
    fact.

    Raises:
        InfrastructureFailure: a reflection could not be written.
    """

    async def retry(way: _Way, trial: int, candidate: int) -> _Way:
        reflection = reflections[candidate]
        memory = way.memory.remember(reflection.text, loop.memory, way.attempt, shows_attempt=loop.last_attempt)
        return _Way(candidate, memory, await attempt(memory, trial, candidate))

    ways = [_Way(0, memory, await attempt(memory, 0, 0))]
    for trial in range(1, loop.trials):
        each = candidates + unadvised
        tried = [(way, c) for way in ways if way.attempt.failed for c in _numbers(way.candidate, each, branch)]
        if not tried:
            return
        texts = await finish_all(advise(way.attempt, way.memory, trial, c, way.candidate) for way, c in tried)
        reflections = {candidate: text for (_, candidate), text in zip(tried, texts, strict=True)}
        retries = await finish_all(retry(way, trial, candidate) for way, candidate in tried)
        if any(way.attempt.outcome is Outcome.INVALID for way in retries):
            return
        advised = [way for way in retries if way.candidate % each < candidates]
        ways = [max(advised, key=lambda way: way.attempt.episode_return)] if branch == "best" else advised


def _numbers(previous: int, candidates: int, branch: Branch) -> range:
    """Return the candidate numbers of the reflections on an attempt; with branch `every` no two failures share any."""
    first = previous * candidates if branch == "every" else 0
    return range(first, first + candidates)


class Made(Protocol):
    """Finished attempt, with the properties that `is_complete` needs."""

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
    branch: Branch = "best",
    unadvised: bool = False,
) -> bool:
    """Return True if every fact that `improve` needs for a task exists.

    Args:
        attempts: finished attempts by trial, candidate and repeat.
        advised: trial and candidate of the reflections that have been written.
        trials: number of attempts at the task, the first included.
        candidates: number of reflections on each failure.
        repeats: number of attempts with each reflection.
        branch: as in `improve`.
        unadvised: as in `improve`.
    """
    ways, each = [0], candidates + unadvised
    for trial in range(1, trials):
        if any((trial - 1, way, 0) not in attempts for way in ways):
            return False
        failed = [way for way in ways if attempts[trial - 1, way, 0].failed]
        tried = [candidate for way in failed for candidate in _numbers(way, each, branch)]
        if not tried:
            return True
        if not advised >= {(trial, candidate) for candidate in tried}:
            return False
        if any((trial, candidate, repeat) not in attempts for candidate in tried for repeat in range(repeats)):
            return False
        ways = [candidate for candidate in tried if candidate % each < candidates]
        if branch == "best":
            ways = [max(ways, key=lambda c: attempts[trial, c, 0].episode_return)]
    return all((trials - 1, way, 0) in attempts for way in ways)


async def rollout(task: Task, episode: Episode, agent: Agent, memory: Memory, loop: Loop, seed: int = 0) -> Trajectory:
    """Play and judge one attempt. If the infrastructure fails, it is invalid, with the cause; never a return of 0.

    An actor that samples repeats its attempt exactly if `seed` is the same.
    """
    opening, steps, usage = "", list[Step](), Usage()
    waiting = deque[Move]()
    try:
        transition = await episode.reset()
        opening = transition.observation
        while (ending := _ending(transition, steps, loop)) is None:
            if not waiting:
                scene = Scene(
                    task=task,
                    opening=opening,
                    steps=tuple(steps),
                    memory=memory,
                    choices=transition.choices,
                    tools=transition.tools,
                    seed=seed + len(steps),
                )
                decision = await agent.actor.act(scene)
                usage += decision.usage
                waiting.extend((decision, *decision.then))
            move = waiting.popleft()
            transition = await _answer(episode, move, transition)
            usage += transition.usage
            steps += _steps(move, transition)
        attempt = Trajectory(
            task=task,
            opening=opening,
            steps=tuple(steps),
            messages=transition.messages,
            outcome=Outcome.SUCCESS if transition.success else Outcome.FAILURE,
            ending=ending,
            usage=usage,
        )
        if agent.evaluator is None:
            return attempt
        verdict = await agent.evaluator.judge(attempt, transition)
        return attempt.model_copy(update={"judged": verdict.solved, "usage": usage + verdict.usage})
    except InfrastructureFailure as failure:
        so_far = {"opening": opening, "steps": tuple(steps), "usage": usage + usage_of(failure)}
        return Trajectory.invalid(task, str(failure)).model_copy(update=so_far)
    except asyncio.CancelledError as stopped:
        stopped.usage = usage + usage_of(stopped)  # type: ignore[attr-defined]  # For the accounts.
        raise


async def _answer(episode: Episode, move: Move, before: Transition) -> Transition:
    """Return what a move led to; its tools are those of the transition before if it lists none.

    Raises:
        EnvironmentFailure: the environment could not do the action.
    """
    if move.refusal:
        refused = {"observation": move.refusal, "reward": 0.0, "steps": None, "usage": Usage()}
        return before.model_copy(update=refused)
    transition = await episode.step(move.action)
    return transition if transition.tools is not None else transition.model_copy(update={"tools": before.tools})


def _steps(move: Move, transition: Transition) -> tuple[Step, ...]:
    """Return the steps that a move has led to: its own, or those of an agent that played the whole attempt."""
    own = Step(thought=move.thought, action=move.action, observation=transition.observation, reward=transition.reward)
    if transition.steps is None:
        return (own,)
    if not transition.steps:
        return (own.model_copy(update={"action": ""}),)
    *before, last = transition.steps
    return (*before, last.model_copy(update={"reward": transition.reward}))


def _ending(transition: Transition, steps: Sequence[Step], loop: Loop) -> Ending | None:
    """Return why the attempt is over (by the environment or by Reflexion's heuristics, section 4.1), or None."""
    if transition.terminated:
        return Ending.SOLVED if transition.success else Ending.TERMINATED
    if transition.truncated:
        return Ending.STEP_LIMIT
    if len(steps) >= loop.actions:
        return Ending.TOO_MANY_ACTIONS
    same = Counter((step.action, step.observation) for step in steps)
    if same and max(same.values()) > loop.repetitions:
        return Ending.REPETITION
    return None


async def finish_all(work: Iterable[Awaitable[Result]]) -> list[Result]:
    """Return all results in order. If one fails, the others are finished first, as their cost is already paid."""
    done: list[Result | BaseException] = await asyncio.gather(*work, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return [result for result in done if not isinstance(result, BaseException)]
