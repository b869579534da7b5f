"""The numbers of the report as tables: what each arm solved by which trial, and what two arms differ in."""

from collections.abc import Iterable, Sequence
from itertools import combinations

from eval.findings import Findings
from eval.outcome import ArmOutcome, SeedOutcome
from eval.statistics import Floats, Interval, bootstrap, mcnemar
from eval.table import table

_SMALLEST_P = 0.0001
"""A smaller p-value is said to be smaller."""


def solved_by_trial(findings: Findings) -> str:
    """Every arm; below an arm that pools training seeds each of them."""
    trials = [f"by trial {index}" for index in range(findings.experiment.loop.trials)]
    header = ["arm", *trials, "last return", "unfinished", "invalid attempts", "tokens in", "tokens out", "dollars"]
    return table(header, _rows(findings))


def paired_differences(findings: Findings) -> str:
    """Of all tasks after the last trial, with the exact test where both arms have one training seed."""
    header = ["first arm", "second arm", "first - second", "only first solved", "only second solved", "McNemar p"]
    rows = [
        [first.name, second.name, _difference(first.solved_NT[-1] - second.solved_NT[-1], findings), *tested]
        for first, second in _pairs(findings.outcomes)
        for tested in [_tested(first, second)]
    ]
    return table(header, rows)


def failed_at_first(findings: Findings) -> int:
    """How many tasks trial 0 left to be solved."""
    return int((findings.outcomes[0].solved_NT[0] == 0).sum())


def solved_of_failed(findings: Findings) -> str:
    """Of the tasks that failed at trial 0: solved by each later trial, and what two arms differ in."""
    failed_T = findings.outcomes[0].solved_NT[0] == 0
    trials = findings.experiment.loop.trials
    seed = findings.experiment.seed
    rows = [
        [one.name, *(_count(solved_T[failed_T], seed) for solved_T in one.solved_NT[1:])]
        for one in _with_seeds(findings.outcomes)
    ]
    differences = [
        [first.name, second.name, _difference((first.solved_NT[-1] - second.solved_NT[-1])[failed_T], findings)]
        for first, second in _pairs(findings.outcomes)
    ]
    solved = table(["arm", *(f"by trial {index}" for index in range(1, trials))], rows)
    return f"{solved}\n\n{table(['first arm', 'second arm', 'first - second'], differences)}" if differences else solved


def difference_after_last(first: ArmOutcome, second: ArmOutcome, seed: int) -> Interval:
    """Of the shares of all tasks solved by the last trial, paired by task."""
    return bootstrap(first.solved_NT[-1] - second.solved_NT[-1], seed)


def _rows(findings: Findings) -> Iterable[list[str]]:
    for arm in findings.outcomes:
        yield _row(arm, findings, unfinished=str(arm.incomplete))
        for seed in arm.seeds if arm.pooled else ():
            yield _row(seed, findings, unfinished="")


def _row(one: ArmOutcome | SeedOutcome, findings: Findings, unfinished: str) -> list[str]:
    return [
        one.name,
        *(str(bootstrap(solved_T, findings.experiment.seed)) for solved_T in one.solved_NT),
        f"{one.return_NT[-1].mean():.3f}",
        unfinished,
        str(one.invalid),
        f"{one.usage.prompt_tokens:,}",
        f"{one.usage.completion_tokens:,}",
        f"{one.usage.dollars:.2f}",
    ]


def _with_seeds(outcomes: Sequence[ArmOutcome]) -> Iterable[ArmOutcome | SeedOutcome]:
    for arm in outcomes:
        yield arm
        yield from arm.seeds if arm.pooled else ()


def _pairs(outcomes: Sequence[ArmOutcome]) -> list[tuple[ArmOutcome, ArmOutcome]]:
    """Every two arms once, the later of the page first, so that a gain of the trained over the frozen is positive."""
    return [(second, first) for first, second in combinations(outcomes, 2)]


def _difference(values_T: Floats, findings: Findings) -> str:
    interval = bootstrap(values_T, findings.experiment.seed)
    return f"{interval}" + ("" if interval.excludes_zero else " (covers 0)")


def _tested(first: ArmOutcome, second: ArmOutcome) -> list[str]:
    """Tasks that one of the two arms solved alone; a mean over seeds solves no task, so there is nothing to count."""
    if first.pooled or second.pooled:
        return ["-", "-", "-"]
    first_T, second_T = first.solved_NT[-1], second.solved_NT[-1]
    p_value = mcnemar(first_T, second_T)
    return [
        str(int(((first_T == 1) & (second_T == 0)).sum())),
        str(int(((first_T == 0) & (second_T == 1)).sum())),
        f"{p_value:.4f}" if p_value >= _SMALLEST_P else f"< {_SMALLEST_P}",
    ]


def _count(solved_T: Floats, seed: int) -> str:
    """`37: 0.617 [0.500, 0.733]`; the count is a mean, too, where seeds are pooled."""
    count = float(solved_T.sum())
    shown = f"{count:.0f}" if count == round(count) else f"{count:.1f}"
    return f"{shown}: {bootstrap(solved_T, seed)}"
