"""An evaluation: the components, tasks and budget that all arms share, and how its tasks are played."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

from retroformer.agents.arms.arm import Arm, ArmParts
from retroformer.agents.arms.baselines import NoAdviceArm, PlaceboArm
from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import (
    Parts,
    chosen_tasks,
    held_out_tasks,
    make_actor,
    make_evaluator,
    parts,
    reflection_renderer,
)
from retroformer.environments.registry import taskset
from retroformer.files.text import canonical_json, differences, sha256_of
from retroformer.method.protocols import Agent, Reflector
from retroformer.method.records import Task
from retroformer.run.arm_names import first_trial, is_for_training, is_gate_arm, own_first_trial, version_of
from retroformer.run.attempts import Budget, Experience
from retroformer.run.backends import LOCAL, Play, play_elsewhere, player
from retroformer.run.ledger import Ledger
from retroformer.run.progress import tally
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import Store, open_store

from .preflight import setting_of, training_attempts, with_arm_settings, with_repeat
from .verify import verify_actor

_OF_TRAINING = ("reflector.endpoint.adapter_sha256=", "actor.endpoint.adapter_sha256=", "sources=")
"""Conditions that change when the adapter of an arm, or of the arm that a placebo deals out, is trained again."""
_SEEDS_OF_A_REPEAT = 1_000_003
"""Distance of the seeds of two repeats, so that the seeds of two runs with neighbouring seeds stay apart."""


@dataclass(frozen=True)
class PlayedArm:
    """An arm with one model of each role, as it is played."""

    stored: str
    first_trial: str
    settings: Arm
    experiment: Experiment
    """The config with the settings of the arm's retries."""
    components: Parts
    parts: ArmParts

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
        arm, experiment = self.settings, self.experiment
        writer = arm.writer(experiment.reflector)
        record = conditions(experiment, self.components.proven, splits=experiment.held_out_splits, writer=writer)
        record["reflector"]["temperature"] = arm.temperature(self.parts.setting)
        if writer is None:
            record["reflector"]["endpoint"] = {}
        return record | {"arm": arm.model_dump()} | arm.conditions(self.parts)


@dataclass(frozen=True)
class Evaluation:
    """Components, tasks and budget that all arms of one actor, or of one repeat, share."""

    config: Config
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

    def repeated(self, number: int) -> "Evaluation":
        config = replace(self.config, experiment=with_repeat(self.experiment, number))
        return replace(self, config=config, name=f"repeat {number}", repeat=number)

    @property
    def experiment(self) -> Experiment:
        return self.config.experiment

    @property
    def store(self) -> Store:
        return self.ledger.store

    @cached_property
    def arms(self) -> dict[str, PlayedArm]:
        """Arms with one model of each role, by their names in the store."""
        names = self.stored_names
        return {
            stored: self.played_arm(stored, arm, self._first_trial_of(stored, arm), names)
            for name, pooled_arm in self.experiment.eval.arms.items()
            for stored, arm in zip(names[name], pooled_arm.split().values(), strict=True)
        }

    @cached_property
    def stored_names(self) -> dict[str, list[str]]:
        """Names in the store of each arm: one, or one for each of its training seeds.

        An arm whose adapter was trained again since it was played is played anew under a name of its own, and so is a
        placebo of it; all other facts stay. An arm of a planned comparison keeps its name, so the store refuses
        another adapter: a comparison that is repeated until it is met is not planned.
        """
        arms, names = self.experiment.eval.arms, dict[str, list[str]]()
        planned = {arm for pair in self.experiment.eval.comparisons for arm in (pair.first, pair.second)}
        for name in sorted(arms, key=lambda name: isinstance(arms[name], PlaceboArm)):
            plain = zip(self.experiment.eval.stored_names[name], arms[name].split().values(), strict=True)
            names[name] = [stored if name in planned else self._version(stored, arm, names) for stored, arm in plain]
        return {name: names[name] for name in arms}

    def _version(self, stored: str, arm: Arm, names: Mapping[str, Sequence[str]]) -> str:
        """Return the name of an arm in the store; a hash follows if its adapter alone is not that of its facts."""
        played = self.played_arm(stored, arm, self._first_trial_of(stored, arm), names)
        wanted = json.loads(canonical_json(self.conditions_of(played)))
        changed = list(differences(self.store.conditions(stored) or wanted, wanted))
        is_adapter = all(change.startswith(_OF_TRAINING) for change in changed)
        return version_of(stored, sha256_of(wanted)) if changed and is_adapter else stored

    def conditions_of(self, arm: PlayedArm) -> dict[str, Any]:
        """Return the conditions of an arm's facts in this evaluation."""
        repeat = {"repeat": self.repeat} if self.repeat else {}
        return arm.conditions | repeat | {"first_trial": arm.first_trial}

    @cached_property
    def first_trials(self) -> dict[str, PlayedArm]:
        """Each trial 0 that is played before the arms that share it, by its name in the store: an arm without advice.

        An arm that advises before the first attempt plays its own.
        """
        prompts = {
            arm.first_trial: arm.settings.prompts for arm in self.arms.values() if not arm.settings.advises_first
        }
        return {stored: self.played_arm(stored, NoAdviceArm(prompts=own), stored) for stored, own in prompts.items()}

    def _first_trial_of(self, stored: str, arm: Arm) -> str:
        """Return the name in the store of an arm's trial 0.

        Arms share a trial 0 exactly if it is played under the same conditions: the same prompts, and no advice.
        """
        return own_first_trial(stored) if arm.advises_first else first_trial(self.name, arm.prompts)

    def played_arm(
        self, stored: str, arm: Arm, first_trial: str, names: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> PlayedArm:
        """Return an arm with one model of each role as it is played on these tasks.

        `names` has the names in the store of the arms whose advice it may give.
        """
        experiment = self.experiment
        own = with_arm_settings(experiment, arm)
        parts = ArmParts(
            setting_of(experiment),
            run=experiment.run,
            environment=experiment.environment,
            tasks=self.tasks,
            split_tasks=lambda: chosen_tasks(experiment, None, experiment.held_out_splits),
            taskset=lambda: taskset(experiment.environment, experiment.seed),
            store=self.store,
            leave_out=experiment.train.leave_out,
            render=lambda: reflection_renderer(own),
            reflector=replace(self.components, experiment=own).reflector,
            attempts=lambda runs: training_attempts(experiment, runs),
            stored_names=names,
        )
        return PlayedArm(stored, first_trial, arm, own, self.components, parts)

    def experience(self, stored: str) -> Experience:
        return self.experience_of(self.arms.get(stored) or self.first_trials[stored])

    def experience_of(self, arm: PlayedArm) -> Experience:
        """Return the experience of an arm; of one that is only a trial 0 with that trial alone."""
        loop = arm.experiment.loop
        return Experience(
            self.ledger,
            arm.stored,
            self.components.pool,
            arm.agent,
            loop.model_copy(update={"trials": 1}) if arm.stored == arm.first_trial else loop,
            self.experiment.seed + _SEEDS_OF_A_REPEAT * self.repeat,
            self.budget,
            slots=self.slots,
            first_trial_arm=arm.first_trial,
            advises_first=arm.settings.advises_first,
        )

    async def play(self, title: str, names: Iterable[str]) -> dict[str, Experience]:
        """Play all tasks with the arms of these names in the store, here or with the workers of a backend.

        Returns the experiences by the same names.
        """
        experiences = {stored: self.experience(stored) for stored in names}
        with tally(title, len(experiences) * len(self.tasks)) as counts:
            if (backend := self.experiment.loop.backend) == LOCAL:
                for experience in experiences.values():
                    experience.on_event = counts.count
                works = [Work(experience, self.tasks) for experience in experiences.values()]
                await work_through(self.ledger, works, self.experiment.loop.concurrency, counts.done)
                return experiences
            ids = [task.id for task in self.tasks]
            opener = partial(open_player, name=self.name, repeat=self.repeat)
            unfinished = await play_elsewhere(backend, opener, self.config, dict.fromkeys(experiences, ids), counts)
            for stored, experience in experiences.items():
                experience.unfinished |= unfinished[stored]
        return experiences


@asynccontextmanager
async def open_evaluations(
    config: Config, ledger: Ledger, tasks: tuple[Task, ...], actor: str
) -> AsyncIterator[list[Evaluation]]:
    """Start the components of an evaluation, and return one for each repeat.

    Raises:
        ConfigError: an arm holds facts of other conditions.
        ProvenanceError, MissingInput: an adapter that acts is not the trained one, or there is none.
    """
    async with _start(config, ledger, tasks, actor) as unrepeated:
        repeats = range(1, config.experiment.eval.repeats + 1)
        evaluations = [unrepeated.repeated(number) for number in repeats] if len(repeats) > 1 else [unrepeated]
        for evaluation in evaluations:
            declare(evaluation)
        verify_actor(evaluations[0].experiment, unrepeated.components)
        yield evaluations


@asynccontextmanager
async def open_player(config: Config, name: str, repeat: int) -> AsyncIterator[Play]:
    """Start what a worker needs, and yield what plays chunks of an arm's tasks.

    Raises RetroformerError: the store, an endpoint or the environment is not available, or an arm holds facts of other
    conditions.
    """
    experiment = config.experiment
    tasks = held_out_tasks(experiment)
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with _start(config, ledger, tasks, name, repeat, environment_processes=1) as evaluation:
            declare(evaluation)
            # A placebo reads what its source has written, so an arm is made when its first chunk comes.
            yield player(ledger, tasks, evaluation.experience, experiment.loop.concurrency)


@asynccontextmanager
async def _start(
    config: Config,
    ledger: Ledger,
    tasks: tuple[Task, ...],
    name: str,
    repeat: int = 0,
    environment_processes: int | None = None,
) -> AsyncIterator[Evaluation]:
    experiment = config.experiment
    asks_reflector = bool(experiment.eval.reflector_models)
    async with parts(config, asks_reflector=asks_reflector, environment_processes=environment_processes) as components:
        slots = asyncio.Semaphore(experiment.loop.concurrency)
        played = partial(ledger.store.usage_of_arms, lambda arm: not (is_for_training(arm) or is_gate_arm(arm)))
        budget = Budget(experiment.eval, played, "eval")
        yield Evaluation(config, components, ledger, tasks, slots, budget, name, repeat)


def declare(evaluation: Evaluation) -> None:
    """Store the conditions of all arms before one plays. Raises ConfigError if an arm holds facts of others."""
    store, repeat = evaluation.store, {"repeat": evaluation.repeat} if evaluation.repeat else {}
    plan = plan_of(evaluation.experiment, evaluation.tasks)
    first_trials = {arm.first_trial: arm for arm in evaluation.arms.values()} | evaluation.first_trials
    for stored, arm in first_trials.items():
        store.declare(stored, arm.conditions | repeat | plan)
    for stored, arm in evaluation.arms.items():
        store.declare(stored, evaluation.conditions_of(arm))


def plan_of(experiment: Experiment, tasks: Sequence[Task]) -> dict[str, str]:
    """Return the plan for these tasks as part of the conditions of trial 0, which are stored before anything is played.

    Empty without planned comparisons. The backend and the budget change no result, so the plan leaves them out: an
    evaluation that has spent its budget goes on with a larger one.
    """
    if not experiment.eval.comparisons:
        return {}
    plan = {"run": experiment.run, "seed": experiment.seed, "trials": experiment.loop.trials}
    section = experiment.eval.model_dump(mode="json", exclude={"tokens", "dollars"})
    return {"plan_sha256": sha256_of(plan | {"eval": section, "tasks": [task.id for task in tasks]})}
