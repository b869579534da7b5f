"""The section `eval` of a config, with its arms and planned comparisons."""

from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from retroformer.agents.arms.arm import Arm, ModelArm, TeacherArm
from retroformer.agents.arms.baselines import BASELINES, NoAdviceArm, PlaceboArm
from retroformer.agents.arms.retrieved import RetrievedArm
from retroformer.config.sections.base import Endpoint, Positive, Section, Spending
from retroformer.environments.registry import extras
from retroformer.environments.section import EnvironmentSection
from retroformer.run.arm_names import eval_arm

_GENERAL_ARMS: tuple[type[Arm], ...] = (*BASELINES, ModelArm, TeacherArm, RetrievedArm)


def arm_kinds(environment: EnvironmentSection) -> dict[str, type[Arm]]:
    """Return the classes of arms that can be played in an environment, by the value of `kind`."""
    return {kind.model_fields["kind"].default: kind for kind in (*_GENERAL_ARMS, *extras(environment).arms)}


def _arm(settings: Any, info: ValidationInfo) -> Any:
    """Return the arm that an entry of `eval.arms` describes, by its kind. Raises ValidationError."""
    if not isinstance(settings, dict):
        return settings
    assert info.context is not None, "the experiment gives its environment"
    environment: EnvironmentSection = info.context["environment"]
    kinds, kind = arm_kinds(environment), settings.get("kind")
    if kind is None:
        return Arm.model_validate(settings)
    if not isinstance(kind, str) or kind not in kinds:
        *names, last = kinds
        message = f"there is no {kind} advice for {environment.name}; take {', '.join(names)} or {last}"
        fault = PydanticCustomError("arm", "{message}", {"message": message})
        raise ValidationError.from_exception_data("arm", [InitErrorDetails(type=fault, loc=("kind",), input=kind)])
    return kinds[kind].model_validate(settings)


class PlannedComparison(Section):
    """A comparison of two arms on the tasks that fail at trial 0, fixed before any held-out task is played."""

    first: str
    """Arm that should be better."""
    second: str
    """Arm that it is compared with."""
    trial: Positive | None = None
    """Trial after which the returns are compared, from 1 (the first retry); None: the last."""
    mean: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Least mean difference in the return, that is in the share solved where a return is 1 or 0; None: any."""
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
    """Planned comparisons. With any, this section without its budget, `run`, `seed`, `loop.trials` and the tasks' ids
    are a plan: its hash is recorded before the first held-out task is played, and another is refused from then on."""
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
