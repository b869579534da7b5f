"""Protocols of the roles. Each has one or two methods, and implementations need not inherit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from retroformer.method.records import (
    Lesson,
    Memory,
    Record,
    Reflection,
    Step,
    Task,
    Tool,
    Trajectory,
    Transition,
    Usage,
)

ReturnOf = Callable[[Trajectory], float]
"""Function that computes a return of a stored attempt other than the stored one."""


class Scene(Record):
    """All that an actor sees when it chooses its next action."""

    task: Task
    opening: str
    steps: tuple[Step, ...]
    memory: Memory
    answers: tuple[dict[str, Any] | None, ...] = ()
    """For each step, the message of the model that began with it, as its provider sent it; None if there is none."""
    choices: tuple[str, ...] = ()
    """Actions that are possible now, if the environment lists them."""
    tools: tuple[Tool, ...] | None = None
    """Tools that can be called now, if the environment lists them with its transitions."""
    seed: int = 0
    """Seed of this action, for actors that sample: it is the same in every run and differs at every step."""


class Move(Record):
    """Decision of an actor. The thought may be empty."""

    action: str
    thought: str = ""
    usage: Usage = Usage()
    message: dict[str, Any] | None = None
    """The answer of the model as its provider sent it, which that provider wants back in the next call."""
    refusal: str = ""
    """Observation of an action that cannot be done, such as a tool call with unreadable arguments: it is a step, but
    the environment does not see it. Empty: the environment answers."""
    then: tuple["Move", ...] = ()
    """Further actions of the same decision, done in turn before the actor is asked again; the first holds the usage."""


class OfferedActions(NamedTuple):
    """The actions of a scene among which an actor chooses, as its model reads them. None is offered twice."""

    prompt: str
    """The text that the model continues."""
    continuations: tuple[str, ...]
    """Continuation by which the model chooses each action; none is the beginning of another."""
    actions: tuple[str, ...]
    """The same actions in the grammar of the environment."""


class Environment(Protocol):
    """Text world in this process that plays one episode after another."""

    def reset(self, task: Task) -> Transition:
        """Start an episode; the transition's observation is the opening."""
        ...

    def step(self, action: str) -> Transition:
        """Do one action, which may be any text: the environment answers a meaningless action and never raises."""
        ...


class Taskset(Protocol):
    def tasks(self) -> tuple[Task, ...]:
        """Return all tasks of the configured split, in the official order, without opening any. Raises MissingInput."""
        ...

    def environment(self) -> Environment:
        """Return a fresh environment that can play any of these tasks."""
        ...


@runtime_checkable
class Fingerprinted(Protocol):
    """Taskset that can identify the data of its tasks."""

    def fingerprint(self) -> str:
        """Return the sha256 of these data, or "" if the tasks are generated. Raises MissingInput."""
        ...


class Episode(Protocol):
    """One episode of an environment, played from the event loop."""

    async def reset(self) -> Transition:
        """Start the episode. Raises EnvironmentFailure."""
        ...

    async def step(self, action: str) -> Transition:
        """Do one action. Raises EnvironmentFailure."""
        ...


class Actor(Protocol):
    """Model that acts. It is frozen: Retroformer trains only the reflector."""

    async def act(self, scene: Scene) -> Move:
        """Choose the next action. Raises EndpointFailure if the call of its model failed."""
        ...


class Reflector(Protocol):
    """Model that reflects on a failure and writes advice."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Write advice for the next trial. `seed` makes candidates differ yet reproducible. Raises EndpointFailure."""
        ...


class Judgement(Record):
    """Verdict of an evaluator on an attempt."""

    solved: bool
    usage: Usage = Usage()


class Evaluator(Protocol):
    """Model that judges an attempt without the true outcome (Reflexion, section 3)."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Judge if the attempt, with this last answer of the environment, solved its task. Raises EndpointFailure."""
        ...


@dataclass(frozen=True)
class Agent:
    """The three models of Reflexion: an actor, a reflector and an evaluator."""

    actor: Actor
    reflector: Reflector
    evaluator: Evaluator | None = None
    """Evaluator of attempts; None: the agent sees the true outcome."""


Variation = tuple[Trajectory, Sequence[Lesson]]
"""A failed attempt, and the attempts before it with the advice after each, oldest first."""


class Hindsight(Protocol):
    """Program that writes advice from the attempts of training tasks that it was built with.

    It is given stored attempts and advice, and nothing else. Tests check that the writers of ALFWorld and HotPotQA
    import nothing that knows a solution.
    """

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return advice about a failure; empty if the attempts prove none.

        Args:
            failure: the failed attempt.
            earlier: the attempts before it, with the advice after each, oldest first.
            others: all other attempts at the same task in the same trial and in later ones.
        """
        ...

    def variations(self, failure: Trajectory, earlier: Sequence[Lesson], count: int) -> Sequence[Variation]:
        """Return at most `count` variations: parts of the attempts so far, each as a failure at another task.

        This is the idea of hindsight experience replay (Andrychowicz et al., 2017): what an attempt has shown is true
        whatever it was looking for. The advice before it stays as it was given, about its own task. Each task is drawn
        anew, so it may be drawn twice.
        """
        ...


BuildHindsight = Callable[[Iterable[Trajectory]], Hindsight]
"""Builds the writer from the attempts of training tasks."""
