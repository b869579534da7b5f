"""Algorithm 1 over a whole split: play, reflect on failures, play again, rate."""

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, closing

from retroformer.config.conditions import conditions, rerating
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import check_prompts, parts, require_addresses
from retroformer.config.sections.base import RetryPlan
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.method.rating import FEW_POSITIVES, Rating, count_ratings, ratings
from retroformer.method.records import Outcome, Task
from retroformer.run.arm_names import collect_arm
from retroformer.run.attempts import Experience
from retroformer.run.backends import LOCAL, Play, play_elsewhere, player
from retroformer.run.ledger import Ledger
from retroformer.run.progress import Tally, tally
from retroformer.run.schedule import Work, work_through
from retroformer.run.store import Store, open_store, open_whole_store

from .plan import power_of_retries
from .tasks import refuse_repeated, tasks_of_round

logger = logging.getLogger(__name__)


async def rate_reflections(config: Config) -> str:
    """Collect what the store lacks; return a summary of what it holds.

    Raises RetroformerError: the config or its data are invalid, the budget is spent, or the infrastructure left tasks
    unfinished; everything collected so far is stored.
    """
    experiment = config.experiment
    check_prompts(experiment)
    anew = rerating(experiment)  # Before anything is played, since it refuses an unknown return of train.rated_by.
    with closing(open_whole_store(experiment)) as store, closing(Ledger(store)) as ledger:
        arm, tasks = collect_arm(experiment.round), tasks_of_round(experiment)
        refuse_repeated(experiment, store, tasks)
        if power := power_of_retries(experiment, store, tasks):
            logger.warning(power)
        with tally("collect", len(tasks)) as counts:
            unfinished = await _play(config, ledger, tasks, counts)
        if store.played_tasks(arm).isdisjoint(task.id for task in tasks):
            raise MissingInput(f"None of {len(tasks)} tasks could be played. The last cause: {store.last_cause(arm)}")
        held = summary(store, arm, tasks, experiment)
        if unfinished:
            raise InfrastructureFailure(
                f"{held}\n{len(unfinished)} of {len(tasks)} tasks are left unfinished: run the same command "
                f"again to go on. The last cause: {store.last_cause(arm)}"
            )
        helped = sum(rated.rating > 0 and bool(rated.text.strip()) for rated in ratings(store, arm, anew=anew))
        if helped < FEW_POSITIVES:
            logger.warning(
                "Only %d pieces of advice helped, and SFT needs some %d to imitate: let a stronger model write "
                "(reflector.teacher, in another run), or collect more tasks.",
                *(helped, FEW_POSITIVES),
            )
        return held


async def _play(config: Config, ledger: Ledger, tasks: tuple[Task, ...], counts: Tally) -> set[str]:
    """Play in this process, or with the workers of a backend; return the ids of unfinished tasks."""
    experiment, backend = config.experiment, config.experiment.loop.backend
    if backend != LOCAL:
        require_addresses(experiment, asks_reflector=experiment.reflector.teacher is None)
        arm = collect_arm(experiment.round)
        return (await play_elsewhere(backend, open_player, config, {arm: [task.id for task in tasks]}, counts))[arm]
    async with _experience(config, ledger) as experience:
        experience.on_event = counts.count
        await work_through(ledger, [Work(experience, tasks)], experiment.loop.concurrency, counts.done)
        return experience.unfinished


@asynccontextmanager
async def open_player(config: Config) -> AsyncIterator[Play]:
    """Start what a worker needs, and yield what plays chunks of the round's tasks.

    Raises RetroformerError: the store, an endpoint or the environment is not available.
    """
    experiment = config.experiment
    with closing(open_store(experiment)) as store, closing(Ledger(store)) as ledger:
        async with _experience(config, ledger, environment_processes=1) as experience:
            yield player(ledger, tasks_of_round(experiment), lambda arm: experience, experiment.loop.concurrency)


@asynccontextmanager
async def _experience(
    config: Config, ledger: Ledger, environment_processes: int | None = None
) -> AsyncIterator[Experience]:
    """Start what rollouts need, and yield the experience of the round."""
    experiment = config.experiment
    arm, writer = collect_arm(experiment.round), experiment.reflector.collector
    asks_reflector = writer is experiment.reflector.endpoint
    async with parts(config, asks_reflector=asks_reflector, environment_processes=environment_processes) as components:
        plan = experiment.collect.model_dump(include=set(RetryPlan.model_fields))
        ledger.store.declare(arm, conditions(experiment, components.proven, writer=writer) | plan)
        tokens = experiment.train.grpo.reward == "stored"
        reflector = components.reflector(writer, experiment.reflector.temperature, tokens=tokens)
        yield components.experience(ledger, arm, reflector, experiment.collect)


def summary(store: Store, arm: str, tasks: tuple[Task, ...], experiment: Experiment) -> str:
    """Summarise what the store holds about these tasks, in five lines; in six if `train.rated_by` rates them anew.

    Raises ConfigError: `train.rated_by` names no return of this environment.
    """
    chosen = {task.id for task in tasks}

    def count(rated: Iterable[Rating]) -> str:
        return count_ratings([(rating for rating in rated if rating.task_id in chosen)])

    attempts = [attempt for attempt in store.attempt_rows(arm) if attempt.task_id in chosen]
    first = [attempt.outcome for attempt in attempts if attempt.trial == 0]
    anew, name = rerating(experiment), experiment.train.rated_by
    rated_anew = [] if anew is None else [f"rated anew   by {name}: {count(ratings(store, arm, anew=anew))}"]
    usage = store.usage(arm)
    return "\n".join(
        [
            f"tasks        {len(first)} of {len(tasks)} played, {first.count(Outcome.SUCCESS)} solved at trial 0",
            f"rollouts     {len(attempts)} valid, {store.arm_counts()[arm].invalid} invalid attempts so far",
            f"reflections  {count(ratings(store, arm))}",
            *rated_anew,
            f"tokens       {usage.prompt_tokens} prompt, {usage.completion_tokens} completion in {usage.calls} calls, "
            f"{usage.dollars:.2f} dollars",
            f"store        {store.url}",
        ]
    )
