"""Chapters on the actor, the arms and the served models."""

from collections import Counter
from collections.abc import Iterator

from retroformer.agents.arm import Arm
from retroformer.agents.baseline import UNSUITABLE, PlaceboArm
from retroformer.document import (
    DASH,
    Cell,
    Chapter,
    Spans,
    Words,
    arm_cell,
    chapter,
    code,
    joined,
    quoted,
    table,
)
from retroformer.environments.extras import TaskFacts
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.adapters import served_folder
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.base import adapter_name
from retroformer.stage_metrics import recorded_tasks

from ..play.verify import VerifiedModel
from .evaluation import Evaluated

_HASH_SHOWN = 12
_PROBE_SHOWN = 200
"""Most characters shown of an answer to the probe."""

_EVALUATORS = {
    "oracle": "The agent is told the true outcome of its attempts",
    "heuristic": "The agent judges an attempt as failed if it repeats itself or is too long",
    "tests": "The agent judges its programs by tests that it wrote itself",
    "model": "A language model judges the attempts",
}


class WhoPlayed:
    """Chapter on the actor of all arms and the source of each arm's advice.

    It counts how often a placebo that `eval.arms.NAME.among` limits gave other advice, because there was none within.
    """

    def __init__(self, evaluated: Evaluated) -> None:
        self._evaluated = evaluated
        arms = evaluated.experiment.eval.arms.items()
        limited = {name for name, arm in arms if isinstance(arm, PlaceboArm) and arm.among != "any"}
        self._names = {seed.stored: arm.name for arm in evaluated.results for seed in arm.seeds if arm.name in limited}
        self._given, self._unsuitable = Counter[str](), Counter[str]()

    def add(self, facts: TaskFacts) -> None:
        """Count the placebos' advice on one task."""
        for stored, name in self._names.items():
            for reflection in facts.seeds[stored].reflections.values():
                self._given[name] += 1
                self._unsuitable[name] += reflection.author.endpoint == UNSUITABLE

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapter."""
        experiment = self._evaluated.experiment
        rows = [
            [arm_cell(name), Cell(words=joined("", (arm.describe(), self._note_on(name)))), Cell(words=_retries(arm))]
            for name, arm in experiment.eval.arms.items()
        ]
        arms = table(["arm", "advice", "actor in the retries"], rows, "The arms: where their advice comes from.")
        yield chapter("Who played", _actor_sentence(experiment, self._evaluated.actor_sha256), arms)

    def _note_on(self, name: str) -> str:
        if name not in self._given:
            return ""
        count = f"{self._unsuitable[name]} of {self._given[name]} retries"
        return f" (in {count} there was none, so it gave advice about any other task)"


def served_models(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the models that wrote advice, whether their endpoint proves their identity, and their training tasks."""
    changed = {True: "yes", False: "no: same answer as the base", None: DASH}
    rows = [
        [
            model.model,
            (model.adapter_sha256 or "none")[:_HASH_SHOWN],
            "yes: hash and pinned name match the folder of this run"
            if model.verified
            else "not verified: the endpoint cannot prove it",
            quoted(model.probe, _PROBE_SHOWN),
            changed[model.differs_from_base],
            _trained_on(evaluated.experiment, model),
        ]
        for model in evaluated.verified
    ]
    header = ["model", "adapter sha256", "is it the trained one", "greedy answer to the probe", "differs from base"]
    if rows:
        yield chapter("Served models", table([*header, "trained on"], rows, "The models that wrote advice."))


def _trained_on(experiment: Experiment, model: VerifiedModel) -> str:
    """Render the number of training tasks that the adapter's metrics record; evaluation refuses to play any of them."""
    if model.adapter_sha256 is None:
        return DASH
    recorded = recorded_tasks(served_folder(experiment, adapter_name(model.model)))
    if recorded is None:
        return "not recorded"
    return f"{sum(len(of_one.tasks) for of_one in recorded):,} tasks, none of these"


def _actor_sentence(experiment: Experiment, adapter_sha256: str | None) -> Words:
    """Describe the actor of all arms, its limits and its evaluator."""
    kind = experiment.evaluator.kind
    return (
        *_actor(experiment, adapter_sha256),
        f" An attempt has at most {experiment.loop.actions} actions (",
        code("loop.actions"),
        f"; the environment itself ends it after {experiment.environment.max_steps}). {_EVALUATORS[kind]} (evaluator ",
        code(kind),
        f": {experiment.environment.success}), as in the papers." if kind == "oracle" else ").",
    )


def _actor(experiment: Experiment, adapter_sha256: str | None) -> Spans:
    settings = experiment.actor
    if not (actor := actor_kind(experiment)).asks_model:
        reading = f"): it samples nothing and reads advice as text. {actor.reading}".rstrip()
        return ("The actor is a program (kind ", code(settings.kind), reading)
    model = code(settings.endpoint.model)
    served: Spans = (model, f" at {settings.endpoint.base_url}, which cannot prove what it serves")
    if adapter_sha256 is not None:
        served = ("the adapter ", model, ", sha256 ", code(adapter_sha256[:_HASH_SHOWN]), ", served by this run")
    elif settings.endpoint.base_url is None:
        served = (model, ", served by this run without an adapter")
    choice = {
        "free": "; it may write any text as an action (choice ",
        "admissible": "; it chooses among the currently possible actions (choice ",
    }[settings.choice]
    end = f"), at temperature {settings.temperature:g}."
    kind = code(settings.kind)
    return ("The actor is a language model (kind ", kind, "): ", *served, choice, code(settings.choice), end)


def _retries(arm: Arm) -> Words:
    changes: list[Spans] = []
    if isinstance(arm.actor_model, str):
        changes.append(("the model ", code(arm.actor_model)))
    elif arm.actor_model is not None:
        models = joined(", ", map(code, arm.actor_model))
        changes.append(("the models ", *models, "; mean over these training seeds"))
    if arm.prompts is not None:
        changes.append(("the prompts ", code(str(arm.prompts)), " from the first attempt on"))
    if arm.actor_temperature is not None:
        changes.append((f"at temperature {arm.actor_temperature:g}",))
    if arm.last_attempt is not None:
        changes.append(("sees its last attempt" if arm.last_attempt else "does not see its last attempt",))
    return joined(", ", changes) or "as at trial 0"
