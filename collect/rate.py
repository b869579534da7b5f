"""Algorithm 1 over a whole split: play, reflect on failures, play again, rate."""

import asyncio
from contextlib import closing
from typing import Any

from retroformer.arm_names import collecting
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.experiment.conditions import conditions
from retroformer.experiment.parts import LoadedConfig, check_prompts, parts
from retroformer.experiment.returns import rerating
from retroformer.experiment.storage import open_store
from retroformer.ledger import Ledger
from retroformer.progress import tally
from retroformer.records import Task
from retroformer.schedule import Work, work_through
from retroformer.store import Store

from .summary import summary
from .tasks import refuse_repeated, tasks_of_round


async def rate_reflections(config: LoadedConfig) -> str:
    """Collect what the store lacks; return a summary of what it holds.

    Raises:
        RetroformerError: the config or its data are invalid, the budget is spent, or the infrastructure left tasks
            unfinished; everything collected so far is stored.
    """
    experiment = config.experiment
    check_prompts(experiment)
    rerating(experiment)  # Refuses an unknown return of train.rated_by before anything is played.
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        arm, tasks = collecting(experiment.round), tasks_of_round(experiment)
        refuse_repeated(experiment, store, tasks)
        async with parts(config, asks_reflector=True) as components:
            model = experiment.reflector.endpoint.model
            store.declare(arm, conditions(experiment, components.provenance) | _sampling(config))
            with tally("collect", len(tasks)) as counts:
                experience = Experience(
                    ledger,
                    arm,
                    components.pool,
                    components.agent(components.reflector(model, experiment.reflector.temperature)),
                    experiment.loop,
                    experiment.seed,
                    Budget(experiment.collect, lambda: store.usage(arm)),
                    slots=asyncio.Semaphore(experiment.loop.concurrency),
                    repeats=experiment.collect.repeats,
                    most_repeats=experiment.collect.most_repeats,
                    branch=experiment.collect.branch,
                    unadvised=experiment.collect.unadvised,
                    on_event=counts.count,
                )
                work = Work(experience, tasks, experiment.collect.candidates)
                await work_through(ledger, [work], experiment.loop.concurrency, counts.done)
        _refuse_if_nothing_was_played(store, arm, tasks)
        held = summary(store, arm, tasks, experiment)
        if experience.unfinished:
            raise InfrastructureFailure(
                f"{held}\n{len(experience.unfinished)} of {len(tasks)} tasks are left unfinished: run the same command "
                f"again to go on. The last cause: {store.last_cause(arm)}"
            )
        return held


def _sampling(config: LoadedConfig) -> dict[str, Any]:
    collect = config.experiment.collect
    chosen = {"branch": collect.branch, "most_repeats": collect.most_repeats, "unadvised": collect.unadvised}
    # Facts of earlier versions do not have these settings.
    absent = {"branch": "best", "most_repeats": None, "unadvised": False}
    new = {name: value for name, value in chosen.items() if value != absent[name]}
    return {"candidates": collect.candidates, "repeats": collect.repeats} | new


def _refuse_if_nothing_was_played(store: Store, arm: str, tasks: tuple[Task, ...]) -> None:
    if store.played_tasks(arm).isdisjoint(task.id for task in tasks):
        raise MissingInput(f"None of {len(tasks)} tasks could be played. The last cause: {store.last_cause(arm)}")
