"""The arms of a config as they are played: each is resolved once, with its reflector and its stored conditions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from retroformer.agents.arm import Arm, ArmParts, ArmSetting
from retroformer.agents.reflector import ModelArm
from retroformer.arm_names import evaluation, is_rated
from retroformer.environments.registry import extras, taskset
from retroformer.errors import MissingInput
from retroformer.experiment.conditions import conditions
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import Parts, chosen_tasks, make_actor, make_evaluator
from retroformer.experiment.storage import open_whole_store
from retroformer.experiment.views import reflection_renderer
from retroformer.protocols import Agent, Reflector
from retroformer.records import Task, Trajectory
from retroformer.store import Store


@dataclass(frozen=True)
class PlayedArm:
    """An arm with one model of each role, as it is played."""

    stored: str
    """Its name in the store."""
    first_trial: str
    """Name in the store of its trial 0."""
    settings: Arm
    experiment: Experiment
    """The config with the settings of the arm's retries."""
    components: Parts
    parts: ArmParts

    @property
    def advises_first(self) -> bool:
        """True if its advice is given before the first attempt, too."""
        return self.settings.advises_first

    @cached_property
    def reflector(self) -> Reflector:
        """The reflector. A placebo's gives what its source has written when this is first read."""
        return self.settings.build(self.parts)

    @cached_property
    def agent(self) -> Agent:
        """The config's agent with this reflector, and with the actor and judge of the arm's settings."""
        own, arm, connections = self.experiment, self.settings, self.components.connections
        changed = own.actor != self.components.experiment.actor or arm.last_attempt is not None
        agent = self.components.agent(self.reflector, make_actor(own, connections) if changed else None)
        return agent if arm.prompts is None else replace(agent, evaluator=make_evaluator(own, connections))

    @cached_property
    def conditions(self) -> dict[str, Any]:
        """The conditions on which its facts depend."""
        arm, model = self.settings, next(iter(self.settings.models), None)
        record = conditions(
            self.experiment, self.components.provenance, splits=held_out_splits(self.experiment), reflector=model
        )
        record["reflector"]["temperature"] = arm.temperature(self.parts.setting)
        if model is None:
            record["reflector"]["endpoint"] = {}
        return record | {"arm": arm.model_dump()} | arm.conditions(self.parts)


def resolve(
    experiment: Experiment,
    components: Parts,
    store: Store,
    tasks: Sequence[Task],
    stored: str,
    arm: Arm,
    first_trial: str,
) -> PlayedArm:
    """Return an arm with one model of each role as it is played on these tasks."""
    own = with_arm_settings(experiment, arm)
    shown = replace(components, experiment=own)
    parts = ArmParts(
        setting_of(experiment),
        run=experiment.run,
        environment=experiment.environment,
        seed=experiment.seed,
        tasks=tasks,
        split_tasks=lambda: chosen_tasks(experiment, None, held_out_splits(experiment)),
        taskset=lambda: taskset(experiment.environment, experiment.seed),
        store=store,
        leave_out=experiment.train.leave_out,
        render=lambda: reflection_renderer(own),
        reflector=shown.reflector,
        attempts=lambda runs: training_attempts(experiment, runs),
    )
    return PlayedArm(stored, first_trial, arm, own, components, parts)


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
