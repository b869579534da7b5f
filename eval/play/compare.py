"""Compares the arms on the same tasks and seeds. Arms share a trial 0 if its conditions are equal."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from retroformer.arm_names import first_trial, is_for_training
from retroformer.backends import LOCAL, backend_of
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Experience
from retroformer.experiment.best_of import best_of
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, check_prompts, chosen_tasks, require_addresses
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.storage import open_store, open_whole_store
from retroformer.ledger import Ledger
from retroformer.records import Task
from retroformer.stage_metrics import training_tasks

from ..measure.results import ArmResult, arm_results, last_trial
from ..report.actors_table import write_actors_table
from ..report.domains_table import write_domains_table
from ..report.input import ReportInput
from ..report.repeats_table import write_repeats_table
from ..report.report import write_report
from .arms import actor_models, check_arms, held_out_splits, reflector_models, retrieving_reflector, single_model_arms
from .evaluation import Evaluation, open_evaluations
from .learning import LearningArm, play_and_learn
from .overlap import refuse_adapters_trained_on, refuse_tasks_of_runs, refuse_trained_tasks
from .repetitions import check_repetitions, with_actor
from .verify import VerifiedModel, verify_actor, verify_models


async def compare_arms(*configs: LoadedConfig) -> str:
    """Play what the store lacks and write the report; return a line with its path.

    With several actors or repeats, write a report for each and a table of all. `configs` are one config, or the domains
    of one: then each has its reports, and a table shows all domains.

    Raises:
        RetroformerError: a server serves another model than the trained one, tasks overlap with training, or some
            tasks are unfinished (the report is still written if at least one was played).
    """
    held_out = [_held_out(config) for config in configs]
    # Everything that can be refused is refused before the first domain plays.
    tasks = [_accepted_tasks(config.experiment) for config in held_out]
    compared = [await _compare(*one) for one in zip(held_out, tasks, strict=True)]
    path = compared[0].path
    if len(compared) > 1:
        path = write_domains_table([(one.experiment, one.results) for one in compared])
    if unfinished := [sentence for one in compared for sentence in one.unfinished]:
        raise InfrastructureFailure("\n".join((f"report: {path}", *unfinished)))
    return f"report: {path}"


class _Compared(NamedTuple):
    """Comparison of a config, or of one of its domains."""

    experiment: Experiment
    path: Path
    results: Mapping[str, Sequence[ArmResult]]
    """Results by actor or repeat; under the empty name if there is only one."""
    unfinished: Sequence[str]
    """A sentence about unfinished tasks for each actor or repeat that has some."""


def _accepted_tasks(experiment: Experiment) -> tuple[Task, ...]:
    """Return the tasks to play. Raises ConfigError, MissingInput if they, an arm or an actor cannot be played."""
    _refuse_temperature_of_collection(experiment)
    check_repetitions(experiment)
    if experiment.eval.backend != LOCAL:
        backend_of(experiment.eval.backend)
        asks_reflector = bool(reflector_models(experiment.eval.arms))
        require_addresses(experiment, f"eval.backend={experiment.eval.backend}", asks_reflector=asks_reflector)
    tasks = chosen_tasks(experiment, experiment.eval.tasks, held_out_splits(experiment))
    # Domains of one environment may share tasks.
    for domain in experiment.each_domain:
        if training_tasks(domain, ()).are_of(experiment):
            with closing(open_store(domain)) as store:
                refuse_trained_tasks(store, tasks)
    for repetition in _repetitions(experiment).values():
        check_prompts(repetition)
        check_arms(repetition)
        refuse_adapters_trained_on(repetition, tasks)
        refuse_tasks_of_runs(repetition, tasks)
    return tasks


def _refuse_temperature_of_collection(experiment: Experiment) -> None:
    """Refuse a temperature that no command reads: eval asks at its own, and this run is for eval alone.

    Raises:
        ConfigError: `reflector.temperature` is set, and the run neither has training facts nor a section about them.
    """
    if "temperature" not in experiment.reflector.model_fields_set or experiment.model_fields_set & {"collect", "train"}:
        return
    if any(map(best_of, reflector_models(experiment.eval.arms))):
        return
    if experiment.has_store:
        with closing(open_store(experiment)) as store:
            if any(map(is_for_training, store.arms())):
                return
    raise ConfigError(
        "reflector.temperature is that of collect, and this run is only evaluated: set eval.temperature instead."
    )


def _repetitions(experiment: Experiment) -> dict[str, Experiment]:
    """Return the config for each of its actors; the config itself, under the empty name, if it has none."""
    return {actor: with_actor(experiment, actor) for actor in experiment.eval.actors} or {"": experiment}


async def _compare(config: LoadedConfig, tasks: tuple[Task, ...]) -> _Compared:
    """Play all arms with each actor, or in each repeat, and write the reports."""
    experiment = config.experiment
    configs = {actor: replace(config, experiment=repetition) for actor, repetition in _repetitions(experiment).items()}
    played = await _with_actors(configs, tasks)
    results = {name: report.results for name, report in played.items()}
    if experiment.eval.actors:
        path = write_actors_table(experiment, results)
    elif experiment.eval.repeats > 1:
        path = write_repeats_table(experiment, results)
    else:
        path = played[""].path
    return _Compared(experiment, path, results, [one.unfinished for one in played.values() if one.unfinished])


async def _with_actors(configs: Mapping[str, LoadedConfig], tasks: tuple[Task, ...]) -> dict[str, "_WrittenReport"]:
    """Play all arms with one actor, or one repeat, after another; return their reports.

    The conditions of every actor are checked before the first one plays.
    """
    experiment = next(iter(configs.values())).experiment
    with closing(open_whole_store(experiment)) as store, closing(Ledger(store)) as ledger:
        for actor, config in configs.items() if len(configs) > 1 else ():
            async with open_evaluations(config, ledger, tasks, actor) as evaluations:
                # Opening them has checked their conditions.
                _verify_actors(evaluations[0])
        played = {}
        for actor, config in configs.items():
            async with open_evaluations(config, ledger, tasks, actor) as evaluations:
                experiment, components = evaluations[0].experiment, evaluations[0].components
                _verify_actors(evaluations[0])
                verified = await verify_models(experiment, components, store, reflector_models(experiment.eval.arms))
                for evaluation in evaluations:
                    await _play(evaluation)
                    played[evaluation.name] = _write_report(evaluation, verified)
        return played


def _verify_actors(evaluation: Evaluation) -> None:
    """Check the adapters that act. Raises ProvenanceError, MissingInput."""
    verify_actor(evaluation.experiment, evaluation.components, actor_models(evaluation.experiment))


async def _play(evaluation: Evaluation) -> None:
    """Play each trial 0 once, then the arms side by side, then those that learn, and last the placebos.

    A placebo reuses what another arm wrote.
    """
    arms = evaluation.experiment.eval.arms
    placebos = {name: arm for name, arm in arms.items() if arm.kind == "placebo"}
    await evaluation.play("trial 0", [evaluation.experience(stored) for stored in evaluation.shared_first_trials])
    learners = {name: arm for name, arm in arms.items() if arm.learns}
    played = await _retry(evaluation, {name: arm for name, arm in arms.items() if name not in {**placebos, **learners}})
    played |= await _retry_and_learn(evaluation, learners)
    for arm in placebos.values():
        for source in single_model_arms(arm.of, arms[arm.of]):
            _refuse_unfinished_source(evaluation, source, played[source])
    await _retry(evaluation, placebos)


async def _retry(evaluation: Evaluation, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms side by side; return their experiences by name in the store.

    If arms stop without gain, they are played trial by trial. An arm with unfinished tasks waits for the next run.
    """
    singles = {stored: single for name, arm in arms.items() for stored, single in single_model_arms(name, arm).items()}
    trials, played = evaluation.experiment.loop.trials, dict[str, Experience]()
    stops = evaluation.experiment.eval.stop == "no_gain" and trials > 1
    for number in range(2, trials + 1) if stops else (trials,):
        part = replace(evaluation, trials=number)
        playing = {stored: part.experience_of(stored, arm) for stored, arm in singles.items()}
        if not playing:
            break
        title = ", ".join(arms)
        await part.play(f"{title}, trial {number - 1}" if stops else title, list(playing.values()))
        played |= playing
        left = [stored for stored, experience in playing.items() if not experience.unfinished]
        gaining = await evaluation.ledger.ask(_gaining, part, left) if number < trials else ()
        singles = {stored: singles[stored] for stored in gaining}
    return played


def _gaining(evaluation: Evaluation, stored: Sequence[str]) -> list[str]:
    """Return those of these arms whose every retry so far has solved a further task."""
    store, tasks, trials = evaluation.store, evaluation.tasks, evaluation.trials or 1
    firsts, last_counts = evaluation.first_trials, evaluation.experiment.evaluator.last_counts
    return [
        arm for arm in stored if last_trial(store, tasks, arm, trials, firsts[arm], last_counts=last_counts) is None
    ]


async def _retry_and_learn(evaluation: Evaluation, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms, which learn on the way; return their experiences by name in the store."""
    learners = []
    for name, arm in arms.items():
        for stored, single in single_model_arms(name, arm).items():
            reflector = retrieving_reflector(evaluation.experiment, evaluation.store)
            learners.append(LearningArm(evaluation.experience_of(stored, single, reflector), reflector))
    if learners:
        await play_and_learn(evaluation.ledger, learners, evaluation.tasks, evaluation.experiment.loop.concurrency)
    return {learner.experience.arm: learner.experience for learner in learners}


def _held_out(config: LoadedConfig) -> LoadedConfig:
    """Return the config with the first held-out split in place of the training split.

    Tasks of the other held-out splits can be played with it, too.
    """
    experiment = config.experiment
    environment = experiment.environment.model_copy(update={"split": held_out_splits(experiment)[0]})
    return LoadedConfig(config.path, config.overrides, experiment.model_copy(update={"environment": environment}))


def _refuse_unfinished_source(evaluation: Evaluation, source: str, experience: Experience) -> None:
    """Raise InfrastructureFailure if a source is unfinished: a placebo draws from everything that its source wrote."""
    if left := experience.unfinished & evaluation.store.played_tasks(experience.first_trial_arm):
        # The causes of trial 0 are stored apart from those of the arms that share it.
        cause = evaluation.store.last_cause(source) or evaluation.store.last_cause(experience.first_trial_arm)
        raise InfrastructureFailure(
            f"Arm {source.removeprefix('eval/')!r} left {len(left)} tasks unfinished, so its advice cannot be dealt "
            f"out yet: run the same command again to go on. The last cause: {cause}"
        )


class _WrittenReport(NamedTuple):
    """Report about one actor or repeat."""

    path: Path
    results: Sequence[ArmResult]
    unfinished: str
    """Sentence about the unfinished tasks; empty if there are none."""


def _write_report(evaluation: Evaluation, verified: Sequence[VerifiedModel]) -> _WrittenReport:
    """Write the report.

    Raises:
        MissingInput: no task could be played.
    """
    experiment, store, tasks = evaluation.experiment, evaluation.store, evaluation.tasks
    arms = {name: list(single_model_arms(name, arm)) for name, arm in experiment.eval.arms.items()}
    firsts = evaluation.first_trials
    if all(store.played_tasks(first).isdisjoint(task.id for task in tasks) for first in firsts.values()):
        cause = next(filter(None, map(store.last_cause, firsts.values())), "no arm is named")
        raise MissingInput(f"No task could be played, so nothing can be compared: {cause}")
    results = arm_results(
        store,
        tasks,
        arms,
        experiment.loop.trials,
        first_trial(evaluation.name),
        firsts,
        last_counts=experiment.evaluator.last_counts,
        stops=experiment.eval.stop == "no_gain",
    )
    path = write_report(
        ReportInput(experiment, tasks, results, verified, store, evaluation.components.actor_sha256, evaluation.name)
    )
    left = max(arm.incomplete for arm in results)
    unfinished = (
        f"{left} of {len(tasks)} tasks are left unfinished in an arm; the report shows rates without them, and with "
        "them counted as failures: run the same command again to go on."
    )
    return _WrittenReport(path, results, unfinished if left else "")
