"""The arms that a config describes: their names in the store, models and settings, for each actor and repeat."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from retroformer.agents.arms.arm import Arm, ArmSetting
from retroformer.agents.arms.baselines import PlaceboArm
from retroformer.agents.reflector import ModelArm
from retroformer.config.arm_names import evaluation, is_rated
from retroformer.config.experiment import Experiment
from retroformer.config.storage import open_whole_store
from retroformer.environments.registry import extras
from retroformer.errors import MissingInput
from retroformer.method.records import Trajectory


def setting_of(experiment: Experiment) -> ArmSetting:
    """Return the parts of a config that arms are checked against."""
    section = experiment.eval
    return ArmSetting(
        section.arms,
        experiment.loop.trials,
        section.temperature,
        experiment.reflector.temperature,
        extras(experiment.environment).kind_of,
    )


def stored_names(arms: Mapping[str, Arm]) -> dict[str, list[str]]:
    """Return the names in the store of each arm of a config: one, or one for each of its training seeds."""
    return {name: [evaluation(name, seed) for seed in arm.split()] for name, arm in arms.items()}


def reflector_models(arms: Mapping[str, Arm]) -> list[str]:
    """Return every model that writes advice."""
    return sorted({model for arm in arms.values() for model in arm.models})


def actor_models(experiment: Experiment) -> list[str]:
    """Return the models that act in the retries of an arm in place of the config's actor."""
    return sorted({model for arm in experiment.eval.arms.values() for model in arm.actor_models})


def held_out_splits(experiment: Experiment) -> tuple[str, ...]:
    """Return the splits that the report covers."""
    split = experiment.eval.split or experiment.environment.split
    return (split,) if isinstance(split, str) else split


def with_arm_settings(experiment: Experiment, arm: Arm) -> Experiment:
    """Return the config with the settings of the arm's retries."""
    actor, loop, reflector = experiment.actor, experiment.loop, experiment.reflector
    if arm.prompts is not None:
        actor = actor.model_copy(update={"prompts": arm.prompts})
    if arm.actor_temperature is not None:
        actor = actor.model_copy(update={"temperature": arm.actor_temperature})
    if isinstance(arm.actor_model, str):
        endpoint = actor.endpoint.model_copy(update={"model": arm.actor_model})
        actor = actor.model_copy(update={"endpoint": endpoint})
    if arm.last_attempt is not None:
        loop = loop.model_copy(update={"last_attempt": arm.last_attempt})
    if isinstance(arm, ModelArm) and arm.history is not None:
        reflector = reflector.model_copy(update={"history": arm.history})
    return experiment.model_copy(update={"actor": actor, "loop": loop, "reflector": reflector})


def training_attempts(experiment: Experiment, runs: Sequence[str]) -> Iterator[Trajectory]:
    """Yield the collected attempts of these runs; never those of an evaluation.

    Stories with a mark of `train.leave_out` are left out.

    Raises:
        MissingInput: a run has none.
    """
    for run in runs:
        source = experiment.model_copy(update={"run": run})
        count = 0
        if source.has_store:
            with closing(open_whole_store(source)) as store:
                for name in filter(is_rated, store.arms()):
                    left_out = store.marks.tasks(name, experiment.train.leave_out)
                    for key, attempt in store.stream_trajectories(name):
                        if key.task_id not in left_out:
                            count += 1
                            yield attempt
        if not count:
            raise MissingInput(
                f"No collected attempts of the run {run!r}: run `retroformer collect` for it first, or name another in "
                "the arm's `runs`."
            )


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
