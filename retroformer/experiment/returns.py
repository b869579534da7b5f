"""Rule that rates reflections for training (`train.rated_by`), by a return of the stored attempts."""

from retroformer.environments.registry import extras
from retroformer.errors import ConfigError
from retroformer.experiment.config import Experiment
from retroformer.rating import Rerating
from retroformer.records import Outcome, Trajectory

STORED, SUCCESS, SUCCESS_BY_SECOND_RETRY = "stored", "success", "success_by_second_retry"


def rerating(experiment: Experiment) -> Rerating | None:
    """Return the rule by which stored reflections are rated anew; None if their stored ratings are the ones wanted.

    Raises:
        ConfigError: the environment has no return of this name, or its settings leave no trace of it in attempts.
    """
    section, name = experiment.environment, experiment.train.rated_by
    others = extras(section).returns
    if name == STORED:
        return None
    if name in (SUCCESS, SUCCESS_BY_SECOND_RETRY):
        return Rerating(_success, second_retry=name == SUCCESS_BY_SECOND_RETRY)
    if name not in others:
        raise ConfigError(
            f"train.rated_by: {section.name} has no return {name!r}; choose one of "
            f"{', '.join((STORED, SUCCESS, SUCCESS_BY_SECOND_RETRY, *others))}."
        )
    return Rerating(others[name](section, experiment.seed))


def _success(attempt: Trajectory) -> float:
    return float(attempt.outcome is Outcome.SUCCESS)
