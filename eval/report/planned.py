"""Chapter on the comparisons that the config planned."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from retroformer.document import DASH, Chapter, Part, Row, Words, arm_cell, chapter, code, number, table
from retroformer.experiment.sections.eval import PlannedComparison
from retroformer.store import Store

from ..measure.rates import Rates, among, failed_at_first, paired_difference, sharing
from ..measure.results import first_trials
from ..measure.statistics import Groups, MeanInterval, bootstrap_seeds
from .evaluation import Evaluated
from .solved import interval_cell


def planned_comparisons(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the result of each planned comparison."""
    if comparisons := evaluated.experiment.eval.comparisons:
        parts = planned(comparisons, evaluated.rates, evaluated.store, evaluated.clusters)
        yield chapter("Planned comparisons", *parts)


def planned(
    comparisons: tuple[PlannedComparison, ...], rates: Rates, store: Store, clusters: Sequence[str] = ()
) -> tuple[Words, Part]:
    """Return where the plan is stored, and the result of each planned comparison over all tasks.

    A result is open while an arm has unfinished tasks, which count as failures in the difference, and if no task
    counts.

    Args:
        comparisons: the comparisons.
        rates: results of all arms.
        store: store of the evaluation.
        clusters: cluster of each task if several tasks are in the same one; empty: all tasks are independent.
    """
    rows = [_row(comparison, rates, np.array(clusters)) for comparison in comparisons]
    header = ["first arm", "second arm", "solved of, by", "planned", "first - second", "result"]
    explained = (
        "Comparisons that were fixed before this run played any of its tasks. The result follows the interval with "
        "tasks resampled, and training seeds if there are several."
    )
    if clusters:
        header.append("clusters resampled")
        explained += (
            f" The {len(clusters)} tasks form {len(set(clusters))} clusters with similar results: the last column is "
            "the interval with all tasks of a cluster resampled together, which decides nothing."
        )
    first = next(iter(first_trials(rates.all_tasks)))
    sha256 = (store.conditions(first) or {}).get("plan_sha256", "")
    stored = ("The plan has the sha256 ", code(sha256), ", which is stored with every attempt at trial 0.")
    return stored, table(header, rows, explained, rates.tasks)


def _row(comparison: PlannedComparison, rates: Rates, clusters_T: NDArray[np.str_]) -> Row:
    arms = {arm.name: arm for arm in rates.all_tasks}
    first, second = arms[comparison.first], arms[comparison.second]
    included_T = failed_at_first(rates.all_tasks) if comparison.of == "failures" else np.ones(rates.tasks, dtype=bool)
    trial_number = -1 if comparison.trial is None else comparison.trial
    difference = among(paired_difference(first, second, trial_number), included_T)
    trial = "the last trial" if comparison.trial is None else f"trial {comparison.trial}"
    of_shared = "" if first.shares_first and second.shares_first else f" of {sharing(rates.all_tasks).name}"
    tasks = "tasks" if comparison.of == "tasks" else f"tasks that failed at trial 0{of_shared}"
    row: Row = [
        arm_cell(first.name),
        arm_cell(second.name),
        number(int(included_T.sum()), after=f" {tasks}, {trial}"),
        _wanted(comparison),
    ]
    if not included_T.any():
        return [*row, DASH, "open", *([DASH] if len(clusters_T) else [])]
    interval = rates.intervals.of(difference)
    row += [
        interval_cell(interval, arms=(first.name, second.name)),
        "open" if first.incomplete or second.incomplete else _result(comparison, interval),
    ]
    if len(clusters_T):
        row.append(_by_cluster(difference, clusters_T[included_T], rates.intervals.seed))
    return row


def _by_cluster(difference: Groups, clusters_T: NDArray[np.str_], seed: int) -> str:
    if len(set(clusters_T)) < 2:
        return DASH
    interval = bootstrap_seeds(tuple(map(np.atleast_2d, difference)), seed, clusters_T)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"


def _wanted(comparison: PlannedComparison) -> str:
    mean = None if comparison.mean is None else f"mean at least {comparison.mean:g}"
    low = None if comparison.low is None else f"lower bound above {comparison.low:g}"
    return ", ".join(filter(None, (mean, low)))


def _result(comparison: PlannedComparison, difference: MeanInterval) -> str:
    mean_met = comparison.mean is None or difference.mean >= comparison.mean
    return "met" if mean_met and (comparison.low is None or difference.low > comparison.low) else "missed"
