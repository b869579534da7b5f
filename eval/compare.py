"""Plays the arms: the same tasks, the same seeds, trial 0 shared, one way to retry each."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from eval.actors import with_actor, write_table
from eval.arms import actor_of, at_arm, check_arms, conditions_of, held_out_splits, models, reflector_of, spread
from eval.findings import Findings
from eval.outcome import ArmOutcome, arm_outcomes
from eval.report import write_report
from eval.verify import Verified, verify_actor, verify_models
from retroformer.arms import first_trial, is_for_training
from retroformer.assembly import Page, Parts, check_prompts, chosen_tasks, parts
from retroformer.config import Arm, Experiment, Loop
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.ledger import Ledger
from retroformer.progress import tally
from retroformer.protocols import Agent
from retroformer.records import Task, Usage
from retroformer.reflectors.baseline import NoReflector
from retroformer.schedule import Work, work_through
from retroformer.store import Store, open_store


async def compare_arms(page: Page) -> str:
    """Do what is missing, write the report, and name it; with each of several actors, and all of them in one table.

    Raises:
        RetroformerError: a model is not the one that was asked for, tasks overlap with training, or some are not
            finished (there is a report then, unless none is).
    """
    page = _held_out(page)
    experiment = page.experiment
    pages = {actor: replace(page, experiment=with_actor(experiment, actor)) for actor in experiment.eval.actors}
    played = await _with_actors(pages or {"": page})
    if experiment.eval.actors:
        path = write_table(experiment, {actor: report.outcomes for actor, report in played.items()})
    else:
        path = played[""].path
    if unfinished := [report.unfinished for report in played.values() if report.unfinished]:
        raise InfrastructureFailure("\n".join((f"report: {path}", *unfinished)))
    return f"report: {path}"


async def _with_actors(pages: Mapping[str, Page]) -> dict[str, "_Report"]:
    """Play everything with one actor after another; their reports, and what is in them.

    Whatever can be refused is refused before the first of them plays.
    """
    experiment = next(iter(pages.values())).experiment
    tasks = chosen_tasks(experiment, experiment.eval.tasks, held_out_splits(experiment))
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        _refuse_overlap(store, tasks)
        for page in pages.values():
            check_prompts(page.experiment)
            check_arms(page.experiment)
        for actor, page in pages.items() if len(pages) > 1 else ():
            async with _opened(page, ledger, tasks, actor) as stage:
                verify_actor(stage.experiment, stage.made)  # Opening a stage has checked its conditions.
        played = {}
        for actor, page in pages.items():
            async with _opened(page, ledger, tasks, actor) as stage:
                verify_actor(stage.experiment, stage.made)
                asked = models(stage.experiment.eval.arms)
                verified = await verify_models(stage.experiment, stage.made, store, asked)
                await _play(stage)
                played[actor] = _reported(stage, verified)
        return played


@asynccontextmanager
async def _opened(page: Page, ledger: Ledger, tasks: tuple[Task, ...], actor: str) -> AsyncIterator["_Stage"]:
    """Start what an evaluation needs. Raises ConfigError where an arm holds facts of other conditions."""
    experiment, store = page.experiment, ledger.store
    async with parts(page, asks_reflector=bool(models(experiment.eval.arms))) as made:
        slots = asyncio.Semaphore(experiment.loop.concurrency)
        budget = Budget(experiment.eval, lambda: _spent(store), "eval")
        stage = _Stage(experiment, made, ledger, tasks, slots, budget, actor)
        _declare(stage)
        yield stage


@dataclass(frozen=True)
class _Stage:
    """What every arm plays with, and on."""

    experiment: Experiment
    made: Parts
    ledger: Ledger
    tasks: tuple[Task, ...]
    slots: asyncio.Semaphore
    """Shared by the arms: so many units are in flight in all."""
    budget: Budget
    """Of all that was ever played for this report."""
    actor: str = ""
    """Its name where the page compares several."""

    @property
    def store(self) -> Store:
        return self.ledger.store

    def experience(self, arm: str, agent: Agent, loop: Loop) -> Experience:
        """Of the arm with this name in the store."""
        return Experience(
            self.ledger,
            arm,
            self.made.pool,
            agent,
            loop,
            self.experiment.seed,
            self.budget,
            slots=self.slots,
            first_trial_arm=first_trial(self.actor),
        )

    async def play(self, title: str, experiences: Sequence[Experience]) -> None:
        """Play all tasks with each of these."""
        with tally(title, len(experiences) * len(self.tasks)) as counts:
            for experience in experiences:
                experience.told = counts.told
            works = [Work(experience, self.tasks, 1) for experience in experiences]
            await work_through(self.ledger, works, self.experiment.loop.concurrency, counts.done)


def _declare(stage: _Stage) -> None:
    """Refuse facts of other conditions in any arm, before one of them plays. Raises ConfigError."""
    experiment, made, store = stage.experiment, stage.made, stage.store
    store.declare(first_trial(stage.actor), conditions_of(experiment, made, store, Arm(kind="none")))
    for name, arm in experiment.eval.arms.items():
        for stored, single in spread(name, arm).items():
            store.declare(stored, conditions_of(experiment, made, store, single))


async def _play(stage: _Stage) -> None:
    """Trial 0 once; then the arms side by side; then those that deal out what another arm wrote."""
    arms = stage.experiment.eval.arms
    placebos = {name: arm for name, arm in arms.items() if arm.kind == "placebo"}
    loop = stage.experiment.loop.model_copy(update={"trials": 1})
    first = stage.experience(first_trial(stage.actor), stage.made.agent(NoReflector()), loop)
    await stage.play("trial 0", [first])
    played = await _retry(stage, {name: arm for name, arm in arms.items() if name not in placebos})
    for arm in placebos.values():
        for source in spread(arm.of, arms[arm.of]):
            _refuse_half_a_source(stage, source, played[source])
    await _retry(stage, placebos)


async def _retry(stage: _Stage, arms: Mapping[str, Arm]) -> dict[str, Experience]:
    """Play the later trials of these arms side by side; the experience of each, by its name in the store."""
    singles = {stored: one for name, arm in arms.items() for stored, one in spread(name, arm).items()}
    played = {stored: _of_arm(stage, stored, arm) for stored, arm in singles.items()}
    if played:
        await stage.play(", ".join(arms), list(played.values()))
    return played


def _of_arm(stage: _Stage, stored: str, arm: Arm) -> Experience:
    experiment, made = stage.experiment, stage.made
    agent = made.agent(reflector_of(experiment, made, stage.store, arm), actor_of(experiment, made, arm))
    return stage.experience(stored, agent, at_arm(experiment, arm).loop)


def _spent(store: Store) -> Usage:
    """By all arms that are played for a report."""
    return sum((usage for arm, usage in store.accounts().items() if not is_for_training(arm)), Usage())


def _held_out(page: Page) -> Page:
    """The page with the (first) held-out split in place of the training split; a game of another can be played, too."""
    experiment = page.experiment
    environment = experiment.environment.model_copy(update={"split": held_out_splits(experiment)[0]})
    return Page(page.path, page.overrides, experiment.model_copy(update={"environment": environment}))


def _refuse_half_a_source(stage: _Stage, source: str, experience: Experience) -> None:
    """What a placebo deals out is drawn from all that its source wrote; drawn too early, it would differ."""
    if left := experience.unfinished & stage.store.played_tasks(first_trial(stage.actor)):
        # Trial 0 is every arm's, and has its causes for itself.
        cause = stage.store.last_cause(source) or stage.store.last_cause(first_trial(stage.actor))
        raise InfrastructureFailure(
            f"Arm {source.removeprefix('eval/')!r} left {len(left)} tasks unfinished, so its advice cannot be dealt "
            f"out yet: run the same command again to go on. The last cause: {cause}"
        )


def _refuse_overlap(store: Store, tasks: tuple[Task, ...]) -> None:
    chosen = {task.id for task in tasks}
    trained_on = (store.reflected_tasks(arm) for arm in store.arms() if is_for_training(arm))
    if shared := sorted(chosen.intersection(chain.from_iterable(trained_on))):
        raise ConfigError(
            f"{len(shared)} of {len(tasks)} evaluation tasks were used for training, such as {shared[0]!r}: "
            "name another split with eval.split=NAME."
        )


class _Report(NamedTuple):
    """What was written about one actor."""

    path: Path
    outcomes: Sequence[ArmOutcome]
    unfinished: str
    """Says how many tasks the infrastructure left for the next run; empty where it left none."""


def _reported(stage: _Stage, verified: Sequence[Verified]) -> _Report:
    """Write the report.

    Raises:
        MissingInput: not one attempt could be made.
    """
    experiment, store, tasks = stage.experiment, stage.store, stage.tasks
    arms = {name: list(spread(name, arm)) for name, arm in experiment.eval.arms.items()}
    shared = first_trial(stage.actor)
    if store.played_tasks(shared).isdisjoint(task.id for task in tasks):
        cause = store.last_cause(shared) or "no arm is named"
        raise MissingInput(f"No task could be played, so nothing can be compared: {cause}")
    outcomes = arm_outcomes(store, tasks, arms, experiment.loop.trials, shared)
    path = write_report(Findings(experiment, tasks, outcomes, verified, store, stage.made.actor_sha256, stage.actor))
    left = max(arm.incomplete for arm in outcomes)
    unfinished = (
        f"{left} of {len(tasks)} tasks are left unfinished in an arm; the report shows rates without them, and with "
        "them counted as failures: run the same command again to go on."
    )
    return _Report(path, outcomes, unfinished if left else "")
