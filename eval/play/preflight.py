"""What an evaluation makes of its config: the tasks, actors, repeats and settings of arms, and all that it refuses.

Everything that can be refused is refused before anything is started.

Tasks that were used for training are refused: in this run, in runs whose attempts an arm uses, or of any adapter that
the evaluation serves. The training stages record their tasks in metrics.json beside each adapter, with those of the
adapters they start from, so an adapter of another run is checked without that run's store. A server elsewhere proves
that it has the adapter of a folder here, so its reflectors are checked as well; an actor elsewhere passes.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path

from retroformer.agents.actors import actor_kind
from retroformer.agents.arms.arm import Arm, ArmSetting, ModelArm
from retroformer.config.experiment import Experiment
from retroformer.config.parts import check_prompts, held_out_tasks, require_addresses
from retroformer.config.sections.base import adapter_name, best_of
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import LONGEST_NAME, Task, Trajectory
from retroformer.run.adapter_names import FOLDER_NAME, REFLECTOR, REWARD, training_command
from retroformer.run.adapters import has_adapter, is_trained, model_folder, reward_folder, served_folder
from retroformer.run.arm_names import FIRST_TRIAL, first_trial, is_for_training, is_rated, own_first_trial
from retroformer.run.backends import LOCAL, backend_of
from retroformer.run.stage_metrics import METRICS, StageMetrics, read_metrics, training_tasks
from retroformer.run.store import Store, open_store, open_whole_store

logger = logging.getLogger(__name__)


def preflight(*experiments: Experiment) -> list[tuple[Task, ...]]:
    """Return the tasks to play in each experiment: one, or the domains of one.

    Raises ConfigError, MissingInput if they, an arm or an actor cannot be played.
    """
    for experiment in experiments:
        _check_actors(experiment)
        if experiment.loop.backend != LOCAL:
            backend_of(experiment.loop.backend)
            require_addresses(experiment, asks_reflector=bool(experiment.eval.reflector_models))
    chosen = [(experiment, held_out_tasks(experiment)) for experiment in experiments]
    # Domains of one environment may share tasks. Each store is verified once.
    for domain in experiments[0].each_domain:
        played = [tasks for experiment, tasks in chosen if training_tasks(domain, ()).are_of(experiment)]
        if played:
            with closing(open_whole_store(domain)) as store:
                for tasks in played:
                    refuse_trained_tasks(store, tasks)
    for experiment, tasks in chosen:
        for repetition in repetitions(experiment).values():
            check_prompts(repetition)
            check_arms(repetition)
            refuse_adapters_trained_on(repetition, tasks)
        # Once, since the stores of these runs are verified, and all actors read the same ones.
        refuse_tasks_of_runs(experiment, tasks)
        for repetition in repetitions(experiment).values():
            _refuse_untrained(repetition)
    return [tasks for _, tasks in chosen]


def check_arms(experiment: Experiment) -> None:
    """Refuse arms that cannot be played. Raises ConfigError, which names the config entry to change."""
    arms, setting = experiment.eval.arms, setting_of(experiment)
    for name, arm in arms.items():
        here = f"eval.arms.{name}"
        arm.check(here, setting)
        _check_actor_of(experiment, arm, here)
    _check_comparisons(experiment)
    stored = experiment.eval.stored_names
    first_trials = {FIRST_TRIAL, *(first_trial(prompts=arm.prompts) for arm in arms.values() if not arm.advises_first)}
    own = [own_first_trial(name) for title, arm in arms.items() if arm.advises_first for name in stored[title]]
    name, count = Counter([*first_trials, *own, *chain.from_iterable(stored.values())]).most_common(1)[0]
    if long := [name for name in chain.from_iterable(stored.values()) if len(name.encode()) > LONGEST_NAME]:
        raise ConfigError(f"eval.arms: the name {long[0][:40]!r}... has more than {LONGEST_NAME} bytes; shorten it.")
    if count > 1:
        raise ConfigError(f"eval.arms: two arms would be stored as {name!r}; give one of them another name.")


def _check_actor_of(experiment: Experiment, arm: Arm, here: str) -> None:
    """Refuse settings of an arm's actor that would change nothing, or that do not fit the environment."""
    actor = actor_kind(experiment)
    reads_pack = actor.asks_model and actor.reads_pack
    for key, is_set, has_effect, reason in (
        ("actor_temperature", arm.actor_temperature is not None, actor.asks_model, "is a program that samples nothing"),
        ("actor_model", arm.actor_model is not None, actor.asks_model, "is a program without a model"),
        ("prompts", arm.prompts is not None, reads_pack, "reads no prompt pack"),
        ("last_attempt", arm.last_attempt, actor.reads_last_attempt, "reads only advice"),
    ):
        if is_set and not has_effect:
            raise ConfigError(
                f"{here}.{key}: the {experiment.actor.kind} actor {reason}; leave it out, or set actor.kind."
            )
    if arm.prompts is not None:
        if arm.prompts == experiment.actor.prompts:
            raise ConfigError(f"{here}.prompts: {arm.prompts!r} is actor.prompts already; leave it out.")
        check_prompts(with_arm_settings(experiment, arm))


def _check_comparisons(experiment: Experiment) -> None:
    """Refuse comparisons and examples of arms or trials that do not exist."""
    arms, trials = experiment.eval.arms, experiment.loop.trials
    compared = [name for planned in experiment.eval.comparisons for name in (planned.first, planned.second)]
    for key, names in {"examples": experiment.eval.examples or (), "comparisons": compared}.items():
        for name in names:
            if name not in arms:
                raise ConfigError(f"eval.{key}: {name!r} is not an arm; name one of {', '.join(arms)}.")
    for planned in experiment.eval.comparisons:
        if planned.trial is not None and planned.trial >= trials:
            raise ConfigError(
                f"eval.comparisons: trial {planned.trial} is not played with loop.trials={trials}; the last one is "
                f"{trials - 1}."
            )


def _check_actors(experiment: Experiment) -> None:
    """Refuse what would leave open who writes the advice, or what the report compares."""
    section = experiment.eval
    if section.actors and section.repeats > 1:
        raise ConfigError("eval.repeats: eval.actors are compared in one run of each; take one of the two keys out.")
    if not section.actors_reflect:
        return
    if not section.actors:
        raise ConfigError("eval.actors_reflect: there are no eval.actors to write advice; name them or leave it out.")
    for name, arm in section.arms.items():
        if arm.models and "model" in arm.model_fields_set:
            raise ConfigError(
                f"eval.arms.{name}.model: each of eval.actors writes its own advice (eval.actors_reflect); leave the "
                "model out."
            )


def refuse_tasks_of_runs(experiment: Experiment, tasks: Sequence[Task]) -> None:
    """Refuse tasks of the runs whose collected attempts an arm's advice is made from."""
    runs = (arm.experience_of(experiment.run) for arm in experiment.eval.arms.values())
    for run in dict.fromkeys(chain.from_iterable(runs)):
        source = experiment.model_copy(update={"run": run})
        if source.has_store:
            with closing(open_whole_store(source)) as store:
                refuse_trained_tasks(store, tasks)


def refuse_trained_tasks(store: Store, tasks: Sequence[Task]) -> None:
    """Raise ConfigError if the run of this store collected training facts on one of these tasks.

    A task that was only played counts, too: the places and the attempts of a solved task are read by hindsight.
    """
    chosen = {task.id for task in tasks}
    trained_on = (store.tasks(arm).values() for arm in store.arms() if is_for_training(arm))
    if shared := sorted(chosen.intersection(chain.from_iterable(trained_on))):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used for training, such as {shared[0]!r}: "
            "name another split with eval.split=NAME."
        )


def warn_of_equal_openings(store: Store, tasks: Sequence[Task], first_trial: str) -> None:
    """Warn if tasks begin as training tasks of other ids do: they may be the same, which no id shows."""
    trained = {opening: key for arm in store.arms() if is_for_training(arm) for key, opening in store.openings(arm)}
    played = store.openings(first_trial, [task.id for task in tasks]) if trained else ()
    if equal := [(task_id, trained[opening]) for task_id, opening in played if opening in trained]:
        logger.warning(
            "%d of %d evaluation tasks begin as training tasks do, such as %r as %r: check that they are not the same.",
            *(len(equal), len(tasks), *equal[0]),
        )


def refuse_adapters_trained_on(experiment: Experiment, tasks: Sequence[Task]) -> None:
    """Refuse tasks that an adapter served for this evaluation was trained on, in whatever run that was."""
    for name, folder in _served_folders(experiment):
        refuse_adapter_trained_on(experiment, name, folder, tasks)


def refuse_adapter_trained_on(experiment: Experiment, name: str, folder: Path, tasks: Sequence[Task]) -> None:
    """Refuse tasks that the adapter in `folder` was trained on. Raises ConfigError, DamagedFile."""
    chosen = {task.id for task in tasks}
    if (folder / METRICS).is_file() and (shared := sorted(chosen & _trained_on(read_metrics(folder), experiment))):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used to train {name!r} ({folder}), such as "
            f"{shared[0]!r}: name another split with eval.split=NAME, or serve another adapter."
        )


def _refuse_untrained(experiment: Experiment) -> None:
    """Refuse an arm or actor of the experiment's own server whose adapter has not been trained. Raises MissingInput."""
    elsewhere = experiment.eval.reflector_models if experiment.reflector.endpoint.base_url else ()
    for model, folder in _served_folders(experiment):
        name = FOLDER_NAME.fullmatch(folder.name)
        plain = adapter_name(model) in ("base", REFLECTOR) and not (name and name["stage"] == REWARD)
        if not (plain or model in elsewhere or has_adapter(folder)):
            train = f"train it with {training_command(folder.name)}, or " if name else ""
            advice = f"{train}leave out what uses it."
            raise MissingInput(f"The adapter {model!r} is to be evaluated, and there is none in {folder}: {advice}")


def _served_folders(experiment: Experiment) -> Iterator[tuple[str, Path]]:
    """Yield name and folder of each adapter that is served for this evaluation; at a server elsewhere by its name."""
    own_server = experiment.reflector.endpoint.base_url is None
    for model in experiment.eval.reflector_models:
        name = adapter_name(model)
        if own_server or is_trained(experiment, name):
            yield model, served_folder(experiment, name)
            if best_of(model):
                yield model, reward_folder(experiment, name)
    if actor_kind(experiment).asks_model and experiment.actor.endpoint.base_url is None:
        for model in (experiment.actor.endpoint.model, *experiment.eval.actor_models):
            yield model, model_folder(experiment, adapter_name(model))


def _trained_on(metrics: StageMetrics, experiment: Experiment) -> frozenset[str]:
    """Return the tasks of this experiment's environment that an adapter was trained on, with those that SAC played."""
    played = metrics.measure("tasks") or ()
    return frozenset(
        task
        for training in metrics.training_domains or ()
        if training.are_of(experiment)
        for task in (*training.tasks, *played)
    )


def setting_of(experiment: Experiment) -> ArmSetting:
    section = experiment.eval
    return ArmSetting(
        section.arms,
        experiment.loop.trials,
        section.temperature,
        experiment.reflector,
        extras(experiment.environment).kind_of,
    )


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
    """Yield the collected attempts of these runs, whose stores are verified; never those of an evaluation.

    Stories with a mark of `train.leave_out` are left out. Raises MissingInput: a run has none.
    """
    for run in runs:
        source = experiment.model_copy(update={"run": run})
        count = 0
        if source.has_store:
            with closing(open_store(source)) as store:
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
    return _with_prefix(experiment, f"repeat {number}")


def _with_prefix(experiment: Experiment, prefix: str, model: str | None = None) -> Experiment:
    """Return the config with arms named PREFIX/ARM; if `model` is given, it writes the advice of all model arms."""
    section = experiment.eval
    comparisons = tuple(
        planned.model_copy(update={"first": f"{prefix}/{planned.first}", "second": f"{prefix}/{planned.second}"})
        for planned in section.comparisons
    )
    named = {
        "arms": {f"{prefix}/{name}": arm.with_prefix(prefix, model) for name, arm in section.arms.items()},
        "examples": section.examples and tuple(f"{prefix}/{name}" for name in section.examples),
        "comparisons": comparisons,
    }
    return experiment.model_copy(update={"eval": section.model_copy(update=named)})
