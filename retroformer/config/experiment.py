"""The experiment config: all sections together, `serve` and `eval` themselves, and where a run's files lie.

Names that a stage looks up, such as an adapter, are checked by that stage before it spends anything.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from retroformer.agents.arms.arm import Arm
from retroformer.agents.arms.baselines import BASELINES, NoAdviceArm, PlaceboArm
from retroformer.agents.arms.retrieved import RetrievedArm
from retroformer.agents.reflector import ModelArm, TeacherArm
from retroformer.config.sections.base import (
    BEST_OF,
    WHOLE_DISTRIBUTION,
    ActorSection,
    Collect,
    Endpoint,
    EvaluatorSection,
    Loop,
    Positive,
    ReflectorSection,
    Rounds,
    Section,
    Spending,
)
from retroformer.config.sections.train import Generation, Train
from retroformer.endpoint.secrets.url import SecretUrl, sqlite_url
from retroformer.environments.registry import extras, section_of
from retroformer.environments.section import EnvironmentSection
from retroformer.run.arm_names import eval_arm

Environment = Annotated[SerializeAsAny[EnvironmentSection], BeforeValidator(section_of)]

STORE_FILE = "experience.db"
"""File of the store in the folder of a run whose config names no database."""
_MOST_RETRIES = 1000
"""Largest number of retries of a task that a config may ask for by branching."""


class Serve(Section):
    host: str = "127.0.0.1"
    """Address to listen on. Keep loopback unless the server is to be reachable from outside; with keys set
    (`api_key_env`), every route but /health requires one."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port of the OpenAI API; 0: any free port."""
    controller: SecretUrl | None = None
    """Address of a running FastChat controller to register at, such as http://127.0.0.1:21001; its API server then
    reaches the models, too. `retroformer serve --fastchat` starts both itself."""
    adapters: dict[str, Path] = Field(default={})
    """Additional LoRA adapters on the same base model: name to serve under, and a folder or the name of an adapter in
    retroformer/models/adapters."""
    best_of: tuple[Annotated[str, Field(pattern=f"^{BEST_OF}$")], ...] = ()
    """Additional best-of-n names to serve, besides those that the config uses elsewhere. `sft+best8` samples 8 answers
    from `sft` and returns the one with the highest score of the reward model."""
    dtype: Literal["auto", "bfloat16", "float32"] = "float32"
    """Data type of the served weights. With float32 on a CPU, answers at temperature 0 repeat exactly, alone and
    in a batch. auto: the base's own type, or float32 where the hardware has no instructions for bfloat16; with
    `train.preset` it is the default."""
    engine: Literal["own", "vllm"] = "own"
    """Program that computes the answers. vllm: `vllm serve`, which `retroformer serve` starts, or the servers of
    `vllm`."""
    vllm: Generation | None = None
    """vLLM servers that run already and read this machine's disk; None: one is started."""
    gpu_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory that the server may take, weights included; lower it where training shares the GPU."""
    api_key_env: str | None = None
    """Environment variable that holds comma-separated API keys, one of which every route but /health then requires;
    None: no key is needed."""
    hand_over: bool = False
    """If true, clients of /v1/* may load any adapter on this machine and sample by token ids (needed for `generation`
    of PPO and GRPO)."""

    @model_validator(mode="after")
    def _servers_are_of_the_engine(self) -> Self:
        if self.vllm is not None and self.engine == "own":
            raise ValueError("serve.vllm names servers that nothing uses: set serve.engine=vllm, or leave it out")
        return self


_GENERAL_ARMS: tuple[type[Arm], ...] = (*BASELINES, ModelArm, TeacherArm, RetrievedArm)


def arm_kinds(environment: EnvironmentSection | None) -> dict[str, type[Arm]]:
    """Return the classes of arms that can be played in an environment, by the value of `kind`; None: in any."""
    offered = extras(environment).arms if environment is not None else ()
    return {kind.model_fields["kind"].default: kind for kind in (*_GENERAL_ARMS, *offered)}


def _arm(settings: Any, info: ValidationInfo) -> Any:
    """Return the arm that an entry of `eval.arms` describes, by its kind. Raises ValidationError."""
    if not isinstance(settings, dict):
        return settings
    environment = (info.context or {}).get("environment")
    kinds, kind = arm_kinds(environment), settings.get("kind")
    if kind is None:
        return Arm.model_validate(settings)
    if kind not in kinds:
        where = f" for {environment.name}" if environment else ""
        *names, last = kinds
        fault = PydanticCustomError(
            "arm",
            "there is no {kind} advice{where}; take {names} or {last}",
            {"kind": str(kind), "where": where, "names": ", ".join(names), "last": last},
        )
        raise ValidationError.from_exception_data("arm", [InitErrorDetails(type=fault, loc=("kind",), input=kind)])
    return kinds[kind].model_validate(settings)


class PlannedComparison(Section):
    """A comparison of two arms on the tasks that fail at trial 0, fixed before any held-out task is played."""

    first: str
    """Arm that should be better."""
    second: str
    """Arm that it is compared with."""
    trial: Positive | None = None
    """Trial up to which a task may be solved, from 1 (the first retry); None: the last."""
    mean: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Least mean difference in the share solved; None: any."""
    low: Annotated[float, Field(ge=-1, le=1)] | None = 0.0
    """Number that the lower bound of the interval must exceed, with training seeds and tasks resampled together; None:
    any."""

    @model_validator(mode="after")
    def _plans_something(self) -> Self:
        if self.mean is None and self.low is None:
            raise ValueError(f"{self.first} against {self.second} has neither mean nor low: set at least one of them.")
        return self


class Eval(Spending):
    split: str | tuple[str, ...] | None = None
    """Held-out split or splits to evaluate on; None: environment.split."""
    tasks: Positive | None = None
    """Number of tasks to evaluate on; None: all."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the reflectors; best-of-n answers (`sft+best8`) are sampled at reflector.temperature."""
    arms: dict[str, Annotated[SerializeAsAny[Arm], BeforeValidator(_arm)]] = Field(
        default={
            "no reflection": NoAdviceArm(),
            "frozen reflector": ModelArm(model="base"),
            "trained reflector": ModelArm(model="ppo"),
            "placebo": PlaceboArm(of="trained reflector"),
        }
    )
    """Arms by name: ways to retry, compared on the same tasks and seeds, first of all with the first one. They share
    trial 0, except those with `first` or `prompts`, whose first attempts are played under other conditions."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of times that all arms are played, trial 0 included, with other random numbers each time; the report then
    gives mean and standard deviation."""
    actors: dict[str, Endpoint] = Field(default={})
    """Models that act in place of the config's actor, by their names in the comparison table."""
    actors_reflect: bool = False
    """If true, each of these actors also writes the advice of its arms of kind model, in place of the reflector: one
    model plays and reflects (Reflexion, Table 5; SALA)."""
    comparisons: tuple[PlannedComparison, ...] = ()
    """Planned comparisons. With any, this section, `run`, `seed` and `loop.trials` are a plan: its hash is recorded
    before the first held-out task is played, and another plan is refused from then on. The budget and `backend` are no
    part of it."""
    examples: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Arms whose advice on the same failures the report shows, such as those of all stages of training; None: all that
    write advice."""

    @property
    def stored_names(self) -> dict[str, list[str]]:
        """Names in the store of each arm: one, or one for each of its training seeds."""
        return {name: [eval_arm(name, seed) for seed in arm.split()] for name, arm in self.arms.items()}

    @property
    def reflector_models(self) -> list[str]:
        """Every model that writes advice."""
        return sorted({model for arm in self.arms.values() for model in arm.models})

    @property
    def actor_models(self) -> list[str]:
        """Models that act in the retries of an arm in place of the config's actor."""
        return sorted({model for arm in self.arms.values() for model in arm.actor_models})


class Domain(Section):
    """Sections that each domain has for itself. All share one reflector: only the form of its prompt may differ."""

    environment: Environment
    loop: Loop = Loop()
    actor: ActorSection = ActorSection()
    evaluator: EvaluatorSection = EvaluatorSection()
    reflector: ReflectorSection = ReflectorSection()
    collect: Collect = Collect()
    eval: Eval = Eval()


class Experiment(Section):
    """One experiment, from its tasks to its report; if the config has several domains, it is about one of them."""

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Name of the run; all its files are written to runs/RUN."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of sampling and training."""
    round: Positive = 1
    """Number of the collecting and training round. A later round collects on the next tasks, with a reflector trained
    in an earlier round, and trains from scratch on the reflections of all rounds so far."""
    store: SecretUrl | None = None
    """SQLAlchemy URL of the store, for several machines that share it; None: runs/RUN/experience.db. Its password is
    never written to a file, log or report."""
    environment: Environment
    """Environment that provides the tasks; its `name` decides which other keys it has."""
    loop: Loop = Loop()
    actor: Annotated[ActorSection, Field(validate_default=True)] = ActorSection()
    evaluator: EvaluatorSection = EvaluatorSection()
    reflector: ReflectorSection = ReflectorSection()
    collect: Collect = Collect()
    train: Train = Train()
    serve: Serve = Serve()
    rounds: Rounds = Rounds()
    eval: Eval = Eval()
    gate: Spending = Spending()
    """Budget of the test that an adapter has to pass before it is served as `reflector`."""
    domain: str = ""
    """The one domain that a command works on; empty: all domains, one after the other."""
    domains: dict[str, Domain] = Field(default={})
    """Domains by name: environments of one run, whose ratings train one reflector (Retroformer, Algorithm 1). In a
    file, each domain replaces entries of the config's other sections."""

    @property
    def each_domain(self) -> tuple["Experiment", ...]:
        """The experiments of all domains, in the order of the config; only this one if the config has no domains."""
        return tuple(
            self.model_copy(update={"domain": name} | dict(domain)) for name, domain in self.domains.items()
        ) or (self,)

    @property
    def name(self) -> str:
        """Name in the store and in reports: RUN, or RUN/DOMAIN, which no other run can have."""
        return f"{self.run}/{self.domain}" if self.domain else self.run

    def as_file(self) -> dict[str, Any]:
        """Return the resolved config with all domains, in JSON's types, as a file would hold it."""
        own = set(Domain.model_fields) if self.domains else {"domains"}
        return self.model_dump(mode="json", exclude={"domain", *own})

    @model_validator(mode="before")
    @classmethod
    def _a_preset_is_served_in_its_own_type(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("train"), dict):
            return values
        serve = values.get("serve") or {}
        if values["train"].get("preset") is None or not isinstance(serve, dict):
            return values
        return values | {"serve": {"dtype": "auto"} | serve}

    @field_validator("actor")
    @classmethod
    def _default_of_the_environment(cls, actor: ActorSection, info: ValidationInfo) -> ActorSection:
        environment = info.data.get("environment")
        if environment is None or "kind" in actor.model_fields_set:
            return actor
        return actor.model_copy(update={"kind": environment.default_actor})

    @field_validator("eval", mode="before")
    @classmethod
    def _with_arms_of_the_environment(cls, section: Any, info: ValidationInfo) -> Any:
        if not isinstance(section, dict):
            return section
        environment = info.data.get("environment")
        # Without an environment nothing is known about its arms.
        known = section if environment is not None else {**section, "arms": {}}
        return Eval.model_validate(known, context={"environment": environment})

    @field_validator("collect")
    @classmethod
    def _branches_little_enough(cls, collect: Collect, info: ValidationInfo) -> Collect:
        loop = info.data.get("loop")
        if loop is not None and collect.branch == "every":
            most = collect.most_retries(loop.trials)
            if most > _MOST_RETRIES:
                raise ValueError(
                    f"branch=every may retry a task {most} times with {collect.candidates} candidates in {loop.trials} "
                    f"trials, and {_MOST_RETRIES} are allowed: lower candidates or loop.trials, or set branch=best"
                )
        return collect

    @field_validator("train")
    @classmethod
    def _stored_tokens_are_of_the_whole_distribution(cls, train: Train, info: ValidationInfo) -> Train:
        reflector = info.data.get("reflector")
        if train.grpo.reward == "stored" and reflector is not None:
            if reflector.teacher is not None:
                raise ValueError("grpo.reward=stored weighs the reflector's own tokens: leave reflector.teacher out")
            changed = {"temperature", "logit_bias", *WHOLE_DISTRIBUTION} & reflector.endpoint.extra_body.keys()
            if changed:
                raise ValueError(
                    "grpo.reward=stored needs log-probabilities of the whole distribution at temperature 1: leave "
                    f"{', '.join(sorted(changed))} out of reflector.endpoint.extra_body"
                )
        return train

    @property
    def key_variables(self) -> set[str]:
        """Names of the environment variables that hold API keys, in all domains."""
        return set(_key_variables(self.model_dump()))

    @property
    def folder(self) -> Path:
        return Path("runs") / self.run

    @property
    def report_folder(self) -> Path:
        """Folder of the report: runs/RUN/eval, for a domain runs/RUN/eval/DOMAIN."""
        return self.folder / "eval" / self.domain

    @property
    def held_out_splits(self) -> tuple[str, ...]:
        """Splits that the report covers."""
        split = self.eval.split or self.environment.split
        return (split,) if isinstance(split, str) else split

    def stage_folder(self, stage: str) -> Path:
        """Return the folder of a stage's adapter: runs/RUN/STAGE[-VARIANT], in later rounds with -ROUND behind it."""
        variant = self.train.variants.get(stage)
        name = f"{stage}-{variant}" if variant else stage
        once = self.round == 1 or stage in ("warm", "actor", "sac")
        return self.folder / (name if once else f"{name}-{self.round}")

    @property
    def store_url(self) -> SecretUrl:
        return self.store or sqlite_url(self.folder / STORE_FILE)

    @property
    def has_store(self) -> bool:
        """True if opening the store would not create it: its file exists, or the config names a database."""
        return self.store is not None or (self.folder / STORE_FILE).is_file()


def _key_variables(settings: object) -> Iterator[str]:
    """Yield the values of `api_key_env` at any depth of a config."""
    if isinstance(settings, dict):
        if isinstance(name := settings.get("api_key_env"), str) and name:
            yield name
        settings = settings.values()
    if isinstance(settings, Iterable) and not isinstance(settings, str):
        for value in settings:
            yield from _key_variables(value)
