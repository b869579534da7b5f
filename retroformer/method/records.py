"""Facts that stages exchange. All are frozen: a change makes a new fact, and derived values are properties."""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from retroformer.files.text import is_storable

ROLES = ("system", "developer", "user", "assistant", "tool")
"""Roles of the OpenAI chat API."""
OMIT_NONE = Field(exclude_if=lambda value: value is None)
"""Mark of an optional field that JSON shows only if it has a value."""
OMIT_EMPTY = Field(exclude_if=lambda value: not value)
"""Mark of a field that JSON shows only if it is not empty, zero or false."""
_MOST_TOKENS = 10**10
"""Largest number of tokens of a fact: more than anyone pays for, and sums of it fit into a database column."""
_MOST_DOLLARS = _MOST_REWARD = 1e12  # No sum of facts is infinite.
LAST_TRIAL = 9999
"""Largest number of a trial: readers go through all trials up to the last one."""
LONGEST_NAME = 500
"""Largest number of bytes of a name: a database's index holds only short keys."""


def _check_text(text: str) -> str:
    if not is_storable(text):
        raise ValueError("it holds NUL or half a character, which no database stores")
    return text


def _check_length(most: int, name: str) -> str:
    if (size := len(name.encode())) > most:
        raise ValueError(f"it has {size} bytes: a name has at most {most}")
    return name


StorableText = Annotated[str, AfterValidator(_check_text)]
Name = Annotated[StorableText, AfterValidator(partial(_check_length, LONGEST_NAME))]
TaskKey = Annotated[StorableText, AfterValidator(partial(_check_length, LONGEST_NAME + len("@0123456789ab")))]
"""`Task.key` of a task."""
KeyNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Number of a candidate or repeat that a database column holds."""
Tokens = Annotated[int, Field(ge=0, le=_MOST_TOKENS)]
FinishReason = Literal["stop", "length"]
Reward = Annotated[float, Field(ge=-_MOST_REWARD, le=_MOST_REWARD, allow_inf_nan=False)]


class Record(BaseModel):
    """Immutable fact."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Task(Record):
    """One problem of an environment; its id is stable through all stages."""

    id: str
    environment: str
    split: str
    story: Annotated[str, OMIT_EMPTY] = ""
    """Mark of one of the times that an agent does the task where it runs; empty if the task is done once."""
    sha256: Annotated[str, OMIT_EMPTY] = ""
    """Hash of the task's content, if it stands in a file with others; empty if its environment hashes all its data."""

    @property
    def key(self) -> str:
        """Name of the task in the keys of its facts; each story has one of its own, such as `refund-1@0123456789ab`."""
        return f"{self.id}@{self.story}" if self.story else self.id


class Step(Record):
    """One action of the actor and its result. The thought may be empty."""

    thought: str = ""
    action: str
    observation: str
    reward: Reward = 0.0


class Usage(Record):
    """Consumption of model calls."""

    calls: Tokens = 0
    prompt_tokens: Tokens = 0
    completion_tokens: Tokens = 0
    dollars: Annotated[float, Field(ge=0, le=_MOST_DOLLARS, allow_inf_nan=False)] = 0.0

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum, which may exceed the bounds of a fact."""
        sums = {name: getattr(self, name) + getattr(other, name) for name in Usage.model_fields}
        return Usage.model_construct(None, **sums)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def of_fact(self) -> "Usage":
        """The usage within the bounds of a fact."""
        tokens = {name: min(getattr(self, name), _MOST_TOKENS) for name in Usage.model_fields}
        return Usage.model_validate(tokens | {"dollars": min(self.dollars, _MOST_DOLLARS)})


class Tool(Record):
    """Tool that an environment offers to actors with native tool calling."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default={"type": "object", "properties": {}})
    """JSON schema of the arguments."""
    form: str = ""
    """Action that a call stands for, such as `Search[{entity}]`; empty: `name({"argument": "value"})`."""


class FunctionCall(Record):
    """Name of a tool and its arguments as JSON text."""

    name: str
    arguments: str


class ToolCall(Record):
    """Call of a tool in an assistant's message."""

    id: Annotated[str | None, OMIT_NONE] = None
    type: str = "function"
    function: FunctionCall


class ContentPart(Record):
    """Part of a message's content; a part that is not text keeps its own fields, as JSON."""

    type: str
    text: Annotated[str | None, OMIT_NONE] = None
    data: Annotated[dict[str, JsonValue], OMIT_EMPTY] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _keep_other_fields(cls, part: Any) -> Any:
        """Move fields of other types of parts, such as `image_url`, into `data`."""
        if not isinstance(part, Mapping) or set(part) <= {"type", "text"} or isinstance(part.get("data"), Mapping):
            return part
        own = {name: part[name] for name in ("type", "text") if name in part}
        return own | {"data": {name: value for name, value in part.items() if name not in own}}


class ChatMessage(Record):
    """One message of a conversation, in the form of the OpenAI chat API."""

    role: Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
    content: str | tuple[ContentPart, ...] | None = None
    tool_calls: Annotated[tuple[ToolCall, ...], OMIT_EMPTY] = ()
    tool_call_id: Annotated[str | None, OMIT_NONE] = None
    name: Annotated[str | None, OMIT_NONE] = None


def content_text(content: str | Sequence[ContentPart] | None) -> str:
    """Return the text of a message's content; each part that is not text becomes a mark such as `[image]`."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text if part.text is not None else f"[{part.type}]" for part in content)


class Transition(Record):
    """Answer of an environment to an action. `terminated` is not `truncated`; `success` is final."""

    observation: str
    reward: Reward = 0.0
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
    """The same action with the same observation more than `loop.repetitions` times (Reflexion, section 4.1)."""
    TOO_MANY_ACTIONS = "too many actions"
    """As many actions as `loop.actions` allows (Reflexion, section 4.1)."""
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
    """Tokens of the text, the one that ends it included; None unless `train.grpo.reward: stored` asks for them."""
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
        """Return this memory with one more reflection on the attempt `about`, which None does not remember.

        Only the last `capacity` reflections are kept, and no blank one. With `shows_attempt`, the actor sees the
        attempt in place of an earlier one.
        """
        kept = (*self.reflections, reflection)[-capacity:] if reflection.strip() else self.reflections
        lessons = (*self.earlier, Lesson(attempt=about, advice=reflection)) if about is not None else self.earlier
        return Memory(reflections=kept, last_trajectory=about if shows_attempt else None, earlier=lessons)


class Key(Record):
    """Natural key of a fact within an experiment."""

    arm: Name
    task_id: TaskKey
    trial: Annotated[int, Field(ge=0, le=LAST_TRIAL)] = 0
    candidate: KeyNumber = 0
    repeat: KeyNumber = 0


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
