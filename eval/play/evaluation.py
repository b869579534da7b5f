"""An evaluation: the components, tasks and budget that all arms share, and how its tasks are played."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial

from retroformer.arm_names import first_trial, first_trial_with, is_for_training, is_of_gate, own_first_trial
from retroformer.backends import LOCAL, Chunk, Play, Played, play_chunk, play_elsewhere
from retroformer.experience import Budget, Experience
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, Parts, chosen_tasks, parts
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.storage import open_store
from retroformer.ledger import Ledger
from retroformer.progress import tally
from retroformer.protocols import Reflector
from retroformer.records import Task, Usage
from retroformer.schedule import Work, work_through
from retroformer.store import Store

from .arms import (
    agent_of,
    conditions_of,
    held_out_splits,
    plan_of,
    reflector_models,
    reflector_of,
    single_model_arms,
    with_arm_settings,
)
from .repetitions import repeat_name, with_repeat

_SEEDS_OF_A_REPEAT = 1_000_003
"""Distance of the seeds of two repeats, so that the seeds of two runs with neighbouring seeds stay apart."""


@dataclass(frozen=True)
class Evaluation:
    """Components, tasks and budget that all arms of one actor, or of one repeat, share."""

    config: LoadedConfig
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
    trials: int | None = None
    """Number of trials to play now; None: loop.trials."""

    def repeated(self, number: int) -> "Evaluation":
        """Return the evaluation for one of its repeats."""
        config = replace(self.config, experiment=with_repeat(self.experiment, number))
        return replace(self, config=config, name=repeat_name(number), repeat=number)

    @property
    def experiment(self) -> Experiment:
        return self.config.experiment

    @property
    def store(self) -> Store:
        return self.ledger.store

    def first_trial_of(self, stored: str, arm: Arm) -> str:
        """Return the name in the store of an arm's trial 0.

        Arms share a trial 0 exactly if it is played under the same conditions: the same prompts, and no advice.
        """
        if arm.first:
            return own_first_trial(stored)
        return first_trial(self.name) if arm.prompts is None else first_trial_with(arm.prompts, self.name)

    @cached_property
    def first_trials(self) -> dict[str, str]:
        """Name in the store of the trial 0 of each arm with one model, by the arm's name there."""
        return {stored: self.first_trial_of(stored, arm) for stored, arm in self.arms.items()}

    @cached_property
    def shared_first_trials(self) -> dict[str, Arm]:
        """Each trial 0 that is played before the arms that share it, by its name in the store: an arm without advice.

        An arm that advises before the first attempt plays its own.
        """
        arms = {stored: arm for stored, arm in self.arms.items() if not arm.first}
        return {self.first_trials[stored]: Arm(kind="none", prompts=arm.prompts) for stored, arm in arms.items()}

    @cached_property
    def arms(self) -> dict[str, Arm]:
        """Arms with one model each, by their names in the store."""
        singles = (single_model_arms(name, arm) for name, arm in self.experiment.eval.arms.items())
        return {stored: arm for arms in singles for stored, arm in arms.items()}

    def experience_of(self, stored: str, arm: Arm, reflector: Reflector | None = None) -> Experience:
        """Return the experience of an arm with one model.

        Args:
            stored: its name in the store.
            arm: its settings.
            reflector: what advises in place of the arm's own reflector; None: nothing does.
        """
        experiment, components = self.experiment, self.components
        advises = reflector or reflector_of(experiment, components, self.store, arm)
        loop, is_first_trial = with_arm_settings(experiment, arm).loop, stored in self.shared_first_trials
        trials = 1 if is_first_trial else self.trials or loop.trials
        return Experience(
            self.ledger,
            stored,
            components.pool,
            agent_of(experiment, components, arm, advises),
            loop.model_copy(update={"trials": trials}),
            self.experiment.seed + _SEEDS_OF_A_REPEAT * self.repeat,
            self.budget,
            slots=self.slots,
            first_trial_arm=stored if is_first_trial else self.first_trials[stored],
            advises_first=arm.first,
        )

    def experience(self, stored: str) -> Experience:
        """Return the experience with this name in the store."""
        return self.experience_of(stored, (self.shared_first_trials | self.arms)[stored])

    async def play(self, title: str, experiences: Sequence[Experience]) -> None:
        """Play all tasks with each of these experiences, here or with the workers of a backend."""
        with tally(title, len(experiences) * len(self.tasks)) as counts:
            if (backend := self.experiment.eval.backend) != LOCAL:
                ids = [task.id for task in self.tasks]
                opener = partial(open_player, name=self.name, repeat=self.repeat, trials=self.trials)
                by_arm = {experience.arm: ids for experience in experiences}
                left = await play_elsewhere(backend, opener, self.config, by_arm, counts)
                for experience in experiences:
                    experience.unfinished |= left[experience.arm]
                return
            for experience in experiences:
                experience.on_event = counts.count
            works = [Work(experience, self.tasks, 1) for experience in experiences]
            await work_through(self.ledger, works, self.experiment.loop.concurrency, counts.done)


@asynccontextmanager
async def open_evaluations(
    config: LoadedConfig, ledger: Ledger, tasks: tuple[Task, ...], actor: str
) -> AsyncIterator[list[Evaluation]]:
    """Start the components of an evaluation, and return one for each repeat.

    Raises:
        ConfigError: an arm holds facts of other conditions.
    """
    async with _started(config, ledger, tasks, actor) as whole:
        repeats = range(1, config.experiment.eval.repeats + 1)
        evaluations = [whole.repeated(number) for number in repeats] if len(repeats) > 1 else [whole]
        for evaluation in evaluations:
            _declare(evaluation)
        yield evaluations


@asynccontextmanager
async def open_player(config: LoadedConfig, name: str, repeat: int, trials: int | None = None) -> AsyncIterator[Play]:
    """Start what a worker needs, and yield what plays chunks of an arm's tasks, up to `trials` trials.

    Raises:
        RetroformerError: the store, an endpoint or the environment is not available, or an arm holds facts of other
            conditions.
    """
    experiment = config.experiment
    tasks = chosen_tasks(experiment, experiment.eval.tasks, held_out_splits(experiment))
    by_id, experiences = {task.id: task for task in tasks}, dict[str, Experience]()
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with _started(config, ledger, tasks, name, repeat, environment_processes=1) as evaluation:
            _declare(evaluation)
            evaluation = replace(evaluation, trials=trials)

            async def play(chunk: Chunk) -> Played:
                # A placebo reads what its source has written, so an arm is made when its first chunk comes.
                if chunk.arm not in experiences:
                    experiences[chunk.arm] = evaluation.experience(chunk.arm)
                chosen = [by_id[task_id] for task_id in chunk.task_ids]
                work = Work(experiences[chunk.arm], chosen, 1)
                return await play_chunk(ledger, work, experiment.loop.concurrency)

            yield play


@asynccontextmanager
async def _started(
    config: LoadedConfig,
    ledger: Ledger,
    tasks: tuple[Task, ...],
    name: str,
    repeat: int = 0,
    environment_processes: int | None = None,
) -> AsyncIterator[Evaluation]:
    experiment = config.experiment
    asks_reflector = bool(reflector_models(experiment.eval.arms))
    async with parts(config, asks_reflector=asks_reflector, environment_processes=environment_processes) as components:
        slots = asyncio.Semaphore(experiment.loop.concurrency)
        budget = Budget(experiment.eval, lambda: _spent(ledger.store), "eval")
        yield Evaluation(config, components, ledger, tasks, slots, budget, name, repeat)


def _declare(evaluation: Evaluation) -> None:
    """Raise ConfigError if any arm holds facts of other conditions, before an arm plays."""
    experiment, components, store = evaluation.experiment, evaluation.components, evaluation.store
    repeat = {"repeat": evaluation.repeat} if evaluation.repeat else {}
    plan = plan_of(experiment, evaluation.tasks)
    firsts = {first: evaluation.arms[stored] for stored, first in evaluation.first_trials.items()}
    for first, arm in (firsts | evaluation.shared_first_trials).items():
        store.declare(first, conditions_of(experiment, components, store, arm) | repeat | plan)
    for stored, arm in evaluation.arms.items():
        named = {"first_trial": evaluation.first_trials[stored]}
        store.declare(stored, conditions_of(experiment, components, store, arm) | repeat | named)


def _spent(store: Store) -> Usage:
    """Return the usage of all arms that are played for a report."""
    return sum(
        (usage for arm, usage in store.accounts().items() if not (is_for_training(arm) or is_of_gate(arm))), Usage()
    )
