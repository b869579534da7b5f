"""Chapters on the tasks that each arm solved by each trial, on paired differences, and on stopping rules."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from retroformer.files.document import (
    DASH,
    Cell,
    Chapter,
    Paragraph,
    Part,
    StyledText,
    Table,
    arm_cell,
    chapter,
    emphasis,
    joined,
    number,
    table,
    trial_columns,
    unbroken,
)

from ..measure.rates import (
    Comparison,
    Rates,
    among,
    arm_pairs,
    comparison,
    failed_at_first,
    paired_difference,
    sharing,
    with_seeds,
    with_these_seeds,
)
from ..measure.results import ArmResult, SeedResult, first_without_gain
from ..measure.statistics import Floats, Groups, Intervals, MeanInterval
from .evaluation import Evaluated

FAILURES_IN_A_ROW = 3
"""Failed attempts after which the agent gives a task up."""
_SMALLEST_P = 0.0001
"""Smallest p-value that is printed as a number."""


def by_trial(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the shares solved by each trial, and those of the tasks that failed at first."""
    rates = evaluated.rates
    yield chapter("Solved by trial", *views(rates, lambda arms: [solved_by_trial(arms, rates.intervals)]))
    if evaluated.experiment.loop.trials < 2 or not failed_at_first(rates.all_tasks).any():
        return
    if not rates.unfinished:
        title = f"Solved of the {failed_at_first(rates.finished).sum()} tasks that failed at trial 0"
        yield chapter(title, *solved_of_failed(rates.finished, rates.intervals))
        return

    def counted(arms: Sequence[ArmResult]) -> list[Part]:
        count = Paragraph(words=f"Not solved at trial 0: {failed_at_first(arms).sum()}.")
        return [count, *solved_of_failed(arms, rates.intervals)]

    yield chapter("Solved of the tasks that failed at trial 0", *views(rates, counted))


def differences(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield the paired differences of all arms."""
    rates = evaluated.rates
    if len(evaluated.results) > 1:
        shown = views(rates, lambda arms: [paired_differences(arms, rates.intervals)])
        yield chapter("Differences after the last trial, paired by task", *shown)


def stopping(evaluated: Evaluated) -> Iterator[Chapter]:
    """Yield where each arm would have stopped, if there are enough trials for a rule to matter.

    The rules are from section 4.2 of Reflexion and section 2 of its first version. The trials after that point are
    played anyway, so one run shows the whole curve and every rule.
    """
    if len(evaluated.results[0].solved_NT) > FAILURES_IN_A_ROW:
        yield chapter("Stopping rules", *views(evaluated.rates, lambda arms: [stopping_rules(arms)]))


def views(rates: Rates, build: Callable[[Sequence[ArmResult]], Iterable[Part]]) -> list[Part]:
    """Return the parts once if every arm finished every task, else for each choice of tasks below a sentence."""
    if not rates.unfinished:
        return list(build(rates.finished))
    parts: list[Part] = [Paragraph(words="No task was finished by every arm.")]
    if rates.finished_tasks:
        parts = [Paragraph(words=f"Over the {rates.finished_tasks} tasks that every arm finished:")]
        parts += build(rates.finished)
    parts.append(Paragraph(words=f"Over all {rates.tasks} tasks, unfinished ones counted as failures:"))
    for part in build(rates.all_tasks):
        of_all = isinstance(part, Table) and part.tasks is None
        parts.append(part.model_copy(update={"tasks": rates.tasks}) if of_all else part)
    return parts


def solved_by_trial(results: Sequence[ArmResult], intervals: Intervals) -> Table:
    """Return the share solved by trial of every arm, followed by its training seeds if it pools several."""
    trials = trial_columns(range(len(results[0].solved_NT)), "by trial")
    costs = ("last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars")
    caption = "Share of tasks solved by each trial, and what it cost."
    return table(["arm", *trials, *costs], _rows(results, intervals), caption)


def _rows(results: Sequence[ArmResult], intervals: Intervals) -> Iterator[list[str | Cell]]:
    for arm in results:
        yield _row(arm, intervals, number(arm.incomplete))
        for seed in arm.seeds if arm.pooled else ():
            yield _row(seed, intervals, "")


def _row(result: ArmResult | SeedResult, intervals: Intervals, unfinished: str | Cell) -> list[str | Cell]:
    return [
        arm_cell(result.name),
        *(interval_cell(intervals.of(result.solved_by(trial))) for trial in range(len(result.solved_NT))),
        number(float(result.return_NT[-1].mean()), ".3f"),
        unfinished,
        number(result.invalid),
        number(result.usage.prompt_tokens, ","),
        number(result.usage.completion_tokens, ","),
        number(result.usage.dollars, ".2f"),
    ]


def paired_differences(results: Sequence[ArmResult], intervals: Intervals) -> Table:
    """Return differences after the last trial over all tasks, with the exact test of arms without training seeds."""
    seeds = _seeds_column(results)
    rows = [
        [
            arm_cell(first.name),
            arm_cell(second.name),
            *_differences(first, second, paired_difference(first, second), intervals, seeds),
            *_only_one_solved(first, second),
            _p_value(comparison(first, second, intervals)),
        ]
        for first, second in arm_pairs(results)
    ]
    counts = ["only first solved", "only second solved", "McNemar p"]
    header = ["first arm", "second arm", "first - second", *seeds, *counts]
    return table(header, rows, "Differences in the share of tasks solved by the last trial.")


def solved_of_failed(results: Sequence[ArmResult], intervals: Intervals) -> list[Part]:
    """Return how many of the tasks that failed at trial 0 each arm solved later, and the differences between arms."""
    failed_T = failed_at_first(results)
    if not failed_T.any():
        return [Paragraph(words="No task failed at trial 0.")]
    trials, seeds = range(1, len(results[0].solved_NT)), _seeds_column(results)
    rows = [
        [
            arm_cell(result.name),
            *(_count(result.solved_by(trial)[..., failed_T], intervals) for trial in trials),
        ]
        for result in with_seeds(results)
    ]
    compared = [
        [arm_cell(first.name), arm_cell(second.name)]
        + [
            cell
            for trial in trials
            for difference in [among(paired_difference(first, second, trial), failed_T)]
            for cell in _differences(first, second, difference, intervals, seeds)
        ]
        for first, second in arm_pairs(results)
    ]
    solved = table(
        ["arm", *trial_columns(trials, "by trial")],
        rows,
        "Number and share of the tasks failed at trial 0 that were solved later.",
        int(failed_T.sum()),
    )
    columns = [
        column.model_copy(update={"title": f"{column.title}{more}"})
        for column in trial_columns(trials, "by trial")
        for more in ("", *(f", {title}" for title in seeds))
    ]
    caption = "Differences in the share of these tasks solved, first arm minus second arm."
    shown: list[Part] = [*_unshared(results), solved]
    if compared:
        shown.append(table(["first arm", "second arm", *columns], compared, caption, int(failed_T.sum())))
    return shown


def _unshared(results: Sequence[ArmResult]) -> Iterator[Paragraph]:
    """Yield a sentence about the arms whose first attempts these failures are not."""
    if own := [emphasis(arm.name) for arm in results if not arm.shares_first]:
        shared = emphasis(sharing(results).name)
        others = ". Arms that played another trial 0, and may have solved such a task at once: "
        yield Paragraph(words=("These tasks failed at the trial 0 of ", shared, others, *joined(", ", own), "."))


def _seeds_column(results: Sequence[ArmResult]) -> list[str]:
    """Return the title of a second column of intervals, over tasks alone; none without training seeds."""
    return ["with these seeds"] if any(arm.pooled for arm in results) else []


def _differences(
    first: ArmResult, second: ArmResult, difference: Groups, intervals: Intervals, seeds: Sequence[str]
) -> list[Cell]:
    """Return the interval over training seeds and tasks, and the one over tasks alone if there is a column for it."""
    both, alone = intervals.of(difference), intervals.of(with_these_seeds(difference))
    compared = interval_cell(both, "" if both.excludes_zero else " (covers 0)", (first.name, second.name))
    return [compared, *(interval_cell(alone) for _ in seeds)]


def interval_cell(interval: MeanInterval, after: str = "", arms: tuple[str, ...] = ()) -> Cell:
    """Return a mean with its interval, followed by a text."""
    return Cell(words=(unbroken(str(interval)), after), value=interval.mean, arms=arms)


def _only_one_solved(first: ArmResult, second: ArmResult) -> list[str | Cell]:
    """Return how many tasks only one of the two arms solved; dashes for means over seeds."""
    if first.pooled or second.pooled:
        return [DASH, DASH]
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    return [number(int((one_T > other_T).sum())) for one_T, other_T in ((first_T, second_T), (second_T, first_T))]


def shown_p(compared: Comparison) -> StyledText:
    """Return the p-value of the exact test, such as `p = 0.0312`."""
    value = plain_p(compared.p_value or 0.0)
    return unbroken(f"p {value}" if value.startswith("<") else f"p = {value}")


def _p_value(compared: Comparison) -> str | Cell:
    """Return the p-value without its name; a dash without one."""
    return DASH if compared.p_value is None else Cell(words=plain_p(compared.p_value), value=compared.p_value)


def plain_p(p_value: float) -> str:
    return f"{p_value:.4f}" if p_value >= _SMALLEST_P else f"< {_SMALLEST_P}"


def _count(solved: Floats, intervals: Intervals) -> Cell:
    """Return `37: 0.617 [0.500, 0.733]`, sorted by the count; with pooled seeds the count is a mean as well."""
    count = float(with_these_seeds((solved,)).sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return Cell(words=(unbroken(f"{shown}: {intervals.of(solved)}"),), value=count)


def stopping_rules(results: Sequence[ArmResult]) -> Table:
    """Return the share solved under each rule."""
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
    last = first_without_gain(solved_NT.mean(axis=1))
    return len(solved_NT) - 1 if last is None else last
