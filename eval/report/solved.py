"""Chapters on the tasks that each arm solved, on paired and planned differences, and on stopping rules."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from retroformer.config.sections.eval import PlannedComparison
from retroformer.files import document as doc
from retroformer.run.store import Store

from ..measure import statistics as stats
from ..measure.results import ArmResult, Floats, SeedResult, arms_and_seeds, first_trials
from .report_input import ReportInput, interval_cell, views

_THESE_SEEDS = "with these seeds"
"""Title of a column of intervals over tasks alone, if an arm has training seeds."""
FAILURES_IN_A_ROW = 3
"""Failed attempts after which the agent gives a task up."""


def by_trial(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the shares solved by each trial, and those of the tasks that failed at first."""
    rates = evaluation.rates
    yield doc.chapter("Solved by trial", *views(rates, lambda arms: [solved_by_trial(arms)]))
    if evaluation.experiment.loop.trials < 2 or not stats.first_failures(rates.all_tasks).any():
        return

    def counted(arms: Sequence[ArmResult]) -> list[doc.Part]:
        count = doc.Paragraph(words=f"Not solved at trial 0: {stats.first_failures(arms).sum()}.")
        return [*([count] if rates.unfinished else []), *solved_of_failed(arms)]

    failed = "" if rates.unfinished else f"{stats.first_failures(rates.finished).sum()} "
    yield doc.chapter(f"Solved of the {failed}tasks that failed at trial 0", *views(rates, counted))


def differences(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    rates = evaluation.rates
    if len(evaluation.results) > 1:
        shown = views(rates, lambda arms: [paired_differences(arms), *return_differences(arms)])
        yield doc.chapter("Differences after the last trial, paired by task", *shown)


def planned_comparisons(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    if comparisons := evaluation.experiment.eval.comparisons:
        parts = planned_results(comparisons, evaluation.rates, evaluation.store, evaluation.clusters)
        yield doc.chapter("Planned comparisons", *parts)


def stopping(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield where each arm would have stopped, if there are enough trials for a rule to matter.

    The rules are from section 4.2 of Reflexion and section 2 of its first version. The trials after that point are
    played anyway, so one run shows the whole curve and every rule.
    """
    if len(evaluation.results[0].solved_NT) > FAILURES_IN_A_ROW:
        yield doc.chapter("Stopping rules", *views(evaluation.rates, lambda arms: [stopping_rules(arms)]))


def solved_by_trial(results: Sequence[ArmResult]) -> doc.Table:
    """Return the share solved by trial of every arm, followed by its training seeds if it pools several."""
    return doc.table(
        [
            {
                "arm": doc.arm_cell(result.name),
                **shares_by_trial(result),
                "last return": doc.number(float(result.return_NT[-1].mean()), ".3f"),
                "unfinished": result.incomplete if isinstance(result, ArmResult) else "",
                "invalid attempts": result.invalid,
                "tokens in": doc.number(result.usage.prompt_tokens, ","),
                "tokens out": doc.number(result.usage.completion_tokens, ","),
                "dollars": doc.number(result.usage.dollars, ".2f"),
            }
            for result in arms_and_seeds(results)
        ],
        "Share of tasks solved by each trial, and what it cost.",
    )


def shares_by_trial(result: ArmResult | SeedResult) -> doc.Row:
    """Return the share of tasks that an arm or training seed solved by each trial, with its interval."""
    trials = range(len(result.solved_NT))
    return {_by(trial): interval_cell(stats.bootstrap(result.solved_by(trial))) for trial in trials}


def paired_differences(results: Sequence[ArmResult]) -> doc.Table:
    """Return differences after the last trial over all tasks, with the exact test of arms without training seeds."""
    pooled = any(arm.pooled for arm in results)
    return doc.table(
        [
            {
                "first arm": doc.arm_cell(first.name),
                "second arm": doc.arm_cell(second.name),
                "first - second": _difference_cell(first, second, compared.difference),
                **({_THESE_SEEDS: _these_seeds(first, second)} if pooled else {}),
                **_exact_test(first, second, compared.p_value),
            }
            for first, second in stats.arm_pairs(results)
            for compared in [stats.comparison(first, second)]
        ],
        "Differences in the share of tasks solved by the last trial.",
    )


def return_differences(results: Sequence[ArmResult]) -> Iterator[doc.Table]:
    """Yield the differences of graded returns, such as a score from 0 to 1; nothing if every task is solved or not."""
    if all(np.isin(arm.returns_by(-1), (0.0, 1.0)).all() for arm in results):
        return
    yield doc.table(
        [
            {
                "first arm": doc.arm_cell(first.name),
                "second arm": doc.arm_cell(second.name),
                "first - second": interval_cell(stats.bootstrap(difference), arms=(first.name, second.name)),
                "only first higher": int((one_T > 0).sum()),
                "only second higher": int((one_T < 0).sum()),
                "randomisation p": doc.DASH if first.pooled or second.pooled else _p_cell(stats.sign_flip(one_T)),
            }
            for first, second in stats.arm_pairs(results)
            for difference in [stats.difference(first.returns_by(-1), second.returns_by(-1))]
            for one_T in [stats.mean_over_seeds(difference)]
        ],
        "Differences in the return after the last trial, with the test of random signs.",
    )


def _p_cell(p_value: float) -> doc.Cell:
    return doc.Cell(words=stats.plain_p(p_value), value=p_value)


def solved_of_failed(results: Sequence[ArmResult]) -> list[doc.Part]:
    """Return how many of the tasks that failed at trial 0 each arm solved later, by each trial."""
    failed_T = stats.first_failures(results)
    if not failed_T.any():
        return [doc.Paragraph(words="No task failed at trial 0.")]
    trials, failed = range(1, len(results[0].solved_NT)), int(failed_T.sum())

    def counts(result: ArmResult | SeedResult) -> doc.Row:
        return {_by(trial): _count(result.solved_by(trial)[..., failed_T]) for trial in trials}

    shown: list[doc.Part] = []
    if own := [doc.emphasis(arm.name) for arm in results if not arm.shares_first]:
        shared = doc.emphasis(stats.shared_first_arm(results).name)
        others = ". Arms that played another trial 0, and may have solved such a task at once: "
        words = ("These tasks failed at the trial 0 of ", shared, others, *doc.join_words(", ", own), ".")
        shown.append(doc.Paragraph(words=words))
    caption = "Number and share of the tasks failed at trial 0 that were solved later."
    solved = [{"arm": doc.arm_cell(result.name), **counts(result)} for result in arms_and_seeds(results)]
    shown.append(doc.table(solved, caption, failed))
    return shown


def _by(trial: int) -> doc.Column:
    return doc.trial_column(trial, "by trial")


def _difference_cell(first: ArmResult, second: ArmResult, both: stats.MeanInterval) -> doc.Cell:
    """Return the interval over training seeds and tasks."""
    return interval_cell(both, "" if both.excludes_zero else " (covers 0)", (first.name, second.name))


def _these_seeds(first: ArmResult, second: ArmResult) -> doc.Cell:
    """Return the interval over tasks alone."""
    difference = stats.difference(first.solved_by(-1), second.solved_by(-1))
    return interval_cell(stats.bootstrap(stats.mean_over_seeds(difference)))


def _exact_test(first: ArmResult, second: ArmResult, p_value: float | None) -> doc.Row:
    """Return how many tasks only one of the two arms solved, and the p-value; dashes for means over seeds."""
    if p_value is None:
        return {"only first solved": doc.DASH, "only second solved": doc.DASH, "McNemar p": doc.DASH}
    difference_T = first.solved_NT[-1] - second.solved_NT[-1]
    return {
        "only first solved": int((difference_T > 0).sum()),
        "only second solved": int((difference_T < 0).sum()),
        "McNemar p": _p_cell(p_value),
    }


def _count(solved: Floats) -> doc.Cell:
    """Return `37: 0.617 [0.500, 0.733]`, sorted by the count; with pooled seeds the count is a mean as well."""
    count = float(stats.mean_over_seeds((solved,)).sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return doc.Cell(words=(doc.unbroken(f"{shown}: {stats.bootstrap(solved)}"),), value=count)


def stopping_rules(results: Sequence[ArmResult]) -> doc.Table:
    return doc.table(
        [
            {
                "arm": doc.arm_cell(arm.name),
                f"a task is given up after {FAILURES_IN_A_ROW} failures in a row": doc.number(
                    arm.share_solved(FAILURES_IN_A_ROW - 1), ".3f"
                ),
                "all stop after the first trial without improvement": doc.number(
                    arm.share_solved(last), ".3f", f", after trial {last}"
                ),
                "all trials": doc.number(arm.share_solved(-1), ".3f"),
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
    comparisons: tuple[PlannedComparison, ...], rates: stats.Rates, store: Store, clusters: Sequence[str] = ()
) -> tuple[doc.Words, doc.Part]:
    """Return where the plan is stored, and the result of each planned comparison over all tasks.

    A result is open while an arm has unfinished tasks, which count as failures in the difference, and if no task
    counts. `clusters` are those of the tasks; empty: all tasks are independent.
    """
    explained = (
        "Comparisons of returns, which are 1 for a task won and 0 for one lost unless the environment grades. They "
        "were fixed before this run played any of its tasks. The result follows the interval with tasks resampled, and "
        "training seeds if there are several."
    )
    if clusters:
        explained += (
            f" The {len(clusters)} tasks form {len(set(clusters))} clusters with similar results: the last column is "
            "the interval with all tasks of a cluster resampled together, which decides nothing."
        )
    first = next(iter(first_trials(rates.all_tasks)))
    sha256 = (store.conditions(first) or {}).get("plan_sha256", "")
    stored = ("The plan has the sha256 ", doc.code(sha256), ", which is stored with every attempt at trial 0.")
    rows = [planned_row(planned, rates, np.array(clusters)) for planned in comparisons]
    return stored, doc.table(rows, explained, rates.tasks)


def planned_row(planned: PlannedComparison, rates: stats.Rates, clusters_T: NDArray[np.str_]) -> doc.Row:
    """Return a planned comparison with its result; `clusters_T` are the clusters of the tasks, or none."""
    arms = {arm.name: arm for arm in rates.all_tasks}
    first, second = arms[planned.first], arms[planned.second]
    included_T = stats.first_failures(rates.all_tasks)
    trial, by = -1, "the last trial"
    if planned.trial is not None:
        trial, by = planned.trial, f"trial {planned.trial}"
    difference = stats.difference(*(arm.returns_by(trial)[..., included_T] for arm in (first, second)))
    of_shared = (
        "" if first.shares_first and second.shares_first else f" of {stats.shared_first_arm(rates.all_tasks).name}"
    )
    failed = f" tasks that failed at trial 0{of_shared}, by {by}"
    mean = None if planned.mean is None else f"mean at least {planned.mean:g}"
    low = None if planned.low is None else f"lower bound above {planned.low:g}"
    interval, result = None, "open"
    if included_T.any():
        interval = stats.bootstrap(difference)
        met = (planned.mean is None or interval.mean >= planned.mean) and (
            planned.low is None or interval.low > planned.low
        )
        result = "open" if first.incomplete or second.incomplete else "met" if met else "missed"
    row: dict[str | doc.Column, str | doc.Cell] = {
        "first arm": doc.arm_cell(first.name),
        "second arm": doc.arm_cell(second.name),
        "compared on": doc.number(int(included_T.sum()), after=failed),
        "planned": ", ".join(filter(None, (mean, low))),
        "first - second": doc.DASH if interval is None else interval_cell(interval, arms=(first.name, second.name)),
        "result": result,
    }
    if len(clusters_T):
        row["clusters resampled"] = _interval_by_cluster(difference, clusters_T[included_T])
    return row


def _interval_by_cluster(difference: stats.Groups, clusters_T: NDArray[np.str_]) -> str:
    if len(set(clusters_T)) < 2:
        return doc.DASH
    interval = stats.bootstrap(difference, clusters_T)
    return f"[{interval.low:.3f}, {interval.high:.3f}]"
