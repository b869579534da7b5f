"""Chapters on the tasks that each arm solved, on paired and planned differences, and on stopping rules."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from retroformer.config.experiment import PlannedComparison
from retroformer.files.document import (
    DASH,
    Cell,
    Chapter,
    Paragraph,
    Part,
    Row,
    Table,
    Words,
    arm_cell,
    chapter,
    code,
    emphasis,
    join_words,
    number,
    table,
    trial_columns,
    unbroken,
)
from retroformer.run.store import Store

from ..measure.results import ArmResult, Floats, arms_and_seeds, first_trials
from ..measure.statistics import (
    Groups,
    Intervals,
    Rates,
    arm_pairs,
    bootstrap_seeds,
    comparison,
    first_failures,
    mean_over_seeds,
    paired_difference,
    plain_p,
    select_tasks,
    shared_first_arm,
)
from .evaluation import ReportInput, interval_cell, views

FAILURES_IN_A_ROW = 3
"""Failed attempts after which the agent gives a task up."""


def by_trial(evaluation: ReportInput) -> Iterator[Chapter]:
    """Yield the shares solved by each trial, and those of the tasks that failed at first."""
    rates = evaluation.rates
    yield chapter("Solved by trial", *views(rates, lambda arms: [solved_by_trial(arms, rates.intervals)]))
    if evaluation.experiment.loop.trials < 2 or not first_failures(rates.all_tasks).any():
        return

    def counted(arms: Sequence[ArmResult]) -> list[Part]:
        count = Paragraph(words=f"Not solved at trial 0: {first_failures(arms).sum()}.")
        return [*([count] if rates.unfinished else []), *solved_of_failed(arms, rates.intervals)]

    failed = "" if rates.unfinished else f"{first_failures(rates.finished).sum()} "
    yield chapter(f"Solved of the {failed}tasks that failed at trial 0", *views(rates, counted))


def differences(evaluation: ReportInput) -> Iterator[Chapter]:
    rates = evaluation.rates
    if len(evaluation.results) > 1:
        shown = views(rates, lambda arms: [paired_differences(arms, rates.intervals)])
        yield chapter("Differences after the last trial, paired by task", *shown)


def planned_comparisons(evaluation: ReportInput) -> Iterator[Chapter]:
    if comparisons := evaluation.experiment.eval.comparisons:
        parts = planned_results(comparisons, evaluation.rates, evaluation.store, evaluation.clusters)
        yield chapter("Planned comparisons", *parts)


def stopping(evaluation: ReportInput) -> Iterator[Chapter]:
    """Yield where each arm would have stopped, if there are enough trials for a rule to matter.

    The rules are from section 4.2 of Reflexion and section 2 of its first version. The trials after that point are
    played anyway, so one run shows the whole curve and every rule.
    """
    if len(evaluation.results[0].solved_NT) > FAILURES_IN_A_ROW:
        yield chapter("Stopping rules", *views(evaluation.rates, lambda arms: [stopping_rules(arms)]))


def solved_by_trial(results: Sequence[ArmResult], intervals: Intervals) -> Table:
    """Return the share solved by trial of every arm, followed by its training seeds if it pools several."""
    trials = range(len(results[0].solved_NT))
    rows = [
        [
            arm_cell(result.name),
            *(interval_cell(intervals.of(result.solved_by(trial))) for trial in trials),
            number(float(result.return_NT[-1].mean()), ".3f"),
            number(result.incomplete) if isinstance(result, ArmResult) else "",
            number(result.invalid),
            number(result.usage.prompt_tokens, ","),
            number(result.usage.completion_tokens, ","),
            number(result.usage.dollars, ".2f"),
        ]
        for result in arms_and_seeds(results)
    ]
    costs = ("last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars")
    caption = "Share of tasks solved by each trial, and what it cost."
    return table(["arm", *trial_columns(trials, "by trial"), *costs], rows, caption)


def paired_differences(results: Sequence[ArmResult], intervals: Intervals) -> Table:
    """Return differences after the last trial over all tasks, with the exact test of arms without training seeds."""
    seeds = _seeds_column(results)
    rows = [
        [
            arm_cell(first.name),
            arm_cell(second.name),
            *_differences(first, second, paired_difference(first, second), intervals, seeds),
            *_exact_test(first, second, intervals),
        ]
        for first, second in arm_pairs(results)
    ]
    counts = ["only first solved", "only second solved", "McNemar p"]
    header = ["first arm", "second arm", "first - second", *seeds, *counts]
    return table(header, rows, "Differences in the share of tasks solved by the last trial.")


def solved_of_failed(results: Sequence[ArmResult], intervals: Intervals) -> list[Part]:
    """Return how many of the tasks that failed at trial 0 each arm solved later, and the differences between arms."""
    failed_T = first_failures(results)
    if not failed_T.any():
        return [Paragraph(words="No task failed at trial 0.")]
    trials, seeds, failed = range(1, len(results[0].solved_NT)), _seeds_column(results), int(failed_T.sum())
    rows = [
        [arm_cell(result.name), *(_count(result.solved_by(trial)[..., failed_T], intervals) for trial in trials)]
        for result in arms_and_seeds(results)
    ]
    compared = [
        [arm_cell(first.name), arm_cell(second.name)]
        + [
            cell
            for trial in trials
            for difference in [select_tasks(paired_difference(first, second, trial), failed_T)]
            for cell in _differences(first, second, difference, intervals, seeds)
        ]
        for first, second in arm_pairs(results)
    ]
    by = trial_columns(trials, "by trial")
    caption = "Number and share of the tasks failed at trial 0 that were solved later."
    shown: list[Part] = []
    if own := [emphasis(arm.name) for arm in results if not arm.shares_first]:
        shared = emphasis(shared_first_arm(results).name)
        others = ". Arms that played another trial 0, and may have solved such a task at once: "
        words = ("These tasks failed at the trial 0 of ", shared, others, *join_words(", ", own), ".")
        shown.append(Paragraph(words=words))
    shown.append(table(["arm", *by], rows, caption, failed))
    if compared:
        columns = [
            column.model_copy(update={"title": f"{column.title}{more}"})
            for column in by
            for more in ("", *(f", {title}" for title in seeds))
        ]
        caption = "Differences in the share of these tasks solved, first arm minus second arm."
        shown.append(table(["first arm", "second arm", *columns], compared, caption, failed))
    return shown


def _seeds_column(results: Sequence[ArmResult]) -> list[str]:
    """Return the title of a second column of intervals, over tasks alone; none without training seeds."""
    return ["with these seeds"] if any(arm.pooled for arm in results) else []


def _differences(
    first: ArmResult, second: ArmResult, difference: Groups, intervals: Intervals, seeds: Sequence[str]
) -> list[Cell]:
    """Return the interval over training seeds and tasks, and the one over tasks alone if there is a column for it."""
    both, alone = intervals.of(difference), intervals.of(mean_over_seeds(difference))
    compared = interval_cell(both, "" if both.excludes_zero else " (covers 0)", (first.name, second.name))
    return [compared, *(interval_cell(alone) for _ in seeds)]


def _exact_test(first: ArmResult, second: ArmResult, intervals: Intervals) -> list[str | Cell]:
    """Return how many tasks only one of the two arms solved, and the p-value; dashes for means over seeds."""
    p_value = comparison(first, second, intervals).p_value
    if p_value is None:
        return [DASH, DASH, DASH]
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    counts = [number(int((one_T > other_T).sum())) for one_T, other_T in ((first_T, second_T), (second_T, first_T))]
    return [*counts, Cell(words=plain_p(p_value), value=p_value)]


def _count(solved: Floats, intervals: Intervals) -> Cell:
    """Return `37: 0.617 [0.500, 0.733]`, sorted by the count; with pooled seeds the count is a mean as well."""
    count = float(mean_over_seeds((solved,)).sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return Cell(words=(unbroken(f"{shown}: {intervals.of(solved)}"),), value=count)


def stopping_rules(results: Sequence[ArmResult]) -> Table:
    header = [
        "arm",
        f"a task is given up after {FAILURES_IN_A_ROW} failures in a row",
        "all stop after the first trial without improvement",
        "all trials",
    ]
    rows = [
        [
            arm_cell(arm.name),
            number(float(arm.solved_NT[FAILURES_IN_A_ROW - 1].mean()), ".3f"),
            number(float(arm.solved_NT[last].mean()), ".3f", f", after trial {last}"),
            number(float(arm.solved_NT[-1].mean()), ".3f"),
        ]
        for arm in results
        for last in (last_trial(arm.solved_NT),)
    ]
    return table(header, rows, "Share of tasks solved under each stopping rule.")


def last_trial(solved_NT: Floats) -> int:
    """Return the first retry that solved no further task, or the last trial if every retry solved some."""
    shares_N = solved_NT.mean(axis=1)
    last = len(shares_N) - 1
    return next((trial for trial in range(1, last) if shares_N[trial] <= shares_N[trial - 1]), last)


def planned_results(
    comparisons: tuple[PlannedComparison, ...], rates: Rates, store: Store, clusters: Sequence[str] = ()
) -> tuple[Words, Part]:
    """Return where the plan is stored, and the result of each planned comparison over all tasks.

    A result is open while an arm has unfinished tasks, which count as failures in the difference, and if no task
    counts. `clusters` are those of the tasks; empty: all tasks are independent.
    """
    rows = [_planned_row(planned, rates, np.array(clusters)) for planned in comparisons]
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


def _planned_row(planned: PlannedComparison, rates: Rates, clusters_T: NDArray[np.str_]) -> Row:
    arms = {arm.name: arm for arm in rates.all_tasks}
    first, second = arms[planned.first], arms[planned.second]
    included_T = first_failures(rates.all_tasks)
    trial, by = -1, "the last trial"
    if planned.trial is not None:
        trial, by = planned.trial, f"trial {planned.trial}"
    difference = select_tasks(paired_difference(first, second, trial), included_T)
    of_shared = "" if first.shares_first and second.shares_first else f" of {shared_first_arm(rates.all_tasks).name}"
    failed = f" tasks that failed at trial 0{of_shared}, {by}"
    mean = None if planned.mean is None else f"mean at least {planned.mean:g}"
    low = None if planned.low is None else f"lower bound above {planned.low:g}"
    names = [arm_cell(first.name), arm_cell(second.name)]
    row: Row = [*names, number(int(included_T.sum()), after=failed), ", ".join(filter(None, (mean, low)))]
    if included_T.any():
        interval = rates.intervals.of(difference)
        met = (planned.mean is None or interval.mean >= planned.mean) and (
            planned.low is None or interval.low > planned.low
        )
        result = "open" if first.incomplete or second.incomplete else "met" if met else "missed"
        row += [interval_cell(interval, arms=(first.name, second.name)), result]
    else:
        row += [DASH, "open"]
    if len(clusters_T):
        row.append(_interval_by_cluster(difference, clusters_T[included_T], rates.intervals.seed))
    return row


def _interval_by_cluster(difference: Groups, clusters_T: NDArray[np.str_], seed: int) -> str:
    if len(set(clusters_T)) < 2:
        return DASH
    interval = bootstrap_seeds(tuple(map(np.atleast_2d, difference)), seed, clusters_T)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"
