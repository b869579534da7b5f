"""What all sections of a config share, and those of who plays: loop, agents, endpoints, collection and rounds."""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from retroformer.endpoint.secrets.url import HttpUrl

Positive = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """Part of a config. It is immutable and rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _an_empty_section_is_its_default(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        sections = {name for name, field in cls.model_fields.items() if isinstance(field.default, Section)}
        return {name: value for name, value in values.items() if value is not None or name not in sections}


_MOST_ENVIRONMENT_PROCESSES = 8
"""Every process starts with the first episode and holds about 50 MB, so a large machine does not get one per core."""


class Loop(Section):
    trials: Annotated[int, Field(ge=1, le=20)] = 3
    """Number of attempts at a task, the first included (N in Retroformer's Algorithm 1)."""
    memory: Annotated[int, Field(ge=1, le=10)] = 3
    """Number of most recent reflections in the actor's memory (1 to 3 in Reflexion)."""
    last_attempt: bool = False
    """If true, the actor also sees its last attempt (episodic memory, EPM in Reflexion)."""
    repetitions: Positive = 3
    """Repetition limit: a trial ends when the same action has led to the same observation more than this many times
    (Omega in Reflexion's first version)."""
    actions: Positive = 30
    """Largest number of actions in a trial, after which it ends (epsilon in Reflexion's first version)."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Number of rollouts in flight at once."""
    backend: str = "local"
    """Where tasks are played. local: in this process; ray: on a Ray cluster (needs the extra `ray`); others belong to
    installed packages. Arms that learn are always played in this process."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Number of times to retry an invalid rollout or reflection before leaving it for the next run."""

    @property
    def environment_processes(self) -> int:
        """Number of environment processes: at least two, because an episode that hangs blocks those in its process."""
        return min(self.concurrency, max(2, min(os.cpu_count() or 1, _MOST_ENVIRONMENT_PROCESSES)))


class RetryPlan(Section):
    """Which retries follow a failure, and which of them the loop goes on from."""

    candidates: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of reflections sampled for each failure, each followed by a rollout (2, a pair, in the paper)."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of rollouts with each reflection, for an actor that is not deterministic."""
    unadvised: bool = False
    """If true, every failure is also retried without advice, and reflections are rated against these retries instead of
    the failure: an actor that samples may solve a task by luck."""
    branch: Literal["best", "every"] = "best"
    """Failed retries that get reflections of their own. best: the one with the highest return, if it failed (the
    paper's chain); every: all of them, which costs up to `candidates` times as many rollouts in each further trial."""

    @property
    def retries_per_failure(self) -> int:
        return self.candidates + 1 if self.unadvised else self.candidates

    def is_advised(self, candidate: int) -> bool:
        """Return False for the number of a retry without advice, which comes after those with advice."""
        return candidate % self.retries_per_failure < self.candidates

    def most_retries(self, trials: int) -> int:
        """Return the number of reflections on a task, each followed by a retry, if every attempt fails."""
        failures = 1 if self.branch == "best" else self.candidates
        return sum(failures ** (trial - 1) * self.retries_per_failure for trial in range(1, trials))


CHAIN = RetryPlan(candidates=1)
"""One retry after each failure."""


class Spending(Section):
    """Budget of a stage at paid endpoints."""

    tokens: Positive | None = None
    """Budget in prompt plus completion tokens; the stage stops cleanly when it is spent. None: no limit."""
    dollars: Annotated[float, Field(gt=0)] | None = None
    """Budget in dollars; the stage stops cleanly when it is spent. None: no limit."""


class Rounds(Section):
    """Rounds of collecting, training and validating (`retroformer rounds`)."""

    count: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of rounds."""
    stages: Annotated[tuple[Literal["sft", "reward", "ppo", "dpo", "grpo"], ...], Field(min_length=1)] = ("sft",)
    """Stages to train in each round, in this order. The adapter of the last one is compared with the best so far."""
    split: str | None = None
    """Split of the development tasks, on which reflectors are compared; it must be neither trained nor evaluated on."""
    staleness: Annotated[int, Field(ge=0, le=10)] = 0
    """Number of rounds by which the reflector that collects may lag behind. 0: one step after the other; 1: while a
    round trains, the next one is collected with the best reflector so far."""
    tasks: Positive | None = None
    """Number of development tasks; None: all of the split."""


class Collect(RetryPlan, Spending):
    tasks: Positive | None = None
    """Number of tasks of the split to use; None: all of them (4,000 of a split of generated games)."""
    order: Literal["official", "shuffled"] = "official"
    """Order of the split's tasks before `tasks` applies. shuffled: by the seed, for splits in which task types
    come in blocks."""
    written: Annotated[int, Field(ge=0)] = 0
    """Number of pieces of advice to write by rule for the warm start (`retroformer collect warm`); 0: none."""
    lesson: str = "mixed"
    """Content of that advice. mixed: the form of advice, both good and useless; useful: what was seen, or
    places to try."""


BEST_OF = r"(?P<model>[^@+]+)\+best(?P<answers>[2-9]|[1-5]\d|6[0-4])"
"""Regular expression of a best-of-n name, with n from 2 to 64."""


class BestOf(NamedTuple):
    """Parts of a best-of-n name."""

    model: str
    """Model that samples the answers: `base` or the name of an adapter."""
    answers: int
    """Number of answers to choose from."""


def best_of(name: str) -> BestOf | None:
    """Parse a best-of-n name, with or without an `@hash` suffix. Return None for the name of a plain model."""
    match = re.fullmatch(BEST_OF, name.partition("@")[0])
    return BestOf(match["model"], int(match["answers"])) if match else None


def adapter_name(model: str) -> str:
    """Return the name of the adapter that writes a model's answers: `sft` for `sft`, `sft@HASH` and `sft+best8`."""
    chosen = best_of(model)
    return model.partition("@")[0] if chosen is None else chosen.model


class Address(Section):
    """Address of an OpenAI-compatible server, with what every call to it needs."""

    base_url: HttpUrl | None = None
    """OpenAI-compatible `/v1` address; None: the stage starts the experiment's own server. Credentials in the address
    (`https://user:password@host/v1`, `?api_key=`) are used but never written to a file, log or report."""
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the API key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    """Time limit of one call in seconds, its retries and their pauses included; after that it counts as failed."""


WHOLE_DISTRIBUTION: Mapping[str, float] = MappingProxyType(
    {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
)
"""Fields of a request for tokens from the whole distribution, which is that of servers' log-probabilities. A server may
take other defaults from the model's generation_config.json."""
_CLIENT_FIELDS = ("model", "messages", "prompt", "stream", "n")
"""Fields of a request that no config may change: the client writes them, or could not read the response."""


def _without_client_fields(fields: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if taken := sorted(set(fields) & set(_CLIENT_FIELDS)):
        raise ValueError(f"the client itself writes {' and '.join(taken)}: leave it out")
    return fields


class Endpoint(Address):
    replicas: tuple[HttpUrl, ...] = ()
    """Further addresses that serve the same model. Every call goes to the address with the most room: each gets fewer
    requests at once after it answers 429, and more after other answers."""
    model: str = "base"
    """Model name to request: `base`, a stage of this run, a name in serve.adapters, or the remote model's name."""
    api: Literal["chat", "completions"] = "chat"
    """OpenAI API to call: chat completions or plain completions."""
    extra_body: Annotated[dict[str, JsonValue], AfterValidator(_without_client_fields)] = Field(default_factory=dict)
    """Further fields of every request, such as `{reasoning_effort: low}`; null removes a field that the endpoint
    refuses, as in `{temperature: null}` or `{max_tokens: null, max_completion_tokens: 300}`."""
    dollars_per_million: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)
    """Prices in dollars per million prompt tokens and per million completion tokens, for the accounts and the
    budget."""

    def named(self, model: str) -> Self:
        """Return the endpoint of another model at the same address."""
        return self.model_copy(update={"model": model})

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """Return the price of these numbers of tokens."""
        price_in, price_out = self.dollars_per_million
        return (prompt_tokens * price_in + completion_tokens * price_out) / 1e6


class ActorSection(Section):
    kind: str = "rule"
    """Kind of actor. react: few-shot ReAct; tools: native tool calling of a chat endpoint; chooser: one of the actions
    that the environment lists; otherwise an actor of the environment. ALFWorld has rule, a program, and household, a
    model trained on its compact text; WebShop has shopping, such a model, too; programming has programmer, which
    writes tests and a program."""
    endpoint: Endpoint = Endpoint()
    """Endpoint of the actor's model; the rule-based actor has none."""
    prompts: str = "default"
    """Prompt pack: a name in retroformer/method/packs or the path of a YAML file."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature. At 0, trial 0 repeats exactly, so that all arms can share it."""
    max_new_tokens: Positive = 100
    """Largest number of tokens of one thought and action."""
    choice: Literal["free", "admissible"] = "free"
    """Output allowed to kind household. free: any text; admissible: only actions that are possible now (our own server
    only)."""


class EvaluatorSection(Section):
    kind: str = "oracle"
    """Rule by which the agent tries again; what is solved is for the environment to say. oracle: the attempt failed;
    heuristic: it ended by repetition or took too long (Reflexion, section 4.1); tests: it fails the tests that the
    agent wrote (programming); model: the model at actor.endpoint decides."""

    @property
    def last_counts(self) -> bool:
        """True if the last attempt at a task counts, even after one that solved it: a program that is handed in."""
        return self.kind == "tests"


class ReflectorSection(Section):
    endpoint: Endpoint = Endpoint()
    """Endpoint of the reflector's model."""
    teacher: Endpoint | None = None
    """Endpoint of a stronger model that writes the advice while collecting, for the reflector to imitate; it
    has `base_url` and `model`. It never answers for the reflector: `eval` asks it in arms of kind teacher alone."""
    view: str = "full"
    """Form of the trajectory in the prompt. full: the whole attempt; compact: for small models, ALFWorld and WebShop;
    actor: continues the actor's own prompt, for one model that acts and adapts (SALA)."""
    history: Literal["all", "last"] = "all"
    """Attempts that the prompt shows. all: every attempt at the task so far, as far as the view has room; last: the
    last one, with the advice that it was given (as in the papers)."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.9
    """Sampling temperature of candidates in collect, and of best-of-n answers; else eval uses eval.temperature."""
    max_new_tokens: Positive = 128
    """Largest number of tokens of one reflection (128 in the paper)."""
    stop: tuple[str, ...] = ()
    """Strings that end a reflection, such as a newline if the prompt asks for a single line."""
    prompt_characters: Annotated[int, Field(ge=1000)] = 24000
    """Largest number of characters of a trajectory in the prompt; a longer one is shortened, longest observations
    first, the last one after all others."""

    @field_validator("teacher")
    @classmethod
    def _is_elsewhere(cls, teacher: Endpoint | None) -> Endpoint | None:
        if teacher is not None and (teacher.base_url is None or "model" not in teacher.model_fields_set):
            raise ValueError("a teacher is a model elsewhere: give its base_url and its model")
        return teacher

    @property
    def collector(self) -> Endpoint:
        """Endpoint of the model that writes the advice while collecting."""
        return self.teacher or self.endpoint
