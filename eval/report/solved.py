"""Chapters on the tasks that each arm solved, on paired and planned differences, and on stopping rules."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from retroformer.config.experiment import PlannedComparison
from retroformer.files.document import (
    DASH,
    Cell,
    Chapter,
    Column,
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
    trial_column,
    unbroken,
)
from retroformer.run.store import Store

from ..measure.results import ArmResult, Floats, SeedResult, arms_and_seeds, first_trials
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
from .report_input import ReportInput, interval_cell, shares_by_trial, views

_THESE_SEEDS = "with these seeds"
"""Title of a column of intervals over tasks alone, if an arm has training seeds."""
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
    return table(
        [
            {
                "arm": arm_cell(result.name),
                **shares_by_trial(result, intervals),
                "last return": number(float(result.return_NT[-1].mean()), ".3f"),
                "unfinished": result.incomplete if isinstance(result, ArmResult) else "",
                "invalid attempts": result.invalid,
                "tokens in": number(result.usage.prompt_tokens, ","),
                "tokens out": number(result.usage.completion_tokens, ","),
                "dollars": number(result.usage.dollars, ".2f"),
            }
            for result in arms_and_seeds(results)
        ],
        "Share of tasks solved by each trial, and what it cost.",
    )


def paired_differences(results: Sequence[ArmResult], intervals: Intervals) -> Table:
    """Return differences after the last trial over all tasks, with the exact test of arms without training seeds."""
    pooled = any(arm.pooled for arm in results)
    return table(
        [
            {
                "first arm": arm_cell(first.name),
                "second arm": arm_cell(second.name),
                "first - second": _difference_cell(first, second, difference, intervals),
                **({_THESE_SEEDS: _interval_over_tasks(difference, intervals)} if pooled else {}),
                **_exact_test(first, second, intervals),
            }
            for first, second in arm_pairs(results)
            for difference in [paired_difference(first, second)]
        ],
        "Differences in the share of tasks solved by the last trial.",
    )


def solved_of_failed(results: Sequence[ArmResult], intervals: Intervals) -> list[Part]:
    """Return how many of the tasks that failed at trial 0 each arm solved later, and the differences between arms."""
    failed_T = first_failures(results)
    if not failed_T.any():
        return [Paragraph(words="No task failed at trial 0.")]
    trials, failed = range(1, len(results[0].solved_NT)), int(failed_T.sum())

    def counts(result: ArmResult | SeedResult) -> Row:
        return {_by(trial): _count(result.solved_by(trial)[..., failed_T], intervals) for trial in trials}

    def differences(first: ArmResult, second: ArmResult) -> Row:
        cells = dict[str | Column, Cell]()
        for trial in trials:
            difference = select_tasks(paired_difference(first, second, trial), failed_T)
            cells[_by(trial)] = _difference_cell(first, second, difference, intervals)
            if any(arm.pooled for arm in results):
                cells[_by(trial, f", {_THESE_SEEDS}")] = _interval_over_tasks(difference, intervals)
        return cells

    shown: list[Part] = []
    if own := [emphasis(arm.name) for arm in results if not arm.shares_first]:
        shared = emphasis(shared_first_arm(results).name)
        others = ". Arms that played another trial 0, and may have solved such a task at once: "
        words = ("These tasks failed at the trial 0 of ", shared, others, *join_words(", ", own), ".")
        shown.append(Paragraph(words=words))
    caption = "Number and share of the tasks failed at trial 0 that were solved later."
    solved = [{"arm": arm_cell(result.name), **counts(result)} for result in arms_and_seeds(results)]
    shown.append(table(solved, caption, failed))
    if compared := [
        {"first arm": arm_cell(first.name), "second arm": arm_cell(second.name), **differences(first, second)}
        for first, second in arm_pairs(results)
    ]:
        caption = "Differences in the share of these tasks solved, first arm minus second arm."
        shown.append(table(compared, caption, failed))
    return shown


def _by(trial: int, after: str = "") -> Column:
    return trial_column(trial, "by trial", after)


def _difference_cell(first: ArmResult, second: ArmResult, difference: Groups, intervals: Intervals) -> Cell:
    """Return the interval over training seeds and tasks."""
    both = intervals.of(difference)
    return interval_cell(both, "" if both.excludes_zero else " (covers 0)", (first.name, second.name))


def _interval_over_tasks(difference: Groups, intervals: Intervals) -> Cell:
    return interval_cell(intervals.of(mean_over_seeds(difference)))


def _exact_test(first: ArmResult, second: ArmResult, intervals: Intervals) -> Row:
    """Return how many tasks only one of the two arms solved, and the p-value; dashes for means over seeds."""
    p_value = comparison(first, second, intervals).p_value
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    return {
        "only first solved": DASH if p_value is None else int((first_T > second_T).sum()),
        "only second solved": DASH if p_value is None else int((second_T > first_T).sum()),
        "McNemar p": DASH if p_value is None else Cell(words=plain_p(p_value), value=p_value),
    }


def _count(solved: Floats, intervals: Intervals) -> Cell:
    """Return `37: 0.617 [0.500, 0.733]`, sorted by the count; with pooled seeds the count is a mean as well."""
    count = float(mean_over_seeds((solved,)).sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return Cell(words=(unbroken(f"{shown}: {intervals.of(solved)}"),), value=count)


def stopping_rules(results: Sequence[ArmResult]) -> Table:
    return table(
        [
            {
                "arm": arm_cell(arm.name),
                f"a task is given up after {FAILURES_IN_A_ROW} failures in a row": number(
                    arm.share_solved(FAILURES_IN_A_ROW - 1), ".3f"
                ),
                "all stop after the first trial without improvement": number(
                    arm.share_solved(last), ".3f", f", after trial {last}"
                ),
                "all trials": number(arm.share_solved(-1), ".3f"),
            }
            for arm in results
            for last in [last_trial(arm.solved_NT)]
        ],
        "Share of tasks solved under each stopping rule.",
    )


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
    explained = (
        "Comparisons that were fixed before this run played any of its tasks. The result follows the interval with "
        "tasks resampled, and training seeds if there are several."
    )
    if clusters:
        explained += (
            f" The {len(clusters)} tasks form {len(set(clusters))} clusters with similar results: the last column is "
            "the interval with all tasks of a cluster resampled together, which decides nothing."
        )
    first = next(iter(first_trials(rates.all_tasks)))
    sha256 = (store.conditions(first) or {}).get("plan_sha256", "")
    stored = ("The plan has the sha256 ", code(sha256), ", which is stored with every attempt at trial 0.")
    rows = [_planned_row(planned, rates, np.array(clusters)) for planned in comparisons]
    return stored, table(rows, explained, rates.tasks)


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
    interval, result = None, "open"
    if included_T.any():
        interval = rates.intervals.of(difference)
        met = (planned.mean is None or interval.mean >= planned.mean) and (
            planned.low is None or interval.low > planned.low
        )
        result = "open" if first.incomplete or second.incomplete else "met" if met else "missed"
    row: dict[str | Column, str | Cell] = {
        "first arm": arm_cell(first.name),
        "second arm": arm_cell(second.name),
        "solved of, by": number(int(included_T.sum()), after=failed),
        "planned": ", ".join(filter(None, (mean, low))),
        "first - second": DASH if interval is None else interval_cell(interval, arms=(first.name, second.name)),
        "result": result,
    }
    if len(clusters_T):
        row["clusters resampled"] = _interval_by_cluster(difference, clusters_T[included_T], rates.intervals.seed)
    return row


def _interval_by_cluster(difference: Groups, clusters_T: NDArray[np.str_], seed: int) -> str:
    if len(set(clusters_T)) < 2:
        return DASH
    interval = bootstrap_seeds(tuple(map(np.atleast_2d, difference)), seed, clusters_T)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"
