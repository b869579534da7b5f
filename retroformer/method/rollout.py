"""Trial loop, which collect and eval share: attempt, reflect, attempt again."""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Protocol, TypeVar

from retroformer.config.sections.base import CHAIN, Loop, RetryPlan
from retroformer.errors import InfrastructureFailure, usage_of
from retroformer.method.protocols import Agent, Episode, Move, Scene
from retroformer.method.records import Ending, Memory, Outcome, Reflection, Step, Task, Trajectory, Transition, Usage

Result = TypeVar("Result")


PlayAttempt = Callable[[Memory, int, int], Awaitable[Trajectory]]
"""Function that plays the task once with a memory: (memory, trial, candidate)."""
Reflect = Callable[[Trajectory, Memory, int, int, int], Awaitable[Reflection]]
"""Function that writes the advice for a candidate: (failure, memory, trial, candidate, candidate of the failure)."""


class FinishedAttempt(Protocol):
    """An attempt, or what the store's index says about one."""

    @property
    def failed(self) -> bool: ...

    @property
    def episode_return(self) -> float: ...


Attempt = TypeVar("Attempt", bound=FinishedAttempt)


async def improve(
    play: PlayAttempt,
    reflect: Reflect,
    loop: Loop,
    plan: RetryPlan = CHAIN,
    memory: Memory = Memory(),  # noqa: B008 - a record never changes
) -> None:
    """Run Retroformer's Algorithm 1 for one task: each failure is reflected on, and each reflection is tried.

    The first attempt reads `memory`. The loop stops at a success, after the last trial, and at an invalid retry: the
    best candidate is unknown then, and a later run continues from here once it has the missing fact. Raises
    InfrastructureFailure if a reflection could not be written.
    """
    memories = {0: memory}
    trajectories = {0: await play(memory, 0, 0)}
    for trial in range(1, loop.trials):
        pending = pending_retries(plan, trajectories)
        if not pending:
            return
        reflections = await finish_all(
            reflect(trajectories[failure], memories[failure], trial, candidate, failure)
            for candidate, failure in pending.items()
        )
        memories = {
            candidate: memories[failure].remember(
                reflection.text, loop.memory, trajectories[failure], shows_attempt=loop.last_attempt
            )
            for (candidate, failure), reflection in zip(pending.items(), reflections, strict=True)
        }
        retries = await finish_all(play(memories[candidate], trial, candidate) for candidate in pending)
        if any(trajectory.outcome is Outcome.INVALID for trajectory in retries):
            return
        trajectories = accepted_retries(plan, dict(zip(pending, retries, strict=True)))


def pending_retries(plan: RetryPlan, attempts: Mapping[int, FinishedAttempt]) -> dict[int, int]:
    """Return the candidate numbers of the retries that follow these attempts, each with that of its failure.

    With branch `every` no two failures share a number.
    """
    retries_each = plan.retries_per_failure
    return {
        (failure * retries_each if plan.branch == "every" else 0) + number: failure
        for failure, attempt in attempts.items()
        if attempt.failed
        for number in range(retries_each)
    }


def accepted_retries(plan: RetryPlan, retries: Mapping[int, Attempt]) -> dict[int, Attempt]:
    """Return the retries that the loop goes on from, by candidate number; never one without advice.

    With branch `best` it is the one with the highest return, the first among equals: the paper's accepted reflection.
    """
    advised = [candidate for candidate in retries if plan.is_advised(candidate)]
    if plan.branch == "best":
        advised = [max(advised, key=lambda candidate: retries[candidate].episode_return)]
    return {candidate: retries[candidate] for candidate in advised}


def is_complete(
    attempts: Mapping[tuple[int, int, int], FinishedAttempt],
    advised: Set[tuple[int, int]],
    trials: int,
    plan: RetryPlan,
) -> bool:
    """Return True if every fact that `improve` needs for a task exists.

    `attempts` are by trial, candidate and repeat, `advised` the trial and candidate of each reflection.
    """
    if (0, 0, 0) not in attempts:
        return False
    accepted = {0: attempts[0, 0, 0]}
    for trial in range(1, trials):
        pending = pending_retries(plan, accepted)
        if not pending:
            return True
        tried = {(trial, candidate, repeat) for candidate in pending for repeat in range(plan.repeats)}
        if not advised >= {(trial, candidate) for candidate in pending} or not attempts.keys() >= tried:
            return False
        accepted = accepted_retries(plan, {candidate: attempts[trial, candidate, 0] for candidate in pending})
    return True


async def rollout(task: Task, episode: Episode, agent: Agent, memory: Memory, loop: Loop, seed: int = 0) -> Trajectory:
    """Play and judge one attempt. If the infrastructure fails, it is invalid, with the cause; never a return of 0.

    An actor that samples repeats its attempt exactly if `seed` is the same.
    """
    opening, steps, usage = "", list[Step](), Usage()
    waiting, answers = deque[Move](), list[dict[str, Any] | None]()
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
                    answers=tuple(answers),
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
            answers += [move.message, *[None] * (len(steps) - len(answers) - 1)]
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
    """Return what a move led to, with the tools of the one before if it lists none. Raises EnvironmentFailure."""
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
