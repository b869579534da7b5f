"""Advice written by rule on failures of train games: the declared warm start of reflectors too small to begin alone."""

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from collect.tasks import ordered_tasks
from retroformer.arms import WRITTEN
from retroformer.assembly import Page, Parts, gather_all, parts
from retroformer.conditions import conditions
from retroformer.config import ActorSection, EvaluatorSection, Experiment
from retroformer.errors import ConfigError, InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.ledger import Ledger
from retroformer.progress import Tally, tally
from retroformer.prompts import Render, reflection_renderer
from retroformer.protocols import Reflector
from retroformer.records import Key, Memory, Outcome, Task
from retroformer.reflectors.rule import MixedReflector
from retroformer.reflectors.useful import UsefulReflector
from retroformer.store import Store, open_store

_LESSONS: dict[str, Callable[[Render], Reflector]] = {"mixed": MixedReflector, "useful": UsefulReflector}


async def write_advice(page: Page) -> str:
    """Let the rule-based actor play tasks beyond those of `collect`, and write `collect.written` pieces of advice
    about its failures.

    The advice teaches the form; what pays is for the ratings to teach. It is not rated, and kept in an arm of its own.

    Raises:
        ConfigError: the page asks for none.
        MissingInput: the tasks ran out.
    """
    page = _scripted(page)
    experiment = page.experiment
    wanted = experiment.collect.written
    if not wanted:
        raise ConfigError("This page asks for no written advice: set collect.written to the number of pieces.")
    rated = (experiment.collect.tasks or 0) + experiment.collect.skip
    tasks = ordered_tasks(experiment)[rated:]
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with parts(page, asks_reflector=False) as made:
            store.declare(WRITTEN, conditions(experiment) | {"lesson": experiment.collect.lesson})
            held = set[Key](
                Key(arm=WRITTEN, task_id=advice.task_id, trial=advice.trial, candidate=advice.candidate)
                for advice in store.advice_rows(WRITTEN)
            )
            with tally("written advice", wanted, len(held)) as counts:
                experience = _experience(experiment, made, ledger, counts)
                await _advise_in_waves(experience, experiment, tasks, held)
        if len(held) < wanted:
            raise MissingInput(_ran_out(store, len(held), wanted))
        return f"written advice: {len(held)} pieces in {store.url}"


def _scripted(page: Page) -> Page:
    """The page with the rule-based actor, told the truth: the failures of a warm start need no model."""
    loop = page.experiment.loop.model_copy(update={"last_attempt": False})
    scripted = {"actor": ActorSection(kind="rule"), "evaluator": EvaluatorSection(), "loop": loop}
    return replace(page, experiment=page.experiment.model_copy(update=scripted))


def _experience(experiment: Experiment, made: Parts, ledger: Ledger, counts: Tally) -> Experience:
    def told(what: str) -> None:
        counts.told(what)
        if what == "reflections":
            counts.advance()

    return Experience(
        ledger,
        WRITTEN,
        made.pool,
        made.agent(_LESSONS[experiment.collect.lesson](reflection_renderer(experiment))),
        experiment.loop,
        experiment.seed,
        Budget(experiment.collect, lambda: ledger.store.usage(WRITTEN)),
        slots=asyncio.Semaphore(experiment.loop.concurrency),
        told=told,
    )


async def _advise_in_waves(
    experience: Experience, experiment: Experiment, tasks: tuple[Task, ...], held: set[Key]
) -> None:
    """Take as many tasks at once as may run, and no more once `held`, which grows, has all that is wanted."""
    wave, pieces = experiment.loop.concurrency, experiment.collect.candidates
    for start in range(0, len(tasks), wave):
        if len(held) >= experiment.collect.written:
            return
        work = [_advise(experience, task, pieces, held) for task in tasks[start : start + wave]]
        await gather_all([asyncio.create_task(one) for one in work])


async def _advise(experience: Experience, task: Task, pieces: int, held: set[Key]) -> None:
    failure = await experience.trajectory(task, Memory(), Key(arm=WRITTEN, task_id=task.id))
    if failure.outcome is not Outcome.FAILURE:
        return
    for candidate in range(pieces):
        key = Key(arm=WRITTEN, task_id=task.id, trial=1, candidate=candidate)
        try:
            await experience.reflection(failure, Memory(), key, 0)
        except InfrastructureFailure:
            return
        held.add(key)


def _ran_out(store: Store, written: int, wanted: int) -> str:
    invalid = store.invalid_count(WRITTEN)
    last = f" The last of {invalid} invalid attempts: {store.last_cause(WRITTEN)}" if invalid else ""
    fault = f"The split ran out of tasks: {written} of {wanted} pieces"
    return f"{fault}; lower collect.written or collect.tasks.{last}"
