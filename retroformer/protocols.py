"""The roles. Each is one or two methods; nobody inherits to be accepted."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from retroformer.records import Memory, Record, Reflection, Step, Task, Trajectory, Transition, Usage


class Scene(Record):
    """All that an actor may look at when it chooses its next action."""

    task: Task
    opening: str
    steps: tuple[Step, ...]
    memory: Memory
    choices: tuple[str, ...] = ()
    """Actions that are possible now, where the environment can tell."""
    seed: int = 0
    """Of this action, for actors that sample: the same in every run, another one at every step."""


class Move(Record):
    """What an actor decides. The thought may be empty."""

    action: str
    thought: str = ""
    usage: Usage = Usage()


class Environment(Protocol):
    """One episode after another of a text world, in this process."""

    def reset(self, task: Task) -> Transition:
        """Start an episode; the transition's observation is the opening."""
        ...

    def step(self, action: str) -> Transition:
        """Do one action. Anything may be sent: what makes no sense is answered by the environment, never raised."""
        ...


class Taskset(Protocol):
    """Where the tasks of an environment come from."""

    def tasks(self) -> tuple[Task, ...]:
        """All tasks of the configured split, in the official order, without opening them.

        Raises:
            MissingInput: the data are not there; the message says how to get them.
        """
        ...

    def environment(self) -> Environment:
        """A fresh environment that can play any of these tasks."""
        ...


@runtime_checkable
class Fingerprinted(Protocol):
    """A taskset that knows which data its tasks are made of."""

    def fingerprint(self) -> str:
        """The sha256 of these data; empty where the tasks are generated. Raises MissingInput."""
        ...


class Episode(Protocol):
    """An environment played from the event loop, one episode."""

    async def reset(self) -> Transition:
        """Start the episode. Raises EnvironmentFailure."""
        ...

    async def step(self, action: str) -> Transition:
        """Do one action. Raises EnvironmentFailure."""
        ...


class Actor(Protocol):
    """Who acts. Frozen: nothing in this project trains it."""

    async def act(self, scene: Scene) -> Move:
        """Choose the next action. Raises EndpointFailure where its model could not be asked."""
        ...


class Reflector(Protocol):
    """Who looks back on a failure and writes advice."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Advice for the next trial. `seed` makes candidates differ and repeat. Raises EndpointFailure."""
        ...


class Judgement(Record):
    """What an evaluator makes of an attempt."""

    solved: bool
    usage: Usage = Usage()


class Evaluator(Protocol):
    """Who judges an attempt without being told the true outcome (Reflexion, section 3)."""

    async def judge(self, attempt: Trajectory, last: Transition) -> Judgement:
        """Whether the attempt, with this last answer of the environment, solved its task. Raises EndpointFailure."""
        ...


@dataclass(frozen=True)
class Agent:
    """The three models of Reflexion: one acts, one looks back, one judges."""

    actor: Actor
    reflector: Reflector
    evaluator: Evaluator | None = None
    """None: the agent is told the true outcome."""
