"""The experiment config: all sections together, and where a run's files lie.

Names that a stage looks up, such as an adapter, are checked by that stage before it spends anything.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, field_validator, model_validator

from retroformer.config.sections.base import (
    WHOLE_DISTRIBUTION,
    ActorSection,
    Collect,
    EvaluatorSection,
    Loop,
    Positive,
    ReflectorSection,
    Rounds,
    Section,
    Spending,
)
from retroformer.config.sections.eval import Eval
from retroformer.config.sections.serve import Serve
from retroformer.config.sections.train import Train
from retroformer.endpoint.secrets.url import SecretUrl, sqlite_url
from retroformer.environments.registry import section_of
from retroformer.environments.section import EnvironmentSection

Environment = Annotated[SerializeAsAny[EnvironmentSection], BeforeValidator(section_of)]

STORE_FILE = "experience.db"
"""File of the store in the folder of a run whose config names no database."""
_MOST_RETRIES = 1000
"""Largest number of retries of a task that a config may ask for by branching."""


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
        checkable = section if environment is not None else {**section, "arms": {}}
        return Eval.model_validate(checkable, context={"environment": environment})

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
        """Return the folder of a stage's adapter: runs/RUN/STAGE[-VARIANT], in later rounds with -ROUND behind it.

        Warm, actor and sac belong to no round.
        """
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
