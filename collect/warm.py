"""Advice written by rule on failures of train games: the declared warm start of reflectors too small to begin alone."""

import asyncio

from retroformer.arms import WRITTEN
from retroformer.assembly import Page, chosen_tasks, conditions, gather_all, parts
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.progress import tally
from retroformer.prompts import reflection_renderer
from retroformer.records import Key, Memory, Outcome, Task
from retroformer.reflectors.rule import MixedReflector
from retroformer.store import open_store


async def write_advice(page: Page) -> str:
    """Play tasks beyond those of `collect` and write `collect.written` pieces of advice about the failures.

    The advice is good, useless and empty by a declared mixture: it teaches the form. What pays is for the ratings to
    teach. It is not rated, and kept in an arm of its own.

    Raises:
        ConfigError: the page asks for none.
        MissingInput: the tasks ran out.
    """
    experiment = page.experiment
    wanted = experiment.collect.written
    if not wanted:
        raise ConfigError("This page asks for no written advice: set collect.written to the number of pieces.")
    rated = (experiment.collect.tasks or 0) + experiment.collect.skip
    tasks = chosen_tasks(experiment, None, rated)
    store = open_store(experiment)
    try:
        async with parts(page, asks_reflector=False) as made:
            store.bind(WRITTEN, conditions(experiment, None))
            with tally("written advice", wanted, len(store.reflections(WRITTEN))) as counts:

                def told(what: str) -> None:
                    counts.told(what)
                    if what == "reflections":
                        counts.advance()

                experience = Experience(
                    store,
                    WRITTEN,
                    made.pool,
                    made.actor,
                    MixedReflector(reflection_renderer(experiment)),
                    experiment.loop,
                    experiment.seed,
                    Budget(experiment.collect, store.usage(WRITTEN)),
                    slots=asyncio.Semaphore(experiment.loop.concurrency),
                    told=told,
                )
                waves = experiment.loop.concurrency
                for start in range(0, len(tasks), waves):
                    if len(store.reflections(WRITTEN)) >= wanted:
                        break
                    wave = tasks[start : start + waves]
                    pieces = experiment.collect.candidates
                    await gather_all([asyncio.create_task(_advise(experience, task, pieces)) for task in wave])
        written = len(store.reflections(WRITTEN))
        if written < wanted:
            causes = store.invalid_causes(WRITTEN)
            last = f" The last of {len(causes)} invalid attempts: {causes[-1]}" if causes else ""
            fault = f"The split ran out of tasks: {written} of {wanted} pieces"
            raise MissingInput(f"{fault}; lower collect.written or collect.tasks.{last}")
        return f"written advice: {written} pieces in {store.url}"
    finally:
        store.close()


async def _advise(experience: Experience, task: Task, pieces: int) -> None:
    failure = await experience.trajectory(task, Memory(), Key(arm=WRITTEN, task_id=task.id))
    if failure.outcome is not Outcome.FAILURE:
        return
    for candidate in range(pieces):
        key = Key(arm=WRITTEN, task_id=task.id, trial=1, candidate=candidate)
        try:
            await experience.reflection(failure, Memory(), key, 0)
        except InfrastructureFailure:
            return
