"""Comparison of the arms on the same tasks and seeds: all share trial 0 and differ in how they retry."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from retroformer.agents.baseline import NoReflector
from retroformer.arm_names import first_trial, is_for_training, is_of_gate
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, Parts, check_prompts, chosen_tasks, parts
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.sections.loop import Loop
from retroformer.experiment.storage import open_store
from retroformer.ledger import Ledger
from retroformer.progress import tally
from retroformer.protocols import Agent, Reflector
from retroformer.records import Task, Usage
from retroformer.schedule import Work, work_through
from retroformer.stage_metrics import training_tasks
from retroformer.store import Store

from ..measure.results import ArmResult, arm_results
from ..report.actors_table import write_actors_table
from ..report.domains_table import write_domains_table
from ..report.input import ReportInput
from ..report.repeats_table import write_repeats_table
from ..report.report import write_report
from .arms import (
    actor_models,
    actor_of,
    check_arms,
    conditions_of,
    held_out_splits,
    plan_of,
    reflector_models,
    reflector_of,
    retrieving_reflector,
    single_model_arms,
    with_arm_settings,
)
from .learning import LearningArm, play_and_learn
from .overlap import refuse_adapters_trained_on, refuse_trained_tasks
from .variants import check_variants, repeat_name, with_actor, with_repeat
from .verify import VerifiedModel, verify_actor, verify_models

_SEEDS_OF_A_REPEAT = 1_000_003
"""Distance of the seeds of two repeats, so that the seeds of two runs with neighbouring seeds stay apart."""


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
    check_variants(experiment)
    tasks = chosen_tasks(experiment, experiment.eval.tasks, held_out_splits(experiment))
    # Domains of one environment may share tasks.
    for domain in experiment.each_domain:
        if training_tasks(domain, ()).are_of(experiment):
            with closing(open_store(domain)) as store:
                refuse_trained_tasks(store, tasks)
    for variant in _variants(experiment).values():
        check_prompts(variant)
        check_arms(variant)
        refuse_adapters_trained_on(variant, tasks)
    return tasks


def _variants(experiment: Experiment) -> dict[str, Experiment]:
    """Return the config for each of its actors; the config itself, under the empty name, if it has none."""
    return {actor: with_actor(experiment, actor) for actor in experiment.eval.actors} or {"": experiment}


async def _compare(config: LoadedConfig, tasks: tuple[Task, ...]) -> _Compared:
    """Play all arms with each actor, or in each repeat, and write the reports."""
    experiment = config.experiment
    configs = {actor: replace(config, experiment=variant) for actor, variant in _variants(experiment).items()}
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
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        for actor, config in configs.items() if len(configs) > 1 else ():
            async with _open_evaluations(config, ledger, tasks, actor) as evaluations:
                # Opening them has checked their conditions.
                _verify_actors(evaluations[0])
        played = {}
        for actor, config in configs.items():
            async with _open_evaluations(config, ledger, tasks, actor) as evaluations:
                experiment, components = evaluations[0].experiment, evaluations[0].components
                _verify_actors(evaluations[0])
                verified = await verify_models(experiment, components, store, reflector_models(experiment.eval.arms))
                for evaluation in evaluations:
                    await _play(evaluation)
                    played[evaluation.name] = _write_report(evaluation, verified)
        return played


def _verify_actors(evaluation: "_Evaluation") -> None:
    """Check the adapters that act. Raises ProvenanceError, MissingInput."""
    verify_actor(evaluation.experiment, evaluation.components, actor_models(evaluation.experiment))


@asynccontextmanager
async def _open_evaluations(
    config: LoadedConfig, ledger: Ledger, tasks: tuple[Task, ...], actor: str
) -> AsyncIterator[list["_Evaluation"]]:
    """Start the components of an evaluation, and return one for each repeat.

    Raises:
        ConfigError: an arm holds facts of other conditions.
    """
    experiment, store = config.experiment, ledger.store
    async with parts(config, asks_reflector=bool(reflector_models(experiment.eval.arms))) as components:
        slots = asyncio.Semaphore(experiment.loop.concurrency)
        budget = Budget(experiment.eval, lambda: _spent(store), "eval")
        whole = _Evaluation(experiment, components, ledger, tasks, slots, budget, actor)
        repeats = range(1, experiment.eval.repeats + 1)
        evaluations = [whole.repeated(number) for number in repeats] if len(repeats) > 1 else [whole]
        for evaluation in evaluations:
            _declare(evaluation)
        yield evaluations


@dataclass(frozen=True)
class _Evaluation:
    """Components, tasks and budget that all arms of one actor, or of one repeat, share."""

    experiment: Experiment
    components: Parts
    ledger: Ledger
    tasks: tuple[Task, ...]
    slots: asyncio.Semaphore
    """Limit on the units in flight over all arms."""
    budget: Budget
    """Budget of everything ever played for this report."""
    name: str = ""
    """Name of the actor or repeat if the config has several: prefix of its arms, and folder of its report."""
    repeat: int = 0
    """Number of the repeat, from 1; 0 if all arms are played once."""

    def repeated(self, number: int) -> "_Evaluation":
        """Return the evaluation for one of its repeats."""
        return replace(self, experiment=with_repeat(self.experiment, number), name=repeat_name(number), repeat=number)

    @property
    def store(self) -> Store:
        return self.ledger.store

    def experience(self, arm: str, agent: Agent, loop: Loop) -> Experience:
        """Return the experience of the arm with this name in the store."""
        return Experience(
            self.ledger,
            arm,
            self.components.pool,
            agent,
            loop,
            self.experiment.seed + _SEEDS_OF_A_REPEAT * self.repeat,
            self.budget,
            slots=self.slots,
            first_trial_arm=first_trial(self.name),
        )

    async def play(self, title: str, experiences: Sequence[Experience]) -> None:
        """Play all tasks with each of these experiences."""
        with tally(title, len(experiences) * len(self.tasks)) as counts:
            for experience in experiences:
                experience.on_event = counts.count
            works = [Work(experience, self.tasks, 1) for experience in experiences]
            await work_through(self.ledger, works, self.experiment.loop.concurrency, counts.done)


def _declare(evaluation: _Evaluation) -> None:
    """Raise ConfigError if any arm holds facts of other conditions, before an arm plays."""
    experiment, components, store = evaluation.experiment, evaluation.components, evaluation.store
    repeat = {"repeat": evaluation.repeat} if evaluation.repeat else {}
    first = conditions_of(experiment, components, store, Arm(kind="none"))
    store.declare(first_trial(evaluation.name), first | repeat | plan_of(experiment))
    for name, arm in experiment.eval.arms.items():
        for stored, single in single_model_arms(name, arm).items():
            store.declare(stored, conditions_of(experiment, components, store, single) | repeat)


async def _play(evaluation: _Evaluation) -> None:
    """Play trial 0 once, then the arms side by side, then those that learn, and last the placebos.

    A placebo reuses what another arm wrote.
    """
    arms = evaluation.experiment.eval.arms
    placebos = {name: arm for name, arm in arms.items() if arm.kind == "placebo"}
    loop = evaluation.experiment.loop.model_copy(update={"trials": 1})
    first = evaluation.experience(first_trial(evaluation.name), evaluation.components.agent(NoReflector()), loop)
    await evaluation.play("trial 0", [first])
    learners = {name: arm for name, arm in arms.items() if arm.learns}
    played = await _retry(evaluation, {name: arm for name, arm in arms.items() if name not in {**placebos, **learners}})
    played |= await _retry_and_learn(evaluation, learners)
    for arm in placebos.values():
        for source in single_model_arms(arm.of, arms[arm.of]):
            _refuse_unfinished_source(evaluation, source, played[source])
    await _retry(evaluation, placebos)


async def _retry(evaluation: _Evaluation, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms side by side; return their experiences by name in the store."""
    singles = {stored: single for name, arm in arms.items() for stored, single in single_model_arms(name, arm).items()}
    played = {stored: _arm_experience(evaluation, stored, arm) for stored, arm in singles.items()}
    if played:
        await evaluation.play(", ".join(arms), list(played.values()))
    return played


async def _retry_and_learn(evaluation: _Evaluation, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms, which learn on the way; return their experiences by name in the store."""
    learners = []
    for name, arm in arms.items():
        for stored, single in single_model_arms(name, arm).items():
            reflector = retrieving_reflector(evaluation.experiment, evaluation.store)
            learners.append(LearningArm(_arm_experience(evaluation, stored, single, reflector), reflector))
    if learners:
        concurrency, shared = evaluation.experiment.loop.concurrency, first_trial(evaluation.name)
        await play_and_learn(evaluation.ledger, learners, evaluation.tasks, concurrency, shared)
    return {learner.experience.arm: learner.experience for learner in learners}


def _arm_experience(evaluation: _Evaluation, stored: str, arm: Arm, reflector: Reflector | None = None) -> Experience:
    experiment, components = evaluation.experiment, evaluation.components
    agent = components.agent(
        reflector or reflector_of(experiment, components, evaluation.store, arm), actor_of(experiment, components, arm)
    )
    return evaluation.experience(stored, agent, with_arm_settings(experiment, arm).loop)


def _spent(store: Store) -> Usage:
    """Return the usage of all arms that are played for a report."""
    return sum(
        (usage for arm, usage in store.accounts().items() if not (is_for_training(arm) or is_of_gate(arm))), Usage()
    )


def _held_out(config: LoadedConfig) -> LoadedConfig:
    """Return the config with the first held-out split in place of the training split.

    Tasks of the other held-out splits can be played with it, too.
    """
    experiment = config.experiment
    environment = experiment.environment.model_copy(update={"split": held_out_splits(experiment)[0]})
    return LoadedConfig(config.path, config.overrides, experiment.model_copy(update={"environment": environment}))


def _refuse_unfinished_source(evaluation: _Evaluation, source: str, experience: Experience) -> None:
    """Raise InfrastructureFailure if a source is unfinished: a placebo draws from everything that its source wrote."""
    if left := experience.unfinished & evaluation.store.played_tasks(first_trial(evaluation.name)):
        # All arms share trial 0, whose causes are stored apart from theirs.
        cause = evaluation.store.last_cause(source) or evaluation.store.last_cause(first_trial(evaluation.name))
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


def _write_report(evaluation: _Evaluation, verified: Sequence[VerifiedModel]) -> _WrittenReport:
    """Write the report.

    Raises:
        MissingInput: no task could be played.
    """
    experiment, store, tasks = evaluation.experiment, evaluation.store, evaluation.tasks
    arms = {name: list(single_model_arms(name, arm)) for name, arm in experiment.eval.arms.items()}
    shared = first_trial(evaluation.name)
    if store.played_tasks(shared).isdisjoint(task.id for task in tasks):
        cause = store.last_cause(shared) or "no arm is named"
        raise MissingInput(f"No task could be played, so nothing can be compared: {cause}")
    results = arm_results(store, tasks, arms, experiment.loop.trials, shared)
    path = write_report(
        ReportInput(experiment, tasks, results, verified, store, evaluation.components.actor_sha256, evaluation.name)
    )
    left = max(arm.incomplete for arm in results)
    unfinished = (
        f"{left} of {len(tasks)} tasks are left unfinished in an arm; the report shows rates without them, and with "
        "them counted as failures: run the same command again to go on."
    )
    return _WrittenReport(path, results, unfinished if left else "")
