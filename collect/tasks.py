"""Which tasks a run collects on: each round the next ones, and the warm start those beyond."""

import random

from retroformer.assembly import chosen_tasks
from retroformer.config import Experiment
from retroformer.errors import MissingInput
from retroformer.records import Task


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
