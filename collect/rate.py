"""Algorithm 1 over a whole split: play, reflect on failures, play again, rate."""

import asyncio
from collections import Counter
from contextlib import closing

from collect.tasks import refuse_repeated, tasks_of_round
from retroformer.arms import collecting
from retroformer.assembly import Page, check_prompts, parts
from retroformer.conditions import conditions
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.ledger import Ledger
from retroformer.progress import tally
from retroformer.rating import counted, preferences, ratings
from retroformer.records import Outcome, Task
from retroformer.schedule import Work, work_through
from retroformer.store import Store, open_store


async def rate_reflections(page: Page) -> str:
    """Do what is missing in the store, and say what it holds now.

    Raises:
        RetroformerError: the page or its data are at fault, the budget is spent, or the infrastructure left tasks
            unfinished; what was made is stored.
    """
    experiment = page.experiment
    check_prompts(experiment)
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        arm, tasks = collecting(experiment.round), tasks_of_round(experiment)
        refuse_repeated(experiment, store, tasks)
        async with parts(page, asks_reflector=True) as made:
            model = experiment.reflector.endpoint.model
            store.declare(arm, conditions(experiment, made.provenance) | _sampling(page))
            with tally("collect", len(tasks)) as counts:
                experience = Experience(
                    ledger,
                    arm,
                    made.pool,
                    made.agent(made.reflector(model, experiment.reflector.temperature)),
                    experiment.loop,
                    experiment.seed,
                    Budget(experiment.collect, lambda: store.usage(arm)),
                    slots=asyncio.Semaphore(experiment.loop.concurrency),
                    repeats=experiment.collect.repeats,
                    told=counts.told,
                )
                work = Work(experience, tasks, experiment.collect.candidates)
                await work_through(ledger, [work], experiment.loop.concurrency, counts.done)
        _refuse_if_nothing_was_played(store, arm, tasks)
        said = summary(store, arm, tasks)
        if experience.unfinished:
            raise InfrastructureFailure(
                f"{said}\n{len(experience.unfinished)} of {len(tasks)} tasks are left unfinished: run the same command "
                f"again to go on. The last cause: {store.last_cause(arm)}"
            )
        return said


def _sampling(page: Page) -> dict[str, int]:
    collect = page.experiment.collect
    return {"candidates": collect.candidates, "repeats": collect.repeats}


def _refuse_if_nothing_was_played(store: Store, arm: str, tasks: tuple[Task, ...]) -> None:
    if store.played_tasks(arm).isdisjoint(task.id for task in tasks):
        raise MissingInput(f"None of {len(tasks)} tasks could be played. The last cause: {store.last_cause(arm)}")


def summary(store: Store, arm: str, tasks: tuple[Task, ...]) -> str:
    """What the store holds about these tasks, in a few lines."""
    chosen = {task.id for task in tasks}
    attempts, first, won = 0, 0, 0
    for attempt in store.attempt_rows(arm):
        if attempt.task_id in chosen:
            attempts += 1
            first += attempt.trial == 0
            won += attempt.trial == 0 and attempt.outcome == Outcome.SUCCESS
    signs = Counter[str]()
    rated = (rating for rating in ratings(store, arm) if rating.task_id in chosen)
    pairs = sum(1 for _ in preferences(counted(rated, signs)))
    usage = store.usage(arm)
    return "\n".join(
        [
            f"tasks        {first} of {len(tasks)} played, {won} solved at trial 0",
            f"rollouts     {attempts} valid, {store.invalid_count(arm)} invalid attempts so far",
            f"reflections  {signs.total()} rated: {signs['positive']} positive, {signs['negative']} negative, "
            f"{signs['zero']} zero; {pairs} pairs",
            f"tokens       {usage.prompt_tokens} prompt, {usage.completion_tokens} completion in {usage.calls} calls, "
            f"{usage.dollars:.2f} dollars",
            f"store        {store.url}",
        ]
    )
