"""Headline of the report: a sentence for each arm against the reference, and the effect of unfinished tasks."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from retroformer.experiment.config import Experiment
from retroformer.markdown import plain

from ..measure.rates import Comparison, Rates, comparison
from ..measure.results import ArmResult
from .rate_tables import shown_p
from .who_played import is_yardstick


class Measured(NamedTuple):
    """What an arm solved, and how that compares with another arm."""

    share: float
    """Share of the tasks solved by the last trial."""
    tasks: int
    attempts: int
    compared: Comparison

    @property
    def relation(self) -> str:
        """The claim, `more` or `fewer`; empty if the data do not show a difference."""
        if not self.compared.claimed:
            return ""
        return "more" if self.compared.difference.mean > 0 else "fewer"

    @property
    def solved(self) -> str:
        attempts = f"{self.attempts} attempts" if self.attempts > 1 else "one attempt"
        return f"{self.share:.1%} of {self.tasks} tasks within {attempts}"

    @property
    def interval(self) -> str:
        """The interval in points of the claim, with the p-value if there is one."""
        low, high = (100 * bound for bound in self.compared.difference[1:])
        low, high = (-high, -low) if self.relation == "fewer" else (low, high)
        resampled = "tasks" if self.compared.p_value is not None else "training seeds and tasks"
        p_value = f"; {shown_p(self.compared)}" if self.compared.p_value is not None else ""
        return f"(95% interval over {resampled}: {low:.1f} to {high:.1f}{p_value})"

    @property
    def points(self) -> str:
        return f"{100 * abs(self.compared.difference.mean):.1f} points {self.relation}"


def verdict(experiment: Experiment, rates: Rates) -> str:
    """Return a sentence for every other arm, which claims a difference only if its interval excludes 0.

    Of two models the exact test must agree. The last sentences compare each arm of `eval.examples` with the one before
    it, such as a stage of training with the stage that it started from. If tasks are unfinished, each sentence also
    gives the interval with these counted as failures, and the first line names the arms whose verdict they change.
    """
    reference = reference_of(experiment, rates)
    pairs = [(arm.name, reference) for arm in rates.finished if arm.name != reference]
    pairs += [
        (after, before) for before, after in pairwise(experiment.eval.examples or ()) if (after, before) not in pairs
    ]
    lines, disputed = [], []
    for name, other in pairs:
        shown = f"**{plain(name)}**" + (" (a yardstick)" if is_yardstick(experiment, name) else "")
        measured = [_measured(arms, name, other, rates) for arms in rates.views]
        lines.append(f"- {_sentences(shown, f'*{plain(other)}*', measured, rates)}")
        if len({one.relation for one in measured}) > 1 and f"**{plain(name)}**" not in disputed:
            disputed.append(f"**{plain(name)}**")
    listed = "\n".join(lines)
    return f"{_warning(rates, disputed)}\n\n{listed}" if rates.unfinished else listed


def reference_of(experiment: Experiment, rates: Rates) -> str:
    """Return the arm to which the others are compared: `eval.reference`, or the first."""
    names = [arm.name for arm in rates.finished]
    return experiment.eval.reference if experiment.eval.reference in names else names[0]


def sentence(first: str, second: str, measured: Measured, condition: str = "") -> str:
    """Return a sentence that can be quoted without the rest of the report."""
    if measured.relation:
        return f"{first} solves {measured.solved}{condition}, {measured.points} than {second} {measured.interval}."
    no_difference = f"The data do not show a difference between {first} ({measured.solved}{condition}) and {second}"
    return f"{no_difference}: {100 * measured.compared.difference.mean:.1f} points {measured.interval}."


def _measured(arms: Sequence[ArmResult], first: str, second: str, rates: Rates) -> Measured:
    by_name = {arm.name: arm for arm in arms}
    solved_NT = by_name[first].solved_NT
    compared = comparison(by_name[first], by_name[second], rates.intervals)
    return Measured(float(solved_NT[-1].mean()), solved_NT.shape[1], len(solved_NT), compared)


def _sentences(first: str, second: str, measured: Sequence[Measured], rates: Rates) -> str:
    counted = ", with unfinished ones counted as failures"
    if rates.unfinished and len(measured) == 1:
        return sentence(first, second, measured[0], counted)
    return " ".join(sentence(first, second, one, counted if number else "") for number, one in enumerate(measured))


def _warning(rates: Rates, disputed: Sequence[str]) -> str:
    unfinished = f"{rates.unfinished} of {rates.tasks} tasks are unfinished"
    if not rates.finished_tasks:
        return f"{unfinished} in some arm, so arms cannot be compared over finished tasks alone."
    if disputed:
        arms = " and ".join(disputed)
        return f"{unfinished} in some arm, and the verdict on {arms} depends on whether they are counted as failures."
    return f"{unfinished} in some arm; counting them as failures does not change the verdicts."
