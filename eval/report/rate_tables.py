"""Tables of tasks solved by each arm and trial, and of paired differences between arms."""

from collections.abc import Callable, Iterable, Sequence

from retroformer.markdown import plain, table

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
from ..measure.results import ArmResult, SeedResult
from ..measure.statistics import Floats, Groups, Intervals, MeanInterval

_SMALLEST_P = 0.0001
"""Smallest p-value that is printed as a number."""


def shown_p(compared: Comparison) -> str:
    """Render the p-value of the exact test, such as `p = 0.0312`; empty without one."""
    value = _number(compared)
    return "" if compared.p_value is None else f"p {value}" if value.startswith("<") else f"p = {value}"


def render_views(rates: Rates, render: Callable[[Sequence[ArmResult]], str]) -> str:
    """Render one table if every arm finished every task, else one for each choice of tasks with a heading."""
    if not rates.unfinished:
        return render(rates.finished)
    finished = (
        f"Over the {rates.finished_tasks} tasks that every arm finished:\n\n{render(rates.finished)}"
        if rates.finished_tasks
        else "No task was finished by every arm."
    )
    return (
        f"{finished}\n\nOver all {rates.tasks} tasks, unfinished ones counted as failures:\n\n{render(rates.all_tasks)}"
    )


def solved_by_trial(results: Sequence[ArmResult], intervals: Intervals) -> str:
    """Render the share solved by trial of every arm, followed by its training seeds if it pools several."""
    trials = [f"by trial {index}" for index in range(len(results[0].solved_NT))]
    header = ["arm", *trials, "last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars"]
    return table(header, _rows(results, intervals), "Share of tasks solved by each trial, and what it cost.")


def paired_differences(results: Sequence[ArmResult], intervals: Intervals) -> str:
    """Render differences after the last trial over all tasks, with the exact test of arms without training seeds."""
    seeds = _seeds_column(results)
    counts = ["only first solved", "only second solved", "McNemar p"]
    rows = [
        [
            plain(first.name),
            plain(second.name),
            *_differences(paired_difference(first, second), intervals, seeds),
            *_only_one_solved(first, second),
            _number(comparison(first, second, intervals)),
        ]
        for first, second in arm_pairs(results)
    ]
    header = ["first arm", "second arm", "first - second", *seeds, *counts]
    return table(header, rows, "Differences in the share of tasks solved by the last trial.")


def solved_of_failed(results: Sequence[ArmResult], intervals: Intervals) -> str:
    """Render how many of the tasks that failed at trial 0 each arm solved later, and the differences between arms."""
    failed_T = failed_at_first(results)
    if not failed_T.any():
        return "No task failed at trial 0."
    trials, seeds = len(results[0].solved_NT), _seeds_column(results)
    rows = [
        [
            plain(result.name),
            *(_count(result.solved_by(trial)[..., failed_T], intervals) for trial in range(1, trials)),
        ]
        for result in with_seeds(results)
    ]
    differences = [
        [
            plain(first.name),
            plain(second.name),
            *(
                cell
                for trial in range(1, trials)
                for cell in _differences(among(paired_difference(first, second, trial), failed_T), intervals, seeds)
            ),
        ]
        for first, second in arm_pairs(results)
    ]
    by_trial = [f"by trial {index}" for index in range(1, trials)]
    solved = table(["arm", *by_trial], rows, "Number and share of the tasks failed at trial 0 that were solved later.")
    columns = [title for trial in by_trial for title in (trial, *(f"{trial}, {column}" for column in seeds))]
    caption = "Differences in the share of these tasks solved, first arm minus second arm."
    compared = table(["first arm", "second arm", *columns], differences, caption)
    return "\n\n".join([*_unshared(results), solved, *([compared] if differences else [])])


def _unshared(results: Sequence[ArmResult]) -> Iterable[str]:
    """Yield a sentence about the arms whose first attempts these failures are not."""
    own = [f"*{plain(arm.name)}*" for arm in results if not arm.shares_first]
    if not own:
        return
    yield (
        f"These tasks failed at the trial 0 of *{plain(sharing(results).name)}*. Arms that played another trial 0, and "
        f"may have solved such a task at once: {', '.join(own)}."
    )


def _rows(results: Sequence[ArmResult], intervals: Intervals) -> Iterable[list[str]]:
    for arm in results:
        yield _row(arm, intervals, unfinished=str(arm.incomplete))
        for seed in arm.seeds if arm.pooled else ():
            yield _row(seed, intervals, unfinished="")


def _row(result: ArmResult | SeedResult, intervals: Intervals, unfinished: str) -> list[str]:
    return [
        plain(result.name),
        *(str(intervals.of(result.solved_by(trial))) for trial in range(len(result.solved_NT))),
        f"{result.return_NT[-1].mean():.3f}",
        unfinished,
        str(result.invalid),
        f"{result.usage.prompt_tokens:,}",
        f"{result.usage.completion_tokens:,}",
        f"{result.usage.dollars:.2f}",
    ]


def _seeds_column(results: Sequence[ArmResult]) -> list[str]:
    """Return the title of a second column of intervals, over tasks alone; none without training seeds."""
    return ["with these seeds"] if any(arm.pooled for arm in results) else []


def _differences(difference: Groups, intervals: Intervals, seeds: Sequence[str]) -> list[str]:
    """Render the interval over training seeds and tasks, and the one over tasks alone if there is a column for it."""
    alone = intervals.of(with_these_seeds(difference))
    return [_shown(intervals.of(difference)), *(str(alone) for _ in seeds)]


def _shown(interval: MeanInterval) -> str:
    return f"{interval}" + ("" if interval.excludes_zero else " (covers 0)")


def _only_one_solved(first: ArmResult, second: ArmResult) -> list[str]:
    """Return how many tasks only one of the two arms solved; dashes for means over seeds."""
    if first.pooled or second.pooled:
        return ["-", "-"]
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    return [str(int((one_T > other_T).sum())) for one_T, other_T in ((first_T, second_T), (second_T, first_T))]


def _number(compared: Comparison) -> str:
    """Render the p-value without its name; a dash without one."""
    if compared.p_value is None:
        return "-"
    return f"{compared.p_value:.4f}" if compared.p_value >= _SMALLEST_P else f"< {_SMALLEST_P}"


def _count(solved: Floats, intervals: Intervals) -> str:
    """Render `37: 0.617 [0.500, 0.733]`; with pooled seeds the count is a mean as well."""
    count = float(with_these_seeds((solved,)).sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return f"{shown}: {intervals.of(solved)}"
