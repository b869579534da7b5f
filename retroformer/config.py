"""The experiment page: every knob, each with a sentence and a bound. One YAML file is one experiment.

All stages validate the whole page, so a misspelt key stops the first command instead of the last.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny

from retroformer.best_of import BEST_OF
from retroformer.environments import section_of
from retroformer.environments.sections import EnvironmentSection
from retroformer.secret_url import SecretUrl
from retroformer.section import Positive, Section
from retroformer.train_sections import Train


class Endpoint(Section):
    base_url: SecretUrl | None = None
    """An OpenAI-compatible `/v1` address; without one, the experiment's own server is started for the stage.
    Credentials in it (`https://user:password@host/v1`, `?api_key=`) are used, and written nowhere."""
    model: str = "base"
    """The name to ask for: `base`, a stage of this run, a name of serve.adapters, or the remote model's name."""
    api: Literal["chat", "completions"] = "chat"
    """Which of the two OpenAI calls to make."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    """How long one call may take, its retries and their pauses included, before it counts as failed."""
    dollars_per_million: tuple[Annotated[float, Field(ge=0)], Annotated[float, Field(ge=0)]] = (0.0, 0.0)
    """Price of a million prompt and of a million completion tokens, for the accounts and the budget."""


class Loop(Section):
    trials: Annotated[int, Field(ge=1, le=20)] = 3
    """Attempts at a task, the first included (N in Retroformer's Algorithm 1)."""
    memory: Annotated[int, Field(ge=1, le=10)] = 3
    """How many of the last reflections the actor carries (1 to 3 in Reflexion)."""
    last_attempt: bool = False
    """Whether the actor sees its last attempt, too (episodic memory, EPM in Reflexion)."""
    repetitions: Positive = 3
    """A trial ends when the same action brought the same observation more than this many times (Omega of Reflexion)."""
    actions: Positive = 30
    """A trial ends when the actor wants more than this many actions (epsilon of Reflexion)."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 16
    """Rollouts in flight at once."""
    environment_processes: Annotated[int, Field(ge=1, le=64)] = 2
    """Processes that hold the environments; an episode that hangs costs one of them."""
    step_timeout_seconds: Annotated[float, Field(gt=0)] = 60.0
    """How long an environment may take to answer one action before the episode counts as invalid, from when its process
    begins the step. Judging a program ends by its own limits, however short this is."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """How often an invalid rollout or reflection is tried again before it is left for the next run."""


class ActorSection(Section):
    kind: Literal["rule", "react", "household", "programmer"] = "rule"
    """rule: a program for ALFWorld; react: few-shot ReAct; household: a model taught ALFWorld's compact text;
    programmer: writes tests and a program."""
    endpoint: Endpoint = Endpoint()
    """Where its model answers; the rule-based actor has none."""
    prompts: str = "default"
    """The prompt pack: a name in retroformer/packs or a path of a YAML file."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """0 repeats trial 0 exactly, so that it can be shared by all arms."""
    max_new_tokens: Positive = 100
    """Tokens of one thought and action."""
    choice: Literal["free", "admissible"] = "free"
    """What kind household may write: any text, or only actions that are possible now (our own server only)."""


class EvaluatorSection(Section):
    kind: Literal["oracle", "heuristic", "tests", "model"] = "oracle"
    """Who says whether an attempt failed. oracle: the true outcome is told; heuristic: it ended by repetition or took
    too long (Reflexion, section 4.1); tests: those that the agent wrote (programming); model: a language model."""
    endpoint: Endpoint = Endpoint()
    """Where kind model answers."""


class ReflectorSection(Section):
    endpoint: Endpoint = Endpoint()
    """Where the reflector answers."""
    view: Literal["full", "compact", "actor"] = "full"
    """How the trajectory is written into the prompt. compact is for small models and ALFWorld only; actor goes on
    where the actor's own prompt ends, for one model that acts and adapts (SALA)."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.9
    """Of sampled candidates in collect; eval always uses eval.temperature."""
    max_new_tokens: Positive = 128
    """Tokens of one reflection (128 in the paper)."""
    stop: tuple[str, ...] = ()
    """Strings that end a reflection, such as a line end where one line is asked for."""
    prompt_characters: Annotated[int, Field(ge=1000)] = 24000
    """A longer trajectory is shortened, longest observations first; the end is kept."""


class Spending(Section):
    """What a stage may spend at endpoints that cost something."""

    tokens: Positive | None = None
    """Budget of prompt and completion tokens; the run stops cleanly when it is spent."""
    dollars: Annotated[float, Field(gt=0)] | None = None
    """Budget of money; the run stops cleanly when it is spent."""


class Collect(Spending):
    tasks: Positive | None = None
    """How many tasks of the split; all of them without a number (a generated split needs one)."""
    skip: Annotated[int, Field(ge=0)] = 0
    """Tasks of the split to leave out at its start."""
    order: Literal["official", "shuffled"] = "official"
    """Of the split's tasks before `skip` and `tasks` choose; shuffled by the seed, where types come in blocks."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 2
    """Reflections sampled for each failure, each rolled out: a pair in the paper."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    """Rollouts of each reflection, where the actor is not deterministic."""
    written: Annotated[int, Field(ge=0)] = 0
    """Pieces of advice written by rule for the warm start (`python -m collect warm`); 0 means none."""
    lesson: Literal["mixed", "useful"] = "mixed"
    """What they teach. mixed: the form, with advice good and useless; useful: what was seen, or places to try."""


class Serve(Section):
    host: str = "127.0.0.1"
    """Loopback unless you mean to open it; with keys set, every route but /health asks for one."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Of the OpenAI API; 0 takes a free one. The worker takes a free port."""
    adapters: dict[str, Path] = Field(default={})
    """More LoRA adapters on the same base, by the name to serve them under: folders, or one in retroformer/adapters."""
    best_of: tuple[Annotated[str, Field(pattern=f"^{BEST_OF}$")], ...] = ()
    """Names such as `sft+best8` to serve besides those that the page asks for: of 8 answers that `sft` draws the one
    that the reward model scores highest."""
    dtype: Literal["bfloat16", "float32"] = "float32"
    """float32 repeats exactly at temperature 0, alone and in a batch."""
    max_batch: Positive = 16
    """Requests decoded together."""
    body_bytes: Positive = 4_000_000
    """A larger request body is refused."""
    api_key_env: str | None = None
    """The environment variable with the comma-separated keys that every route but /health then asks for."""
    hand_over: bool = False
    """Whether who may call /v1/* may load any adapter on this machine, and draw by token ids (`generation` of PPO and
    GRPO)."""


class Arm(Section):
    kind: Literal["none", "phrase", "placebo", "model", "rule", "oracle", "retrieved"]
    """none: retry alone; phrase: a sentence that says nothing; placebo: advice written for another task; model: a
    reflector; rule: written by rule from the failure; oracle: written by rule from the solution; retrieved: what was
    written for other tasks while collecting, by likeness and by what it brought."""
    model: str | tuple[str, ...] = "base"
    """For kind model: the name to ask the reflector's endpoint for, also `sft+best8` for the best of 8 answers by the
    reward model; several names are training seeds of one method."""
    of: str = ""
    """For kind placebo: the arm whose advice is dealt out to other tasks."""
    wording: Literal["demonstrated", "unseen"] = "demonstrated"
    """For kinds rule and oracle: the words that the household actor was taught with, or others."""
    actor_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Of the actor in this arm's retries; the page's own without one."""
    last_attempt: bool | None = None
    """Whether the actor sees its last attempt in this arm's retries; as in the loop without a word."""


class Retrieval(Section):
    exploration: Annotated[float, Field(ge=0)] = 0.3
    """Weight of what was seldom tried against what has paid (c of UCB1, in units of return)."""
    days: Positive | None = None
    """Older advice is forgotten; none is without a number."""


class Eval(Spending):
    split: str | tuple[str, ...] | None = None
    """Held-out split to play, or several; the environment's own without one."""
    tasks: Positive | None = None
    """How many tasks of it; all without a number."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Of the reflectors; the best of several answers (`sft+best8`) is drawn at reflector.temperature."""
    arms: dict[str, Arm] = Field(
        default={
            "no reflection": Arm(kind="none"),
            "frozen reflector": Arm(kind="model", model="base"),
            "trained reflector": Arm(kind="model", model="ppo"),
            "placebo": Arm(kind="placebo", of="trained reflector"),
        }
    )
    """Ways to retry, compared on the same tasks and seeds; trial 0 is shared."""
    reference: str = "no reflection"
    """The arm that the others are compared with, as well as with each other."""
    actors: dict[str, Endpoint] = Field(default={})
    """Models to act in place of the page's actor, by the names of the table that compares them."""
    retrieval: Retrieval = Retrieval()
    """How arms of kind retrieved choose."""
    examples: tuple[str, str] | None = None
    """Two arms whose advice the report shows side by side, such as before and after training (ALFWorld only)."""


class Experiment(Section):
    """One experiment, from its tasks to its report."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Everything is written to runs/RUN."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of sampling, training and bootstrap."""
    round: Positive = 1
    """Of collecting and training. A later round collects on the next tasks, with a reflector that an earlier one has
    trained, and trains anew on the reflections of all rounds so far."""
    store: SecretUrl | None = None
    """A SQLAlchemy URL where several machines write; without one runs/RUN/experience.db. Its password is written
    nowhere."""
    environment: Annotated[SerializeAsAny[EnvironmentSection], BeforeValidator(section_of)]
    """Where the tasks come from; its `name` says which other keys there are."""
    loop: Loop = Loop()
    actor: ActorSection = ActorSection()
    evaluator: EvaluatorSection = EvaluatorSection()
    reflector: ReflectorSection = ReflectorSection()
    collect: Collect = Collect()
    train: Train = Train()
    serve: Serve = Serve()
    eval: Eval = Eval()

    @property
    def folder(self) -> Path:
        return Path("runs") / self.run

    def stage_folder(self, stage: str) -> Path:
        """Where a training stage leaves its adapter: runs/RUN/STAGE, in later rounds runs/RUN/STAGE-ROUND."""
        once = self.round == 1 or stage in ("warm", "actor")
        return self.folder / (stage if once else f"{stage}-{self.round}")

    @property
    def store_url(self) -> SecretUrl:
        return self.store or SecretUrl(f"sqlite:///{self.folder / 'experience.db'}")
