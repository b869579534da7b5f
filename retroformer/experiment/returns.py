"""Return that rates reflections for training (`train.rated_by`)."""

from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.protocols import ReturnOf
from retroformer.records import Outcome, Trajectory

STORED, SUCCESS = "stored", "success"


def return_of(experiment: Experiment) -> ReturnOf | None:
    """Return the function that computes the return of a stored attempt; None if the stored return is the one wanted.

    Raises:
        ConfigError: the environment has no return of this name.
    """
    section, name = experiment.environment, experiment.train.rated_by
    others = extras(section).returns
    if name == STORED:
        return None
    if name == SUCCESS:
        return _success
    if name not in others:
        raise ConfigError(
            f"train.rated_by: {section.name} has no return {name!r}; choose one of "
            f"{', '.join((STORED, SUCCESS, *others))}."
        )
    return others[name](section, experiment.seed)


def _success(attempt: Trajectory) -> float:
    return float(attempt.outcome is Outcome.SUCCESS)
