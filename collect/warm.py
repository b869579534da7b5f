"""Advice written by rule about failed training tasks: a declared warm start for reflectors too small to do without."""

from contextlib import closing
from dataclasses import replace

from retroformer.agents.actors import scripted_actor
from retroformer.config.conditions import conditions
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import parts, reflection_renderer
from retroformer.config.sections.base import ActorSection, EvaluatorSection
from retroformer.environments.extras import LessonParts
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.method.protocols import Reflector
from retroformer.method.records import Key, Memory, Outcome, Reflection, Task
from retroformer.method.rollout import finish_all
from retroformer.run.arm_names import WRITTEN
from retroformer.run.attempts import Experience
from retroformer.run.ledger import Ledger
from retroformer.run.progress import tally
from retroformer.run.store import open_whole_store

from .tasks import ordered_tasks


async def write_advice(config: Config) -> str:
    """Play tasks after those of `collect` with the rule-based actor; write `collect.written` pieces of advice about
    its failures, of all trials.

    The advice teaches the format; ratings teach what helps. It is not rated and is stored in a separate arm.

    Raises:
        ConfigError: `collect.written` is not set.
        MissingInput: the split ran out of tasks.
    """
    config = _with_scripted_actor(config)
    experiment = config.experiment
    wanted = experiment.collect.written
    if not wanted:
        raise ConfigError("This config requests no written advice: set collect.written to the number of pieces.")
    tasks, wave = ordered_tasks(experiment)[experiment.collect.tasks or 0 :], experiment.loop.concurrency
    with closing(open_whole_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with parts(config, asks_reflector=False) as components:
            store.declare(WRITTEN, conditions(experiment) | {"lesson": experiment.collect.lesson})
            held = set[Key](
                Key(arm=WRITTEN, task_id=advice.task_id, trial=advice.trial, candidate=advice.candidate)
                for advice in store.advice_rows(WRITTEN)
            )
            with tally("written advice", wanted, len(held)) as counts:

                def count(event: str) -> None:
                    counts.count(event)
                    if event == "reflections":
                        counts.done()

                experience = components.experience(ledger, WRITTEN, _writer(experiment), on_event=count)
                # Tasks are taken in waves, until `held`, which grows, has enough pieces.
                for start in range(0, len(tasks), wave):
                    if len(held) < wanted:
                        some = tasks[start : start + wave]
                        await finish_all(_advise(experience, task, experiment, held) for task in some)
        if len(held) < wanted:
            invalid = store.arm_counts()[WRITTEN].invalid
            last = f" The last of {invalid} invalid attempts: {store.last_cause(WRITTEN)}" if invalid else ""
            raise MissingInput(
                f"The split ran out of tasks: {len(held)} of {wanted} pieces; lower collect.written or "
                f"collect.tasks.{last}"
            )
        return f"written advice: {len(held)} pieces in {store.url}"


def _with_scripted_actor(config: Config) -> Config:
    """Return the config with the rule-based actor and true outcomes: a warm start needs no model to fail."""
    experiment = config.experiment
    scripted = {
        "actor": ActorSection(kind=scripted_actor(experiment)),
        "evaluator": EvaluatorSection(),
        "loop": experiment.loop.model_copy(update={"last_attempt": False}),
    }
    return replace(config, experiment=experiment.model_copy(update=scripted))


def _writer(experiment: Experiment) -> Reflector:
    """Build the writer of the advice. Raises ConfigError if the environment has no such lesson."""
    lessons, lesson = extras(experiment.environment).lessons, experiment.collect.lesson
    if lesson not in lessons:
        choices = f"set it to {' or '.join(lessons)}" if lessons else "it has none"
        raise ConfigError(f"collect.lesson={lesson} is not for {experiment.environment.name}: {choices}.")
    return lessons[lesson](
        LessonParts(
            experiment.environment,
            reflection_renderer(experiment),
            reads_history=experiment.reflector.history == "all",
        )
    )


async def _advise(experience: Experience, task: Task, experiment: Experiment, held: set[Key]) -> None:
    """Write advice about every failed attempt of a chain that goes on with the first piece each time."""
    memory, loop = Memory(), experiment.loop
    for trial in range(loop.trials - 1):
        attempt = await experience.trajectory(task, memory, Key(arm=WRITTEN, task_id=task.id, trial=trial))
        if attempt.outcome is not Outcome.FAILURE:
            return
        written = list[Reflection]()
        for candidate in range(experiment.collect.candidates):
            key = Key(arm=WRITTEN, task_id=task.id, trial=trial + 1, candidate=candidate)
            try:
                written.append(await experience.reflection(attempt, memory, key, 0))
            except InfrastructureFailure:
                return
            held.add(key)
        memory = memory.remember(written[0].text, loop.memory, attempt)
