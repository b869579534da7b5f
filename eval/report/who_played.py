"""Report sections on the actor, the arms and the served models."""

from collections.abc import Sequence

from retroformer.agents.arm import Arm
from retroformer.experiment.actors import actor_kind
from retroformer.experiment.adapters import served_folder
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.base import adapter_name
from retroformer.markdown import code, plain, quoted, table
from retroformer.stage_metrics import recorded_tasks

from ..play.verify import VerifiedModel
from .input import ReportInput
from .placebos import PlaceboAdvice

_HASH_SHOWN = 12
_PROBE_SHOWN = 200
"""Most characters shown of an answer to the probe."""

_EVALUATORS = {
    "oracle": "The agent is told the true outcome of its attempts (evaluator `oracle`: {success}), as in the papers.",
    "heuristic": "The agent judges an attempt as failed if it repeats itself or is too long (evaluator `heuristic`).",
    "tests": "The agent judges its programs by tests that it wrote itself (evaluator `tests`).",
    "model": "A language model judges the attempts (evaluator `model`).",
}


def actor_sentence(report_input: ReportInput) -> str:
    """Describe the actor of all arms, its limits and its evaluator."""
    experiment = report_input.experiment
    limits = (
        f"An attempt has at most {experiment.loop.actions} actions (`loop.actions`; the environment itself ends it "
        f"after {experiment.environment.max_steps})."
    )
    evaluator = _EVALUATORS[experiment.evaluator.kind].format(success=experiment.environment.success)
    return f"{_actor(experiment, report_input.actor_sha256)} {limits} {evaluator}"


def arms_table(experiment: Experiment, placebos: PlaceboAdvice) -> str:
    """Render the source of each arm's advice, and the actor of its retries."""
    rows = [
        [plain(name), f"{arm.describe()}{placebos.note_on(name)}", _retries(arm)]
        for name, arm in experiment.eval.arms.items()
    ]
    return table(["arm", "advice", "actor in the retries"], rows, "The arms: where their advice comes from.")


def is_yardstick(experiment: Experiment, name: str) -> bool:
    """True if the advice of this arm uses the solution, which no reflector sees."""
    arm = experiment.eval.arms.get(name)
    return arm is not None and arm.reads_solution


def served_table(experiment: Experiment, verified: Sequence[VerifiedModel]) -> str:
    """Render the models that wrote advice, whether their endpoint proves their identity, and their training tasks."""
    changed = {True: "yes", False: "no: same answer as the base", None: "-"}
    rows = [
        [
            plain(model.model),
            (model.adapter_sha256 or "none")[:_HASH_SHOWN],
            "yes: hash and pinned name match the folder of this run"
            if model.verified
            else "not verified: the endpoint cannot prove it",
            quoted(model.probe, _PROBE_SHOWN),
            changed[model.differs_from_base],
            _trained_on(experiment, model),
        ]
        for model in verified
    ]
    return table(
        [
            "model",
            "adapter sha256",
            "is it the trained one",
            "greedy answer to the probe",
            "differs from base",
            "trained on",
        ],
        rows,
        "The models that wrote advice.",
    )


def _trained_on(experiment: Experiment, model: VerifiedModel) -> str:
    """Render the number of training tasks that the adapter's metrics record; evaluation refuses to play any of them."""
    if model.adapter_sha256 is None:
        return "-"
    recorded = recorded_tasks(served_folder(experiment, adapter_name(model.model)))
    if recorded is None:
        return "not recorded"
    return f"{sum(len(of_one.tasks) for of_one in recorded):,} tasks, none of these"


def _actor(experiment: Experiment, adapter_sha256: str | None) -> str:
    settings = experiment.actor
    if not (kind := actor_kind(experiment)).asks_model:
        sentence = f"The actor is a program (kind `{settings.kind}`): it samples nothing and reads advice as text."
        return f"{sentence} {kind.reading}".rstrip()
    model = settings.endpoint.model
    if adapter_sha256 is not None:
        served = f"the adapter {code(model)}, sha256 `{adapter_sha256[:_HASH_SHOWN]}`, served by this run"
    elif settings.endpoint.base_url is None:
        served = f"{code(model)}, served by this run without an adapter"
    else:
        served = f"{code(model)} at {plain(str(settings.endpoint.base_url))}, which cannot prove what it serves"
    choice = {
        "free": "it may write any text as an action (choice `free`)",
        "admissible": "it chooses among the currently possible actions (choice `admissible`)",
    }[settings.choice]
    return (
        f"The actor is a language model (kind `{settings.kind}`): {served}; {choice}, at temperature "
        f"{settings.temperature:g}."
    )


def _retries(arm: Arm) -> str:
    changes = [] if arm.prompts is None else [f"the prompts {code(arm.prompts)} from the first attempt on"]
    changes += [] if arm.actor_temperature is None else [f"at temperature {arm.actor_temperature:g}"]
    if isinstance(arm.actor_model, str):
        changes.insert(0, f"the model {code(arm.actor_model)}")
    elif arm.actor_model is not None:
        models = ", ".join(map(code, arm.actor_model))
        changes.insert(0, f"the models {models}; mean over these training seeds")
    if arm.last_attempt is not None:
        changes.append("sees its last attempt" if arm.last_attempt else "does not see its last attempt")
    return ", ".join(changes) or "as at trial 0"
