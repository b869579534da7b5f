"""Plays the arms: the same tasks, the same seeds, trial 0 shared, one way to retry each."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from eval.actors import with_actor, write_table
from eval.arms import actor_of, at_arm, check_arms, conditions_of, models, reflector_of, spread
from eval.findings import Findings
from eval.outcome import ArmOutcome, arm_outcomes
from eval.report import write_report
from eval.verify import Verified, verify_actor, verify_models
from retroformer.arms import first_trial, is_for_training
from retroformer.assembly import Page, Parts, check_prompts, chosen_tasks, gather_all, parts
from retroformer.config import Arm, Experiment, Loop
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.progress import Tally, tally
from retroformer.protocols import Agent
from retroformer.records import Key, Memory, Task, Usage
from retroformer.reflectors.baseline import NoReflector
from retroformer.store import Store, open_store


async def compare_arms(page: Page) -> str:
    """Do what is missing, write the report, and name it; with each of several actors, and all of them in one table.

    Raises:
        RetroformerError: a model is not the one that was asked for, tasks overlap with training, or some are not
            finished (there is a report then, unless none is).
    """
    page = _held_out(page)
    experiment = page.experiment
    if not experiment.eval.actors:
        written, _ = await _with_one_actor(page)
        return f"report: {written}"
    played = {}
    for actor in experiment.eval.actors:
        _, played[actor] = await _with_one_actor(replace(page, experiment=with_actor(experiment, actor)), actor)
    return f"report: {write_table(experiment, played)}"


async def _with_one_actor(page: Page, actor: str = "") -> tuple[Path, Sequence[ArmOutcome]]:
    """Play everything with one actor; its report, and what is in it."""
    experiment = page.experiment
    tasks = chosen_tasks(experiment, experiment.eval.tasks, _splits(experiment))
    check_prompts(experiment)
    check_arms(experiment)
    store = open_store(experiment)
    try:
        _refuse_overlap(store, tasks)
        asked = models(experiment.eval.arms)
        async with parts(page, asks_reflector=bool(asked)) as made:
            verify_actor(experiment, made)
            verified = await verify_models(experiment, made, store, asked)
            stage = _Stage(
                experiment,
                made,
                store,
                tasks,
                asyncio.Semaphore(experiment.loop.concurrency),
                _budget(experiment, store),
                actor,
            )
            await _play(stage)
            return _reported(stage, verified)
    finally:
        store.close()


@dataclass(frozen=True)
class _Stage:
    """What every arm plays with, and on."""

    experiment: Experiment
    made: Parts
    store: Store
    tasks: tuple[Task, ...]
    slots: asyncio.Semaphore
    """Shared by the arms: so many units are in flight in all."""
    budget: Budget
    """Of all that was ever played for this report."""
    actor: str = ""
    """Its name where the page compares several."""

    def experience(self, arm: str, agent: Agent, loop: Loop, told: Callable[[str], None]) -> Experience:
        """Of the arm with this name in the store."""
        return Experience(
            self.store,
            arm,
            self.made.pool,
            agent,
            loop,
            self.experiment.seed,
            self.budget,
            slots=self.slots,
            first_trial_arm=first_trial(self.actor),
            told=told,
        )


async def _play(stage: _Stage) -> None:
    """Trial 0 once; then the arms side by side; then those that deal out what another arm wrote."""
    arms = stage.experiment.eval.arms
    placebos = {name: arm for name, arm in arms.items() if arm.kind == "placebo"}
    await _play_first_trial(stage)
    played = await _retry(stage, {name: arm for name, arm in arms.items() if name not in placebos})
    for arm in placebos.values():
        for source in spread(arm.of, arms[arm.of]):
            _refuse_half_a_source(stage, source, played[source])
    await _retry(stage, placebos)


async def _play_first_trial(stage: _Stage) -> None:
    shared = first_trial(stage.actor)
    stage.store.bind(shared, conditions_of(stage.experiment, stage.made, Arm(kind="none")))
    with tally("trial 0", len(stage.tasks)) as counts:
        experience = stage.experience(shared, stage.made.agent(NoReflector()), stage.experiment.loop, counts.told)

        async def opened(task: Task) -> None:
            await experience.trajectory(task, Memory(), Key(arm=shared, task_id=task.id))
            counts.advance()

        await gather_all([asyncio.create_task(opened(task)) for task in stage.tasks])


async def _retry(stage: _Stage, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms side by side; the experience of each, by its name in the store."""
    singles = {stored: one for name, arm in arms.items() for stored, one in spread(name, arm).items()}
    if not singles:
        return {}
    with tally(", ".join(arms), len(singles) * len(stage.tasks)) as counts:
        played = {stored: _bound(stage, stored, arm, counts) for stored, arm in singles.items()}
        pairs = [(experience, task) for experience in played.values() for task in stage.tasks]
        await gather_all([asyncio.create_task(_improve(experience, task, counts)) for experience, task in pairs])
    return played


def _bound(stage: _Stage, stored: str, arm: Arm, counts: Tally) -> Experience:
    experiment, made = stage.experiment, stage.made
    stage.store.bind(stored, conditions_of(experiment, made, arm))
    agent = made.agent(reflector_of(experiment, made, stage.store, arm), actor_of(experiment, made, arm))
    return stage.experience(stored, agent, at_arm(experiment, arm).loop, counts.told)


async def _improve(experience: Experience, task: Task, counts: Tally) -> None:
    await experience.improve(task, candidates=1)
    counts.advance()


def _budget(experiment: Experiment, store: Store) -> Budget:
    spent = (store.usage(arm) for arm in store.arms() if not is_for_training(arm))
    return Budget(experiment.eval, sum(spent, Usage()), "eval")


def _splits(experiment: Experiment) -> tuple[str, ...]:
    split = experiment.eval.split or experiment.environment.split
    return (split,) if isinstance(split, str) else split


def _held_out(page: Page) -> Page:
    """The page with the (first) held-out split in place of the training split; a game of another can be played, too."""
    experiment = page.experiment
    environment = experiment.environment.model_copy(update={"split": _splits(experiment)[0]})
    return Page(page.path, page.overrides, experiment.model_copy(update={"environment": environment}))


def _refuse_half_a_source(stage: _Stage, source: str, experience: Experience) -> None:
    """What a placebo deals out is drawn from all that its source wrote; drawn too early, it would differ."""
    if left := experience.unfinished & {key.task_id for key in stage.store.trajectories(first_trial(stage.actor))}:
        # Trial 0 is every arm's, and has its causes for itself.
        causes = stage.store.invalid_causes(source) or stage.store.invalid_causes(first_trial(stage.actor))
        raise InfrastructureFailure(
            f"Arm {source.removeprefix('eval/')!r} left {len(left)} tasks unfinished, so its advice cannot be dealt "
            f"out yet: run the same command again to go on. The last cause: {causes[-1]}"
        )


def _refuse_overlap(store: Store, tasks: tuple[Task, ...]) -> None:
    arms = [arm for arm in store.arms() if is_for_training(arm)]
    trained_on = {one.key.task_id for arm in arms for one in store.reflections(arm)}
    if shared := sorted(trained_on & {task.id for task in tasks}):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used for training, such as {shared[0]!r}: "
            "name another split with eval.split=NAME."
        )


def _reported(stage: _Stage, verified: Sequence[Verified]) -> tuple[Path, Sequence[ArmOutcome]]:
    """Write the report.

    Raises:
        MissingInput: no task was finished by every arm.
        InfrastructureFailure: some were left unfinished; the report on the others is written.
    """
    experiment, store, tasks = stage.experiment, stage.store, stage.tasks
    arms = {name: list(spread(name, arm)) for name, arm in experiment.eval.arms.items()}
    shared = first_trial(stage.actor)
    outcomes = arm_outcomes(store, tasks, arms, experiment.loop.trials, shared)
    if not outcomes or not outcomes[0].solved_NT.size:
        causes = store.invalid_causes(shared) or ["no task was finished by every arm"]
        raise MissingInput(f"No task was finished by every arm, so nothing can be compared: {causes[-1]}")
    written = write_report(Findings(experiment, tasks, outcomes, verified, store, stage.made.actor_sha256, stage.actor))
    if unfinished := max(one.incomplete for one in outcomes):
        raise InfrastructureFailure(
            f"report: {written}\n{unfinished} of {len(tasks)} tasks are left unfinished in an arm and are not in it: "
            "run the same command again to go on."
        )
    return written, outcomes
