"""Section `eval` of the config: the arms, and the tasks on which they are compared."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from retroformer.experiment.sections.base import Positive, Section
from retroformer.experiment.sections.endpoint import Endpoint
from retroformer.experiment.sections.loop import Spending


class Arm(Section):
    kind: str
    """Source of the advice. none: retry without advice; phrase: a sentence without content; placebo: advice written for
    another task; model: a reflector; rule: written by rule from the failure; oracle: written by rule from the solution;
    retrieved: advice collected on other tasks, chosen by task similarity and realised rating; document: the text of
    a file, the same after every failure. ALFWorld also has
    history_rule, from all attempts at the task; and table, which names the places where training attempts most often
    found such things."""
    model: str | tuple[str, ...] = "base"
    """For kind model: model name to request from the reflector's endpoint. `sft+best8` is the best of 8 answers by the
    reward model; several names are training seeds of one method."""
    of: str = ""
    """For kind placebo: the arm whose advice is given to other tasks."""
    among: Literal["any", "same_kind", "other_kinds"] = "any"
    """For kind placebo: tasks whose advice is given. any: all other tasks; same_kind: those that are about the same
    kind of thing, which keeps what is generally true and removes what was read in the failure; other_kinds: the
    rest. Where no such task has advice, that of any other task is given, and the report counts it."""
    wording: Literal["demonstrated", "unseen"] = "demonstrated"
    """For kinds rule and oracle. demonstrated: the words that the household actor was trained with; unseen: others."""
    prompts: str | None = None
    """Prompt pack of this arm's actor and reflector, with a trial 0 that only arms of the same pack share; None:
    actor.prompts."""
    actor_temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature of the actor in this arm's retries; None: actor.temperature."""
    last_attempt: bool | None = None
    """If true, the actor sees its last attempt in this arm's retries; None: as in loop.last_attempt."""
    history: Literal["all", "last"] | None = None
    """For kind model: attempts that the prompt shows, for a model trained with another prompt than the others; None: as
    in reflector.history."""
    actor_model: str | tuple[str, ...] | None = None
    """Model that acts in this arm's retries, at the actor's endpoint, such as `sac`; several names are training seeds
    of one method; None: actor.endpoint.model."""
    runs: tuple[str, ...] = ()
    """For kind table: names of the runs whose collected attempts are counted; empty: this run."""
    places: Positive | None = None
    """For kinds rule, history_rule and table: largest number of places to name; None: six for the rules, and eight for
    the table, as in hindsight."""
    file: str = ""
    """For kind document: path of the text file."""
    first: bool = False
    """For kinds phrase and document, and table and oracle of ALFWorld. If true, the advice is given before the first
    attempt, too, and this arm has a trial 0 of its own."""
    learns: bool = False
    """For kind retrieved. If true, the gain of each retry counts for the advice that it was made with, when advice for
    later tasks is chosen. Tasks are then played ten at a time, and every choice depends on their order."""

    @model_serializer(mode="wrap")
    def _without_absent_settings(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # An arm is part of its conditions in the store, which must not change when these are left out.
        settings: dict[str, Any] = serialize(self)
        left_out_if_empty = ("prompts", "actor_model", "history", "learns", "runs", "places", "file")
        absent = {name for name in left_out_if_empty if not settings.get(name)}
        absent |= {"among"} if settings.get("among") == "any" else set()
        return {name: value for name, value in settings.items() if name not in absent}


class PlannedComparison(Section):
    """A comparison of two arms that was fixed before any held-out task was played."""

    first: str
    """Arm that should be better."""
    second: str
    """Arm that it is compared with."""
    trial: Positive | None = None
    """Trial up to which a task may be solved, from 1 (the first retry); None: the last."""
    of: Literal["failures", "tasks"] = "failures"
    """Tasks that count. failures: those that failed at trial 0; tasks: all."""
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
    backend: str = "local"
    """Where tasks are played, as in collect.backend; arms that learn are played in this process."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of the reflectors; best-of-n answers (`sft+best8`) are sampled at reflector.temperature."""
    arms: dict[str, Arm] = Field(
        default={
            "no reflection": Arm(kind="none"),
            "frozen reflector": Arm(kind="model", model="base"),
            "trained reflector": Arm(kind="model", model="ppo"),
            "placebo": Arm(kind="placebo", of="trained reflector"),
        }
    )
    """Arms by name: ways to retry, compared on the same tasks and seeds. They share trial 0, except those with `first`
    or `prompts`, whose first attempts are played under other conditions."""
    repeats: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of times that all arms are played, trial 0 included, with other random numbers each time; the report then
    gives mean and standard deviation."""
    stop: Literal["never", "no_gain"] = "never"
    """End of an arm before `loop.trials`. no_gain: after its first retry that solves no further task (Reflexion, first
    version); all tasks finish a trial before the next one begins."""
    reference: str = "no reflection"
    """Arm that every other arm is compared with; the others are also compared with each other."""
    actors: dict[str, Endpoint] = Field(default={})
    """Models that act in place of the config's actor, by their names in the comparison table."""
    actors_reflect: bool = False
    """If true, each of these actors also writes the advice of its arms of kind model, in place of the reflector: one
    model plays and reflects (Reflexion, Table 5; SALA)."""
    comparisons: tuple[PlannedComparison, ...] = ()
    """Planned comparisons. With any, this section, `run`, `seed` and `loop.trials` are a plan: its hash is recorded
    before the first held-out task is played, and another plan is refused from then on. The budget and `backend` are no
    part of it."""
    retrieval_days: Positive | None = None
    """For arms of kind retrieved: ignore advice older than this many days; None: use all."""
    examples: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Arms whose advice on the same failures the report shows, such as those of all stages of training; None: all that
    write advice."""

    @model_validator(mode="after")
    def _an_arm_that_learns_plays_all_trials(self) -> Self:
        if self.stop != "never" and (learners := [name for name, arm in self.arms.items() if arm.learns]):
            raise ValueError(
                f"stop={self.stop} waits for all tasks at each trial, and {learners[0]!r} learns from task to task: "
                "leave stop or arms.NAME.learns out"
            )
        return self
