"""Which tasks a run collects on: each round the next ones, and the warm start those beyond."""

import random
from collections.abc import Sequence

from retroformer.arms import collecting
from retroformer.assembly import chosen_tasks
from retroformer.config import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.records import Task
from retroformer.store import Store


def tasks_of_round(experiment: Experiment) -> tuple[Task, ...]:
    """`collect.tasks` tasks after `collect.skip`, and after those of the rounds before.

    Raises:
        MissingInput: the split has none that many.
    """
    page = experiment.collect
    start = page.skip + (experiment.round - 1) * (page.tasks or 0)
    chosen = ordered_tasks(experiment)[start:][: page.tasks]
    if not chosen:
        raise MissingInput(
            f"Split {experiment.environment.split!r} has no tasks beyond the first {start}: lower collect.skip, "
            "collect.tasks or round."
        )
    return chosen


def refuse_repeated(experiment: Experiment, store: Store, tasks: Sequence[Task]) -> None:
    """Refuse to collect again in a later round what an earlier round has collected.

    Raises:
        ConfigError: a task of this round has attempts in an earlier one, as shards made by collect.skip can cause.
    """
    chosen = {task.id for task in tasks}
    for number in range(1, experiment.round):
        if repeated := sorted(chosen & store.played_tasks(collecting(number))):
            raise ConfigError(
                f"{len(repeated)} of {len(tasks)} tasks of round {experiment.round} were collected in round {number}, "
                f"such as {repeated[0]!r}: raise collect.skip, or set collect.tasks to the tasks of a whole round."
            )


def ordered_tasks(experiment: Experiment) -> tuple[Task, ...]:
    """All tasks of the split, in the order that the page asks for.

    Raises:
        ConfigError: the licence of these tasks forbids to train on them.
    """
    experiment.environment.refuse_training()
    tasks = chosen_tasks(experiment, None)
    if experiment.collect.order == "shuffled":
        return tuple(random.Random(f"tasks {experiment.seed}").sample(tasks, len(tasks)))
    return tasks
