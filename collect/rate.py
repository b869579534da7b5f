"""Algorithm 1 over a whole split: play, reflect on failures, play again, rate."""

import asyncio

from collect.tasks import tasks_of_round
from retroformer.arms import collecting
from retroformer.assembly import Page, check_prompts, conditions, gather_all, parts
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.experience import Budget, Experience
from retroformer.progress import Tally, tally
from retroformer.rating import preference_pairs, rated_reflections
from retroformer.records import Outcome, Task
from retroformer.store import Store, open_store


async def rate_reflections(page: Page) -> str:
    """Do what is missing in the store, and say what it holds now.

    Raises:
        RetroformerError: the page or its data are at fault, the budget is spent, or the infrastructure left tasks
            unfinished; what was made is stored.
    """
    experiment = page.experiment
    arm, tasks = collecting(experiment.round), tasks_of_round(experiment)
    check_prompts(experiment)
    store = open_store(experiment)
    try:
        async with parts(page, asks_reflector=True) as made:
            model = experiment.reflector.endpoint.model
            known = conditions(experiment, made.adapter_sha256.get(model), made.actor_sha256)
            store.bind(arm, known | _sampling(page))
            with tally("collect", len(tasks)) as counts:
                experience = Experience(
                    store,
                    arm,
                    made.pool,
                    made.agent(made.reflector(model, experiment.reflector.temperature)),
                    experiment.loop,
                    experiment.seed,
                    Budget(experiment.collect, store.usage(arm)),
                    slots=asyncio.Semaphore(experiment.loop.concurrency),
                    repeats=experiment.collect.repeats,
                    told=counts.told,
                )
                await _improve_all(experience, tasks, experiment.collect.candidates, counts)
        _refuse_if_nothing_was_played(store, arm, tasks)
        said = summary(store, arm, tasks)
        if experience.unfinished:
            raise InfrastructureFailure(
                f"{said}\n{len(experience.unfinished)} of {len(tasks)} tasks are left unfinished: run the same command "
                f"again to go on. The last cause: {store.invalid_causes(arm)[-1]}"
            )
        return said
    finally:
        store.close()


async def _improve_all(experience: Experience, tasks: tuple[Task, ...], candidates: int, counts: Tally) -> None:
    async def one(task: Task) -> None:
        await experience.improve(task, candidates)
        counts.advance()

    await gather_all([asyncio.create_task(one(task)) for task in tasks])


def _sampling(page: Page) -> dict[str, int]:
    collect = page.experiment.collect
    return {"candidates": collect.candidates, "repeats": collect.repeats}


def _refuse_if_nothing_was_played(store: Store, arm: str, tasks: tuple[Task, ...]) -> None:
    played = {key.task_id for key in store.trajectories(arm)}
    if not played.intersection(task.id for task in tasks):
        causes = store.invalid_causes(arm)
        raise MissingInput(f"None of {len(tasks)} tasks could be played. The last cause: {causes[-1]}")


def summary(store: Store, arm: str, tasks: tuple[Task, ...]) -> str:
    """What the store holds about these tasks, in a few lines."""
    chosen = {task.id for task in tasks}
    trajectories = {key: one for key, one in store.trajectories(arm).items() if key.task_id in chosen}
    first = [one for key, one in trajectories.items() if key.trial == 0]
    won = sum(one.outcome is Outcome.SUCCESS for one in first)
    rated = [one for one in rated_reflections(store, arm) if one.key.task_id in chosen]
    positive = sum(one.rating > 0 for one in rated)
    negative = sum(one.rating < 0 for one in rated)
    invalid = len(store.invalid_causes(arm))
    usage = store.usage(arm)
    return "\n".join(
        [
            f"tasks        {len(first)} of {len(tasks)} played, {won} solved at trial 0",
            f"rollouts     {len(trajectories)} valid, {invalid} invalid attempts so far",
            f"reflections  {len(rated)} rated: {positive} positive, {negative} negative, "
            f"{len(rated) - positive - negative} zero; {len(preference_pairs(rated))} pairs",
            f"tokens       {usage.prompt_tokens} prompt, {usage.completion_tokens} completion in {usage.calls} calls, "
            f"{usage.dollars:.2f} dollars",
            f"store        {store.url}",
        ]
    )
