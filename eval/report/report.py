"""runs/NAME/eval: the report with its headline, figures, tables, paired differences and provenance."""

from collections.abc import Callable, Iterable
from pathlib import Path

from retroformer.document import Chapter
from retroformer.environments.extras import ChapterBuilder
from retroformer.environments.registry import extras

from .advice import Examples, Leaks, RetrievedAdvice
from .attempts import Attempts
from .configs import origin, stage_configs
from .costs import EqualBudget, making
from .evaluation import Evaluated
from .files import report_of, write_files
from .headline import front
from .overoptimisation import score_gains
from .planned import planned_comparisons
from .solved import by_trial, differences, stopping
from .telemetry import AdviceTelemetry
from .training import training
from .who_played import WhoPlayed, served_models


def _of_environment(evaluated: Evaluated) -> ChapterBuilder | Iterable[Chapter]:
    """Return the environment's own chapters, if it has any."""
    chapters = extras(evaluated.experiment.environment).chapters
    return chapters(evaluated.results) if chapters else ()


CHAPTERS: tuple[Callable[[Evaluated], ChapterBuilder | Iterable[Chapter]], ...] = (
    front,
    planned_comparisons,
    WhoPlayed,
    by_trial,
    differences,
    EqualBudget,
    making,
    stopping,
    served_models,
    Attempts,
    training,
    stage_configs,
    score_gains,
    AdviceTelemetry,
    RetrievedAdvice,
    Leaks,
    _of_environment,
    Examples,
    origin,
)
"""What computes the chapters, in order: functions, and classes that count the stored facts of each task first."""


def write_report(evaluated: Evaluated) -> Path:
    """Write the files of the report; return the path of report.html."""
    built = [build(evaluated) for build in CHAPTERS]
    counters = [one for one in built if isinstance(one, ChapterBuilder)]
    for facts in evaluated.facts():
        for counter in counters:
            counter.add(facts)
    chapters = [
        chapter.model_copy(update={"source": f"{maker.__module__}.{maker.__name__}"})
        for build, one in zip(CHAPTERS, built, strict=True)
        for maker, made in ((type(one), one.chapters()) if isinstance(one, ChapterBuilder) else (build, one),)
        for chapter in made
    ]
    report = report_of(evaluated.experiment, "does the advice help?", chapters, evaluated.results)
    return write_files(report, evaluated.folder)
