"""What every kind of arm is: its settings, its checks, its reflector, its conditions and its words in the report.

A kind is one class, in one file with its reflector; those whose advice a language model writes are here. Kinds for any
environment are listed in `config.sections.eval`; an environment offers its own in `Extras.arms`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from retroformer.config.sections.base import Endpoint, ReflectorSection, Section, best_of
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import ConfigError
from retroformer.files.document import Words, code, join_words
from retroformer.method.prompts import Render
from retroformer.method.protocols import Reflector
from retroformer.method.records import Task, Trajectory

if TYPE_CHECKING:  # A config is read without the database's packages.
    from retroformer.run.store import Store


def _distinct(names: str | tuple[str, ...]) -> str | tuple[str, ...]:
    if not names:
        raise ValueError("name at least one model")
    if isinstance(names, tuple) and len(set(names)) < len(names):
        raise ValueError("two models would be stored under one name; leave one of them out")
    return names


Models = Annotated[str | tuple[str, ...], AfterValidator(_distinct)]
"""Name of a model; several names are training seeds of one method, which the report pools."""


@dataclass(frozen=True)
class ArmSetting:
    """The parts of a config that the settings of an arm are checked against."""

    arms: Mapping[str, "Arm"]
    """All arms of the comparison."""
    trials: int
    temperature: float
    """Temperature at which reflectors sample in the evaluation."""
    reflector: ReflectorSection
    kind_of: Callable[[Trajectory], str] | None
    """Kind of thing that an attempt's task is about; None: the environment's tasks have no kinds."""


@dataclass(frozen=True)
class ArmParts:
    """What the reflector of an arm is built from."""

    setting: ArmSetting
    run: str
    environment: EnvironmentSection
    tasks: Sequence[Task]
    """Tasks of the comparison."""
    split_tasks: Callable[[], Sequence[Task]]
    """Function that returns all tasks of the held-out splits, in the order in which they are played."""
    taskset: Callable[[], Any]
    """Function that returns the environment's tasks."""
    store: "Store"
    leave_out: Sequence[str]
    """Marks of stories that no advice is made from (`train.leave_out`)."""
    render: Callable[[], Render]
    """Function that returns how a reflector sees a failure. Raises ConfigError."""
    reflector: Callable[[Endpoint, float], Reflector]
    """Function that connects to the model of an endpoint: (endpoint, temperature). Raises MissingInput."""
    attempts: Callable[[Sequence[str]], Iterator[Trajectory]]
    """Function that yields the collected attempts of these runs. Raises MissingInput if one of them has none."""
    stored_names: Mapping[str, Sequence[str]]
    """Names in the store of the arms that write advice."""


class Arm(Section):
    """A way to retry: the settings of every kind. One class for each kind adds its own."""

    reads_solution: ClassVar[bool] = False
    """True if its advice uses the solution of the task: an upper bound, not a fair arm."""

    kind: str
    """Source of the advice: the name of a class of arms."""
    prompts: str | None = None
    """Prompt pack of this arm's actor and reflector, with a trial 0 that only arms of the same pack share; None:
    actor.prompts."""
    actor_model: Models | None = None
    """Model that acts in this arm's retries, at the actor's endpoint, such as `sac`; several names are training seeds
    of one method; None: actor.endpoint.model."""
    actor_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature of the actor in this arm's retries; None: actor.temperature."""
    last_attempt: bool | None = None
    """If true, the actor sees its last attempt in this arm's retries; None: as in loop.last_attempt."""

    @property
    def models(self) -> tuple[str, ...]:
        """Models at the reflector's endpoint that write its advice; empty if none does."""
        return ()

    @property
    def actor_models(self) -> tuple[str, ...]:
        """Models that act in its retries in place of the config's actor."""
        return (self.actor_model,) if isinstance(self.actor_model, str) else self.actor_model or ()

    @property
    def advises_first(self) -> bool:
        """True if its advice is given before the first attempt, too, which the arm then plays itself."""
        return False

    def split(self) -> Mapping[str, Self]:
        """Return arms with one model of each role, by the name of the training seed; by "" if it has none."""
        if isinstance(self.actor_model, tuple):
            return {model: self.model_copy(update={"actor_model": model}) for model in self.actor_model}
        return {"": self}

    def with_prefix(self, prefix: str, model: str | None = None) -> Self:
        """Return the arm for when all names become PREFIX/ARM; `model`, if given, writes the advice of model arms."""
        return self

    def check(self, here: str, setting: ArmSetting) -> None:
        """Refuse settings that cannot be played. `here` is the arm's place in the config. Raises ConfigError."""

    def writer(self, reflector: ReflectorSection) -> Endpoint | None:
        """Return the endpoint whose model writes the advice of an arm with one model; None if no model does."""
        return None

    def build(self, parts: ArmParts) -> Reflector:
        """Return the reflector of an arm with one model: that of its `writer`. Raises ConfigError, MissingInput."""
        writer = self.writer(parts.setting.reflector)
        assert writer is not None, "an arm without a writer builds its own reflector"
        return parts.reflector(writer, self.temperature(parts.setting))

    def temperature(self, setting: ArmSetting) -> float:
        """Return the temperature at which its advice is sampled."""
        return setting.temperature

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        """Return what its stored facts depend on beside the config and its settings. Raises MissingInput."""
        return {}

    def experience_of(self, run: str) -> Mapping[str, Sequence[str]]:
        """Return the runs whose collected attempts its advice is made from, and their arms that only it uses.

        `run` is the run of the config.
        """
        return {}

    def describe(self) -> Words:
        """Return, for the report, who wrote its advice."""
        raise NotImplementedError

    def remark(self, authors: Mapping[str, int]) -> str:
        """Return what the report adds to that; `authors` has the number of its pieces by their author's endpoint."""
        return ""


class EarlyArm(Arm):
    """An arm whose advice is not about a failure, so that it can be given before the first attempt, too."""

    first: bool = False
    """If true, the advice is given before the first attempt, too, and this arm has a trial 0 of its own."""

    @property
    def advises_first(self) -> bool:
        return self.first

    @property
    def when(self) -> str:
        """End of its description: when the advice is given."""
        return ", before the first attempt, too" if self.first else ""


class ModelArm(Arm):
    """Advice of a model at the reflector's endpoint."""

    kind: Literal["model"] = "model"
    model: Models = "base"
    """Model that writes the advice. `sft+best8` is the best of 8 answers by the reward model; several names are
    training seeds of one method."""
    history: Literal["all", "last"] | None = None
    """Attempts that the prompt shows, for a model trained with another prompt than the others; None: as in
    reflector.history."""

    @model_validator(mode="after")
    def _pools_the_seeds_of_one_role(self) -> Self:
        if isinstance(self.model, tuple) and isinstance(self.actor_model, tuple):
            raise ValueError("model and actor_model both name training seeds; give one of them a single name")
        return self

    @property
    def models(self) -> tuple[str, ...]:
        return (self.model,) if isinstance(self.model, str) else self.model

    def split(self) -> Mapping[str, Self]:
        if isinstance(self.model, tuple):
            return {model: self.model_copy(update={"model": model}) for model in self.model}
        return super().split()

    def with_prefix(self, prefix: str, model: str | None = None) -> Self:
        return self if model is None else self.model_copy(update={"model": model})

    def check(self, here: str, setting: ArmSetting) -> None:
        if any(map(best_of, self.models)) and not setting.reflector.temperature:
            raise ConfigError(
                f"{here}.model: the best of several answers is sampled at reflector.temperature, and at 0 all answers "
                "are the same; set it above 0."
            )

    def writer(self, reflector: ReflectorSection) -> Endpoint:
        (model,) = self.models
        return reflector.endpoint.named(model)

    def temperature(self, setting: ArmSetting) -> float:
        """Return the temperature of the evaluation; best-of-n samples as collection does."""
        return setting.reflector.temperature if any(map(best_of, self.models)) else setting.temperature

    def describe(self) -> Words:
        sees = {"all": ", from all attempts", "last": ", from the last attempt", None: ""}[self.history]
        if isinstance(self.model, str):
            return "written by the model ", code(self.model), sees
        models = join_words(", ", map(code, self.model))
        return "written by the models ", *models, f"{sees}; mean over these training seeds"


class TeacherArm(Arm):
    """Advice of the teacher, which a trained model imitates."""

    kind: Literal["teacher"] = "teacher"

    def check(self, here: str, setting: ArmSetting) -> None:
        if setting.reflector.teacher is None:
            raise ConfigError(
                f"{here}.kind: the config has no teacher; name its base_url and model in reflector.teacher, or leave "
                "the arm out."
            )

    def writer(self, reflector: ReflectorSection) -> Endpoint | None:
        return reflector.teacher

    def describe(self) -> Words:
        return "written by the teacher (", code("reflector.teacher"), ")"
