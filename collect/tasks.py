"""Selection of the tasks to collect on: each round takes the next ones, the warm start those after `collect`."""

import random
from collections.abc import Sequence

from retroformer.config.experiment import Experiment
from retroformer.config.parts import chosen_tasks
from retroformer.environments.registry import extras
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Task
from retroformer.run.arm_names import collect_arm
from retroformer.run.store import Store


def tasks_of_round(experiment: Experiment) -> tuple[Task, ...]:
    """Return the next `collect.tasks` tasks after those of earlier rounds.

    Raises MissingInput: the split has no tasks left.
    """
    collect = experiment.collect
    start = (experiment.round - 1) * (collect.tasks or 0)
    chosen = ordered_tasks(experiment)[start:][: collect.tasks]
    if not chosen:
        raise MissingInput(
            f"Split {experiment.environment.split!r} has no tasks beyond the first {start}: lower collect.tasks or "
            "round."
        )
    return chosen


def refuse_repeated(experiment: Experiment, store: Store, tasks: Sequence[Task]) -> None:
    """Refuse tasks that an earlier round has already collected.

    Raises ConfigError: a task of this round has attempts in an earlier one, which had another collect.tasks.
    """
    chosen = {task.id for task in tasks}
    for number in range(1, experiment.round):
        if repeated := sorted(chosen & store.played_tasks(collect_arm(number))):
            raise ConfigError(
                f"{len(repeated)} of {len(tasks)} tasks of round {experiment.round} were collected in round {number}, "
                f"such as {repeated[0]!r}: set collect.tasks to the number of tasks of that round."
            )


def ordered_tasks(experiment: Experiment) -> tuple[Task, ...]:
    """Return all tasks of the split in the configured order.

    Raises ConfigError: the licence of these tasks forbids training on them.
    """
    extras(experiment.environment).refuse_training(experiment.environment)
    tasks = chosen_tasks(experiment, None)
    if experiment.collect.order == "shuffled":
        return tuple(random.Random(f"tasks {experiment.seed}").sample(tasks, len(tasks)))
    return tasks
