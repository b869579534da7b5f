"""Facts that stages exchange. All are frozen: a change makes a new fact, and derived values are properties."""

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from statistics import fmean, stdev
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field

from retroformer.files.text import is_storable
from retroformer.method.conversation import ChatMessage
from retroformer.method.immutable import Record as Record

_MOST_TOKENS = 2**53
"""Largest number of tokens: more than anyone pays for, and less than a database column holds."""
_HIGHEST_NUMBER = 2**31 - 1
"""Largest number of a trial, candidate or repeat that a database column holds."""


def _storable(name: str) -> str:
    if not is_storable(name):
        raise ValueError("it holds NUL or half a character, which no database stores")
    return name


Name = Annotated[str, AfterValidator(_storable)]
KeyNumber = Annotated[int, Field(ge=0, le=_HIGHEST_NUMBER)]


Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]


class Task(Record):
    """One problem of an environment; its id is stable through all stages."""

    id: str
    environment: str
    split: str


class Step(Record):
    """One action of the actor and its result. The thought may be empty."""

    thought: str = ""
    action: str
    observation: str
    reward: Annotated[float, Field(allow_inf_nan=False)] = 0.0


class Usage(Record):
    """Consumption of model calls."""

    calls: Tokens = 0
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    dollars: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            calls=self.calls + other.calls,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            dollars=self.dollars + other.dollars,
        )


_STORY = re.compile(r"@[0-9a-f]{12}$")


def task_of_story(task_id: str) -> str:
    """Return the id of the task without the mark of a story.

    An agent that is improved where it runs lives through a task any number of times, each under an id of its own, such
    as `refund-1@0123456789ab`.
    """
    return _STORY.sub("", task_id)


class Tool(Record):
    """Tool that an environment offers to actors with native tool calling."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default={"type": "object", "properties": {}})
    """JSON schema of the arguments."""
    form: str = ""
    """Action that a call stands for, such as `Search[{entity}]`; empty: `name({"argument": "value"})`."""


class Transition(Record):
    """Answer of an environment to an action. `terminated` is not `truncated`; `success` is final."""

    observation: str
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    success: bool = False
    choices: tuple[str, ...] = ()
    """Actions that are possible now, if the environment lists them."""
    tools: tuple[Tool, ...] | None = None
    """Tools that can be called now, if they depend on the state; None: those of the transition before."""
    tests_passed: bool | None = None
    """True if the program passed the tests that the agent wrote; programming only."""
    steps: tuple[Step, ...] | None = None
    """Steps of an agent that plays the whole attempt in answer to one action; they stand for that action."""
    messages: tuple[ChatMessage, ...] | None = None
    """Conversation of such an agent, if it gave one."""
    usage: Usage = Usage()
    """Consumption of such an agent's own model calls."""

    @property
    def over(self) -> bool:
        return self.terminated or self.truncated


class Outcome(StrEnum):
    """Outcome of an attempt."""

    SUCCESS = "success"
    FAILURE = "failure"
    INVALID = "invalid"
    """Failure of the infrastructure, not of the agent: never a return of 0, never rated, never trained on."""


class Ending(StrEnum):
    """Reason why an attempt ended."""

    SOLVED = "solved"
    TERMINATED = "terminated"
    """The environment ended the episode without success, such as a wrong final answer."""
    STEP_LIMIT = "step limit"
    REPETITION = "repetition"
    """The same action with the same observation more than Omega times (Reflexion, section 4.1)."""
    TOO_MANY_ACTIONS = "too many actions"
    """More than epsilon actions (Reflexion, section 4.1)."""
    INFRASTRUCTURE = "infrastructure"


class Trajectory(Record):
    """One finished attempt at a task."""

    task: Task
    opening: str
    """The first observation, before any action."""
    steps: tuple[Step, ...] = ()
    messages: tuple[ChatMessage, ...] | None = None
    """Conversation that the steps were read from, if the agent gave one; the reflector reads the steps."""
    outcome: Outcome
    ending: Ending
    cause: str = ""
    """Description of the infrastructure failure; empty unless the outcome is invalid."""
    judged: bool | None = None
    """True if the agent's own evaluator considers the task solved; None if the agent sees the true outcome."""
    usage: Usage = Usage()

    @property
    def failed(self) -> bool:
        """True if the agent should retry: by its own verdict if there is one, else by the true outcome."""
        if self.outcome is Outcome.INVALID:
            return False
        return self.outcome is Outcome.FAILURE if self.judged is None else not self.judged

    @property
    def episode_return(self) -> float:
        """G, the undiscounted sum of rewards."""
        return math.fsum(step.reward for step in self.steps)

    @classmethod
    def invalid(cls, task: Task, cause: str) -> "Trajectory":
        """Return an attempt that could not begin."""
        return cls(task=task, opening="", outcome=Outcome.INVALID, ending=Ending.INFRASTRUCTURE, cause=cause)


class Sampling(Record):
    """Sampling settings of a model's text."""

    temperature: Annotated[float, Field(ge=0)] = 0.0
    max_new_tokens: Annotated[int, Field(ge=1)] = 100
    seed: int | None = None


class Author(Record):
    """Author of a reflection. `adapter_sha256` is None for a plain base model, a rule or a remote API."""

    endpoint: str
    model: str
    adapter_sha256: str | None = None


class Message(Record):
    """One turn of a chat prompt."""

    role: str
    content: str


FinishReason = Literal["stop", "length"]


class DrawnToken(NamedTuple):
    """Token of a text, with its log-probability under the model that wrote it, at temperature 1."""

    id: int
    log_prob: float


class Reflection(Record):
    """Advice with the prompt and the model that produced it."""

    text: str
    prompt: tuple[Message, ...]
    author: Author
    sampling: Sampling = Sampling()
    finish_reason: FinishReason | None = None
    """Reason why the text ends; None if its author does not say."""
    drawn: tuple[DrawnToken, ...] | None = None
    """Tokens of the text, the one that ends it included; None unless `reflector.tokens` asks for them."""
    usage: Usage = Usage()

    @property
    def is_cut(self) -> bool:
        """True if the text was cut at the limit of tokens."""
        return self.finish_reason == "length"


class Lesson(Record):
    """An earlier attempt at a task, and the advice that was written about it."""

    attempt: Trajectory
    advice: str


class Memory(Record):
    """What is remembered in a trial from those before it: by the actor, and in `earlier` by the reflector."""

    reflections: tuple[str, ...] = ()
    last_trajectory: Trajectory | None = None
    earlier: tuple[Lesson, ...] = ()
    """All attempts before this trial with their advice, oldest first; actors do not read them."""

    def remember(
        self, reflection: str, capacity: int, about: Trajectory | None = None, *, shows_attempt: bool = False
    ) -> "Memory":
        """Return this memory with one more reflection.

        The oldest reflections beyond `capacity` are dropped. A blank reflection is not added.

        Args:
            reflection: the advice.
            capacity: number of reflections that the actor remembers.
            about: the attempt that the reflection is about; None: it is not remembered.
            shows_attempt: whether the actor sees that attempt, in place of an earlier one.
        """
        kept = (*self.reflections, reflection)[-capacity:] if reflection.strip() else self.reflections
        lessons = (*self.earlier, Lesson(attempt=about, advice=reflection)) if about is not None else self.earlier
        return Memory(reflections=kept, last_trajectory=about if shows_attempt else None, earlier=lessons)


class Key(Record):
    """Natural key of a fact within an experiment."""

    arm: Name
    task_id: Name
    trial: KeyNumber = 0
    candidate: KeyNumber = 0
    repeat: KeyNumber = 0


class Returns:
    """Returns of the trial before a reflection, and of each repeat of the trial after it."""

    return_before: float
    """Return of the failure, or the mean of retries without advice."""
    returns_after: tuple[float, ...]
    error_before: float
    """Standard error of the return before; 0 for that of the failure."""

    @property
    def rating(self) -> float:
        """Gain of the next trial: G[i+1] - G[i], a mean over the repeats (Retroformer, section 4.3)."""
        after = self.returns_after
        return (after[0] if len(after) == 1 else fmean(after)) - self.return_before

    @property
    def standard_error(self) -> float:
        """Standard error of the rating; 0 with a single repeat, which cannot give one."""
        return math.hypot(standard_error(self.returns_after), self.error_before)


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 of a single value, which cannot give one."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


class RatedReflection(Record, Returns):
    """Reflection with the returns of the trials before and after it (one return after it per repeat)."""

    key: Key
    previous_candidate: KeyNumber = 0
    """Candidate number of the failure within its trial."""
    reflection: Reflection
    return_before: float
    returns_after: Annotated[tuple[float, ...], Field(min_length=1)]
    error_before: float = 0.0

    @property
    def text(self) -> str:
        return self.reflection.text

    @property
    def trajectory(self) -> tuple[str, int, int]:
        """Failure that it reflects on: the task, the trial after the failure, and the failure's candidate number."""
        return self.key.task_id, self.key.trial, self.previous_candidate


class PreferencePair(Record):
    """Two rated reflections on the same trajectory."""

    task_id: str
    prompt: tuple[Message, ...]
    chosen: str
    rejected: str
    chosen_is_cut: bool = False
    """True if the text was cut at the limit of tokens."""
    rejected_is_cut: bool = False
    margin: Annotated[float, Field(gt=0)]
    """Difference of their ratings."""
