"""Reads the collected attempts of training runs, for arms that count them."""

import hashlib
from collections.abc import Iterator
from contextlib import closing

from retroformer.arm_names import is_rated
from retroformer.errors import MissingInput
from retroformer.experiment.config import Experiment
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.storage import open_whole_store
from retroformer.records import Trajectory


def training_attempts(experiment: Experiment, arm: Arm) -> Iterator[Trajectory]:
    """Yield the collected attempts of the runs that an arm names, or of this run; never those of an evaluation.

    Stories with a mark of `train.leave_out` are left out.

    Raises:
        MissingInput: a run has none.
    """
    for run in arm.runs or (experiment.run,):
        source = experiment.model_copy(update={"run": run})
        count = 0
        if source.has_store:
            with closing(open_whole_store(source)) as store:
                for name in filter(is_rated, store.arms()):
                    left_out = store.marks.tasks(name, experiment.train.leave_out)
                    for key, attempt in store.stream_trajectories(name):
                        if key.task_id not in left_out:
                            count += 1
                            yield attempt
        if not count:
            raise MissingInput(
                f"No collected attempts of the run {run!r}: run `retroformer collect` for it first, or name another in "
                "the arm's `runs`."
            )


def sha256_of_attempts(experiment: Experiment, arm: Arm) -> str:
    """Return a hash of the attempts that an arm counts, as part of its conditions. Raises MissingInput."""
    content = hashlib.sha256()
    for attempt in training_attempts(experiment, arm):
        content.update(attempt.model_dump_json(exclude={"usage"}).encode())
    return content.hexdigest()
