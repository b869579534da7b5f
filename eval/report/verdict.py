"""Headline of the report: a sentence for each arm against the reference, and the effect of unfinished tasks."""

from collections.abc import Sequence

from retroformer.experiment.config import Experiment

from ..measure.rates import Rates, difference_after_last
from ..measure.results import ArmResult
from ..measure.statistics import MeanInterval
from .who_played import is_yardstick


def verdict(experiment: Experiment, rates: Rates) -> str:
    """Return a sentence for every other arm from its paired interval, with a note if the interval covers 0.

    If tasks are unfinished, each sentence also gives the interval with these counted as failures, and the first line
    names the arms whose verdict they change.
    """
    names = [arm.name for arm in rates.finished]
    reference = experiment.eval.reference if experiment.eval.reference in names else names[0]
    lines, disputed = [], []
    for name in names:
        if name == reference:
            continue
        judged = [_difference(arms, name, reference, rates) for arms in rates.views]
        shown = f"**{name}**" + (" (a yardstick)" if is_yardstick(experiment, name) else "")
        lines.append(f"- {shown} {_sentence(judged, reference, rates)}")
        if len({_relation(interval) for interval in judged}) > 1:
            disputed.append(f"**{name}**")
    listed = "\n".join(lines)
    return f"{_warning(rates, disputed)}\n\n{listed}" if rates.unfinished else listed


def _difference(arms: Sequence[ArmResult], name: str, reference: str, rates: Rates) -> MeanInterval:
    by_name = {arm.name: arm for arm in arms}
    return difference_after_last(by_name[name], by_name[reference], rates.intervals)


def _sentence(judged: Sequence[MeanInterval], reference: str, rates: Rates) -> str:
    if len(judged) == 1:
        counted = ", unfinished tasks counted as failures" if rates.unfinished else ""
        return f"{_relation(judged[0])} *{reference}*: {_shown(judged[0])}{counted}."
    finished, of_all = judged
    same = _relation(finished) == _relation(of_all)
    relation = "" if same else f"it {_relation(of_all)} *{reference}*: "
    return (
        f"{_relation(finished)} *{reference}*: {_shown(finished)}. With unfinished tasks counted as failures, "
        f"{relation}{_shown(of_all)}."
    )


def _relation(interval: MeanInterval) -> str:
    if interval.low > 0:
        return "solves more tasks than"
    return "solves fewer tasks than" if interval.high < 0 else "shows no significant difference from"


def _shown(interval: MeanInterval) -> str:
    return f"{interval}" + ("" if interval.excludes_zero else "; the interval covers 0")


def _warning(rates: Rates, disputed: Sequence[str]) -> str:
    unfinished = f"{rates.unfinished} of {rates.tasks} tasks are unfinished"
    if not rates.finished_tasks:
        return f"{unfinished} in some arm, so arms cannot be compared over finished tasks alone."
    if disputed:
        arms = " and ".join(disputed)
        return f"{unfinished} in some arm, and the verdict on {arms} depends on whether they are counted as failures."
    return f"{unfinished} in some arm; counting them as failures does not change the verdicts."
