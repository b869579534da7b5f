"""Who played and who advised: the actor, the arms, and what was served for them."""

from collections.abc import Sequence

from eval.findings import Findings
from eval.table import quoted, table
from eval.verify import Verified
from retroformer.config import ActorSection, Arm, Experiment

_HASH_SHOWN = 12
_PROBE_SHOWN = 200
"""Characters of an answer to the probe."""

_EVALUATORS = {
    "oracle": "The agent is told the true outcome of its attempts (evaluator `oracle`: {success}), as in the papers.",
    "heuristic": "The agent takes an attempt for failed that ran in circles or for too long (evaluator `heuristic`).",
    "tests": "The agent judges its programs by tests that it wrote itself (evaluator `tests`).",
    "model": "A language model judges the attempts (evaluator `model`).",
}


def actor_sentence(findings: Findings) -> str:
    """What played all arms."""
    experiment = findings.experiment
    limits = (
        f"An attempt has at most {experiment.loop.actions} actions (`loop.actions`; the environment itself ends it "
        f"after {experiment.environment.max_steps})."
    )
    told = _EVALUATORS[experiment.evaluator.kind].format(success=experiment.environment.success)
    return f"{_actor(experiment.actor, findings.actor_sha256)} {limits} {told}"


def arms_table(experiment: Experiment) -> str:
    """How each arm advises, and how its retries are played."""
    rows = [[name, _advice(arm), _retries(arm)] for name, arm in experiment.eval.arms.items()]
    return table(["arm", "advice", "actor in the retries"], rows)


def is_yardstick(experiment: Experiment, name: str) -> bool:
    """Whether the advice of this arm knows what no reflector can know."""
    arm = experiment.eval.arms.get(name)
    return arm is not None and arm.kind == "oracle"


def served_table(verified: Sequence[Verified]) -> str:
    """The models that were asked for advice, as their endpoint proves them."""
    if not verified:
        return "No model was asked for advice."
    changed = {True: "yes", False: "no: the adapter changes nothing here", None: "-"}
    rows = [
        [
            one.model,
            (one.adapter_sha256 or "none")[:_HASH_SHOWN],
            "the folder of this run, by hash and pinned name"
            if one.verified
            else "not verified: the endpoint cannot say",
            quoted(one.probe, _PROBE_SHOWN),
            changed[one.differs_from_base],
        ]
        for one in verified
    ]
    return table(
        ["model", "adapter sha256", "is it the trained one", "greedy answer to the probe", "differs from base"], rows
    )


def _actor(page: ActorSection, adapter_sha256: str | None) -> str:
    if page.kind == "rule":
        return "The actor is a program (kind `rule`): it draws nothing, and reads advice as text."
    model = page.endpoint.model
    if adapter_sha256 is not None:
        served = f"the adapter `{model}`, sha256 `{adapter_sha256[:_HASH_SHOWN]}`, served by this run"
    elif page.endpoint.base_url is None:
        served = f"`{model}`, served by this run without an adapter"
    else:
        served = f"`{model}` at {page.endpoint.base_url}, which cannot prove what it serves"
    choice = {
        "free": "it may write any text as an action (choice `free`)",
        "admissible": "it chooses among the actions that are possible now (choice `admissible`)",
    }[page.choice]
    return (
        f"The actor is a language model (kind `{page.kind}`): {served}; {choice}, at temperature {page.temperature:g}."
    )


def _advice(arm: Arm) -> str:
    words = ", in words that no demonstration used" if arm.wording == "unseen" else ""
    match arm.kind:
        case "none":
            return "none: the retry alone"
        case "phrase":
            return "a sentence that says nothing"
        case "placebo":
            return f"what *{arm.of}* wrote about other tasks"
        case "rule":
            return f"written by rule from the text of the failure{words}"
        case "retrieved":
            return "what was written for other tasks while collecting, by likeness and by what it brought"
        case "oracle":
            return f"a yardstick: written by rule from the solution of the task, which no reflector sees{words}"
        case "model":
            if isinstance(arm.model, str):
                return f"by the model `{arm.model}`"
            return f"by the models {', '.join(f'`{model}`' for model in arm.model)}; a mean over these training seeds"


def _retries(arm: Arm) -> str:
    told = [] if arm.actor_temperature is None else [f"at temperature {arm.actor_temperature:g}"]
    if arm.last_attempt is not None:
        told.append("sees its last attempt" if arm.last_attempt else "does not see its last attempt")
    return ", ".join(told) or "as at trial 0"
