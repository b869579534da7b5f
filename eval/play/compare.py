"""Compares the arms on the same tasks and seeds. Arms share a trial 0 if its conditions are equal."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from retroformer.agents.arms.baselines import PlaceboArm
from retroformer.agents.arms.retrieved import RetrievedArm, RetrievingReflector
from retroformer.config.arm_names import first_trial
from retroformer.config.experiment import Experiment
from retroformer.config.parts import LoadedConfig
from retroformer.config.storage import open_whole_store
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.method.records import Task
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger

from ..measure.results import ArmResult, arm_results
from ..report.evaluation import Evaluated
from ..report.report import write_actors, write_domains, write_repeats, write_report
from .arm_settings import actor_models, held_out_splits, reflector_models, repetitions, stored_names
from .evaluation import Evaluation, open_evaluations
from .learning import play_and_learn
from .preflight import preflight
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
    tasks = [preflight(config.experiment) for config in held_out]
    compared = [await _compare(*one) for one in zip(held_out, tasks, strict=True)]
    path = compared[0].path
    if len(compared) > 1:
        path = write_domains([(one.experiment, one.results) for one in compared])
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


async def _compare(config: LoadedConfig, tasks: tuple[Task, ...]) -> _Compared:
    """Play all arms with one actor, or in one repeat, after another, and write the reports.

    The conditions of every actor are checked before the first one plays.
    """
    experiment = config.experiment
    configs = {name: replace(config, experiment=repetition) for name, repetition in repetitions(experiment).items()}
    reports = dict[str, _WrittenReport]()
    with closing(open_whole_store(experiment)) as store, closing(Ledger(store)) as ledger:
        for name, repetition in configs.items() if len(configs) > 1 else ():
            async with open_evaluations(repetition, ledger, tasks, name) as evaluations:
                # Opening them has checked their conditions.
                _verify_actors(evaluations[0])
        for name, repetition in configs.items():
            async with open_evaluations(repetition, ledger, tasks, name) as evaluations:
                _verify_actors(evaluations[0])
                own, components = evaluations[0].experiment, evaluations[0].components
                verified = await verify_models(own, components, store, reflector_models(own.eval.arms))
                for evaluation in evaluations:
                    await _play(evaluation)
                    reports[evaluation.name] = _write_report(evaluation, verified)
    results = {name: report.results for name, report in reports.items()}
    if experiment.eval.actors:
        path = write_actors(experiment, results)
    elif experiment.eval.repeats > 1:
        path = write_repeats(experiment, results)
    else:
        path = reports[""].path
    return _Compared(experiment, path, results, [report.unfinished for report in reports.values() if report.unfinished])


def _verify_actors(evaluation: Evaluation) -> None:
    """Check the adapters that act. Raises ProvenanceError, MissingInput."""
    verify_actor(evaluation.experiment, evaluation.components, actor_models(evaluation.experiment))


async def _play(evaluation: Evaluation) -> None:
    """Play each trial 0 once, then the arms side by side, then those that learn, and last the placebos.

    A placebo reuses what another arm wrote.
    """
    arms = evaluation.experiment.eval.arms
    placebos = {name: arm.of for name, arm in arms.items() if isinstance(arm, PlaceboArm)}
    learners = [name for name, arm in arms.items() if isinstance(arm, RetrievedArm) and arm.learns]
    stored = stored_names(arms)

    async def retry(names: Collection[str]) -> dict[str, Experience]:
        singles = [single for name in names for single in stored[name]]
        return await evaluation.play(", ".join(names), singles) if singles else {}

    await evaluation.play("trial 0", evaluation.first_trials)
    played = await retry([name for name in arms if name not in {*placebos, *learners}])
    played |= await _retry_and_learn(evaluation, [single for name in learners for single in stored[name]])
    for single in dict.fromkeys(single for source in placebos.values() for single in stored[source]):
        _refuse_unfinished_source(evaluation, single, played[single])
    await retry(placebos)


async def _retry_and_learn(evaluation: Evaluation, stored: Sequence[str]) -> dict[str, Experience]:
    """Play the later trials of these arms, which learn on the way; return their experiences by name in the store."""
    experiences = {single: evaluation.experience(single) for single in stored}
    learners = []
    for single, experience in experiences.items():
        reflector = evaluation.arms[single].reflector
        assert isinstance(reflector, RetrievingReflector), "these arms retrieve advice"
        learners.append((experience, reflector))
    if learners:
        await play_and_learn(evaluation.ledger, learners, evaluation.tasks, evaluation.experiment.loop.concurrency)
    return experiences


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
    firsts = {stored: arm.first_trial for stored, arm in evaluation.arms.items()}
    if all(store.played_tasks(first).isdisjoint(task.id for task in tasks) for first in firsts.values()):
        cause = next(filter(None, map(store.last_cause, firsts.values())), "no arm is named")
        raise MissingInput(f"No task could be played, so nothing can be compared: {cause}")
    results = arm_results(
        store,
        tasks,
        stored_names(experiment.eval.arms),
        experiment.loop.trials,
        first_trial(evaluation.name),
        firsts,
        last_counts=experiment.evaluator.last_counts,
    )
    path = write_report(
        Evaluated(experiment, tasks, results, verified, store, evaluation.components.actor_sha256, evaluation.name)
    )
    left = max(arm.incomplete for arm in results)
    unfinished = (
        f"{left} of {len(tasks)} tasks are left unfinished in an arm; the report shows rates without them, and with "
        "them counted as failures: run the same command again to go on."
    )
    return _WrittenReport(path, results, unfinished if left else "")
