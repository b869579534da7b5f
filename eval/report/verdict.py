"""Headline of the report: a sentence for each arm against the reference, and the effect of unfinished tasks."""

from collections.abc import Sequence

from retroformer.experiment.config import Experiment
from retroformer.markdown import plain

from ..measure.rates import Comparison, Rates, comparison
from ..measure.results import ArmResult
from .rate_tables import shown_p
from .who_played import is_yardstick


def verdict(experiment: Experiment, rates: Rates) -> str:
    """Return a sentence for every other arm, which claims a difference only if its interval and the exact test agree.

    If tasks are unfinished, each sentence also gives the interval with these counted as failures, and the first line
    names the arms whose verdict they change.
    """
    names, reference = [arm.name for arm in rates.finished], reference_of(experiment, rates)
    lines, disputed = [], []
    for name in names:
        if name == reference:
            continue
        shown = f"**{plain(name)}**" + (" (a yardstick)" if is_yardstick(experiment, name) else "")
        compared = [_comparison(arms, name, reference, rates) for arms in rates.views]
        lines.append(f"- {_sentence(shown, f'*{plain(reference)}*', compared, rates)}")
        if len({_relation(one) for one in compared}) > 1:
            disputed.append(f"**{plain(name)}**")
    listed = "\n".join(lines)
    return f"{_warning(rates, disputed)}\n\n{listed}" if rates.unfinished else listed


def reference_of(experiment: Experiment, rates: Rates) -> str:
    """Return the arm to which the others are compared: `eval.reference`, or the first."""
    names = [arm.name for arm in rates.finished]
    return experiment.eval.reference if experiment.eval.reference in names else names[0]


def _comparison(arms: Sequence[ArmResult], name: str, reference: str, rates: Rates) -> Comparison:
    by_name = {arm.name: arm for arm in arms}
    return comparison(by_name[name], by_name[reference], rates.intervals)


def _sentence(shown: str, reference: str, compared: Sequence[Comparison], rates: Rates) -> str:
    first, *with_unfinished = compared
    relation = _relation(first)
    claim = (
        f"{shown} {relation} {reference}"
        if relation
        else f"The data do not show a difference between {shown} and {reference}"
    )
    counted = ", unfinished tasks counted as failures" if rates.unfinished and not with_unfinished else ""
    sentence = f"{claim}: {_numbers(first)}{counted}."
    for of_all in with_unfinished:
        other = _relation(of_all)
        changed = f"it {other} {reference}: " if other else "the data do not show a difference: "
        sentence += f" With unfinished tasks counted as failures, {changed * (other != relation)}{_numbers(of_all)}."
    return sentence


def _relation(compared: Comparison) -> str:
    """Return what is claimed; empty if the data do not show a difference."""
    if not compared.claimed:
        return ""
    return f"solves {'more' if compared.difference.mean > 0 else 'fewer'} tasks than"


def _numbers(compared: Comparison) -> str:
    return f"{compared.difference} ({shown_p(compared)})"


def _warning(rates: Rates, disputed: Sequence[str]) -> str:
    unfinished = f"{rates.unfinished} of {rates.tasks} tasks are unfinished"
    if not rates.finished_tasks:
        return f"{unfinished} in some arm, so arms cannot be compared over finished tasks alone."
    if disputed:
        arms = " and ".join(disputed)
        return f"{unfinished} in some arm, and the verdict on {arms} depends on whether they are counted as failures."
    return f"{unfinished} in some arm; counting them as failures does not change the verdicts."
