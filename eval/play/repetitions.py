"""Repetitions of a comparison, each with its own facts and report: one for each actor, or `eval.repeats` of them.

An actor also writes the advice of its arms if the config says so (`eval.actors_reflect`).
"""

from retroformer.agents.arm import Arm
from retroformer.agents.baseline import PlaceboArm
from retroformer.agents.reflector import ModelArm
from retroformer.experiment.config import Experiment


def repetitions(experiment: Experiment) -> dict[str, Experiment]:
    """Return the config for each of its actors; the config itself, under the empty name, if it has none."""
    return {actor: with_actor(experiment, actor) for actor in experiment.eval.actors} or {"": experiment}


def with_actor(experiment: Experiment, name: str) -> Experiment:
    """Return the config for one of its actors, with arms named ACTOR/ARM so that their facts stay apart."""
    section, endpoint = experiment.eval, experiment.eval.actors[name]
    roles: dict[str, object] = {"actor": experiment.actor.model_copy(update={"endpoint": endpoint})}
    if section.actors_reflect:
        roles["reflector"] = experiment.reflector.model_copy(update={"endpoint": endpoint})
    return _with_prefix(experiment.model_copy(update=roles), name, endpoint.model if section.actors_reflect else None)


def with_repeat(experiment: Experiment, number: int) -> Experiment:
    """Return the config for one of its repeats, with arms named `repeat NUMBER/ARM` so that their facts stay apart."""
    return _with_prefix(experiment, repeat_name(number))


def repeat_name(number: int) -> str:
    """Return the name of a repeat in the store and in the folder of reports."""
    return f"repeat {number}"


def _with_prefix(experiment: Experiment, prefix: str, model: str | None = None) -> Experiment:
    """Return the config with arms named PREFIX/ARM; if `model` is given, it writes the advice of all model arms."""
    section = experiment.eval

    def renamed(arm: str) -> str:
        return f"{prefix}/{arm}"

    comparisons = tuple(
        planned.model_copy(update={"first": renamed(planned.first), "second": renamed(planned.second)})
        for planned in section.comparisons
    )
    named = {
        "arms": {renamed(name): _arm(arm, prefix, model) for name, arm in section.arms.items()},
        "examples": section.examples and tuple(map(renamed, section.examples)),
        "comparisons": comparisons,
    }
    return experiment.model_copy(update={"eval": section.model_copy(update=named)})


def _arm(arm: Arm, prefix: str, model: str | None) -> Arm:
    if isinstance(arm, PlaceboArm):
        return arm.model_copy(update={"of": f"{prefix}/{arm.of}"})
    if isinstance(arm, ModelArm) and model is not None:
        return arm.model_copy(update={"model": model})
    return arm
