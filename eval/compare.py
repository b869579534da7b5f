"""Plays the arms: the same tasks, the same seeds, trial 0 shared, one way to retry each."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.outcome import arm_outcomes
from eval.report import Findings, write_report
from eval.verify import Verified, verify_models
from retroformer.arms import FIRST_TRIAL, evaluation, is_for_training
from retroformer.assembly import Page, Parts, check_prompts, chosen_tasks, conditions, gather_all, parts
from retroformer.config import Arm, Collect, Experiment
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.progress import Tally, tally
from retroformer.prompts import reflection_renderer
from retroformer.protocols import Reflector
from retroformer.records import Key, Memory, Task, Usage
from retroformer.reflectors.baseline import NoReflector, PlaceboReflector
from retroformer.reflectors.rule import RuleReflector
from retroformer.store import Store, open_store


async def compare_arms(page: Page) -> str:
    """Do what is missing, write the report, and name it.

    Raises:
        RetroformerError: a model is not the one that was asked for, tasks overlap with training, or some are not
            finished (there is a report then, unless none is).
    """
    page = _held_out(page)
    experiment = page.experiment
    tasks = chosen_tasks(experiment, experiment.eval.tasks)
    check_prompts(experiment)
    _check_arms(experiment.eval.arms)
    store = open_store(experiment)
    try:
        _refuse_overlap(store, tasks)
        models = sorted({arm.model for arm in experiment.eval.arms.values() if arm.kind == "model"})
        async with parts(page, asks_reflector=bool(models)) as made:
            verified = await verify_models(experiment, made, store, models)
            await _play(experiment, made, store, tasks)
        return _report(experiment, store, tasks, verified)
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

    def experience(self, arm: str, reflector: Reflector, told: Callable[[str], None]) -> Experience:
        """Of the arm with this name in the store."""
        return Experience(
            self.store,
            arm,
            self.made.pool,
            self.made.actor,
            reflector,
            self.experiment.loop,
            self.experiment.seed,
            Budget(Collect(), Usage()),
            slots=self.slots,
            first_trial_arm=FIRST_TRIAL,
            told=told,
        )


async def _play(experiment: Experiment, made: Parts, store: Store, tasks: tuple[Task, ...]) -> None:
    """Trial 0 once; then the arms side by side; then those that deal out what another arm wrote."""
    stage = _Stage(experiment, made, store, tasks, asyncio.Semaphore(experiment.loop.concurrency))
    arms = experiment.eval.arms
    placebos = {name: arm for name, arm in arms.items() if arm.kind == "placebo"}
    await _play_first_trial(stage)
    played = await _retry(stage, {name: arm for name, arm in arms.items() if name not in placebos})
    for arm in placebos.values():
        _refuse_half_a_source(store, arm.of, played[arm.of])
    await _retry(stage, placebos)


async def _play_first_trial(stage: _Stage) -> None:
    stage.store.bind(FIRST_TRIAL, _conditions(stage.experiment, stage.made, Arm(kind="none")))
    with tally("trial 0", len(stage.tasks)) as counts:
        experience = stage.experience(FIRST_TRIAL, NoReflector(), counts.told)
        await gather_all([asyncio.create_task(_open_task(experience, task, counts)) for task in stage.tasks])


async def _retry(stage: _Stage, arms: dict[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms side by side; the experience of each, by its name on the page."""
    if not arms:
        return {}
    with tally(", ".join(arms), len(arms) * len(stage.tasks)) as counts:
        played = {name: _bound(stage, name, arm, counts) for name, arm in arms.items()}
        pairs = [(experience, task) for experience in played.values() for task in stage.tasks]
        await gather_all([asyncio.create_task(_improve(experience, task, counts)) for experience, task in pairs])
    return played


def _bound(stage: _Stage, name: str, arm: Arm, counts: Tally) -> Experience:
    stage.store.bind(evaluation(name), _conditions(stage.experiment, stage.made, arm))
    reflector = _reflector(stage.experiment, stage.made, stage.store, arm)
    return stage.experience(evaluation(name), reflector, counts.told)


async def _open_task(experience: Experience, task: Task, counts: Tally) -> None:
    await experience.trajectory(task, Memory(), Key(arm=FIRST_TRIAL, task_id=task.id))
    counts.advance()


async def _improve(experience: Experience, task: Task, counts: Tally) -> None:
    await experience.improve(task, candidates=1)
    counts.advance()


def _reflector(experiment: Experiment, made: Parts, store: Store, arm: Arm) -> Reflector:
    match arm.kind:
        case "none":
            return NoReflector()
        case "rule":
            return RuleReflector(reflection_renderer(experiment))
        case "model":
            return made.reflector(arm.model, experiment.eval.temperature)
        case "placebo":
            return PlaceboReflector(arm.of, store.reflections(evaluation(arm.of)))


def _conditions(experiment: Experiment, made: Parts, arm: Arm) -> dict[str, Any]:
    adapter = made.adapter_sha256.get(arm.model) if arm.kind == "model" else None
    known = conditions(experiment, adapter)
    known["reflector"] |= {"temperature": experiment.eval.temperature, "endpoint": {}}
    return known | {"arm": arm.model_dump()}


def _held_out(page: Page) -> Page:
    """The page with the held-out split in place of the training split."""
    experiment = page.experiment
    split = experiment.eval.split or experiment.environment.split
    environment = experiment.environment.model_copy(update={"split": split})
    return Page(page.path, page.overrides, experiment.model_copy(update={"environment": environment}))


def _check_arms(arms: dict[str, Arm]) -> None:
    for name, arm in arms.items():
        if arm.kind == "placebo" and (arm.of not in arms or arms[arm.of].kind == "placebo"):
            raise ConfigError(f"eval.arms.{name}.of: {arm.of!r} is no arm that writes; name one of {', '.join(arms)}.")


def _refuse_half_a_source(store: Store, source: str, experience: Experience) -> None:
    """What a placebo deals out is drawn from all that its source wrote; drawn too early, it would differ."""
    if left := experience.unfinished & {key.task_id for key in store.trajectories(FIRST_TRIAL)}:
        raise InfrastructureFailure(
            f"Arm {source!r} left {len(left)} tasks unfinished, so its advice cannot be dealt out yet: run the same "
            f"command again to go on. The last cause: {store.invalid_causes(evaluation(source))[-1]}"
        )


def _refuse_overlap(store: Store, tasks: tuple[Task, ...]) -> None:
    arms = [arm for arm in store.arms() if is_for_training(arm)]
    trained_on = {one.key.task_id for arm in arms for one in store.reflections(arm)}
    if shared := sorted(trained_on & {task.id for task in tasks}):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used for training, such as {shared[0]!r}: "
            "name another split with eval.split=NAME."
        )


def _report(experiment: Experiment, store: Store, tasks: tuple[Task, ...], verified: list[Verified]) -> str:
    outcomes = arm_outcomes(store, tasks, list(experiment.eval.arms), experiment.loop.trials)
    if not outcomes or not outcomes[0].solved_NT.size:
        causes = store.invalid_causes(FIRST_TRIAL) or ["no task was finished by every arm"]
        raise MissingInput(f"No task was finished by every arm, so nothing can be compared: {causes[-1]}")
    findings = Findings(experiment, tasks, outcomes, verified, store)
    written: Path = write_report(findings)
    if unfinished := max(one.incomplete for one in outcomes):
        raise InfrastructureFailure(
            f"report: {written}\n{unfinished} of {len(tasks)} tasks are left unfinished in an arm and are not in it: "
            "run the same command again to go on."
        )
    return f"report: {written}"
