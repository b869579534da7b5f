"""Front of the report: a sentence for each arm against the reference, figures, and how to read them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from retroformer.config.experiment import Experiment
from retroformer.files import document as doc

from ..measure.results import ArmResult
from ..measure.statistics import DRAWS, Comparison, Rates, bootstrap, comparison, plain_p
from .report_input import ReportInput, trained_against_untrained

_OFFSET = 0.015
"""Horizontal offset between lines, as a share of the axis, so that their intervals do not overlap."""


class Claim(NamedTuple):
    """What an arm solved, and how that compares with another arm."""

    share: float
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
    def interval(self) -> doc.Spans:
        """The interval in points of the claim, with the p-value if there is one."""
        low, high = (100 * bound for bound in self.compared.difference[1:])
        low, high = (-high, -low) if self.relation == "fewer" else (low, high)
        if self.compared.p_value is None:
            return (f"(95% interval over training seeds and tasks: {low:.1f} to {high:.1f})",)
        p_value = plain_p(self.compared.p_value)
        shown = doc.unbroken(f"p {p_value}" if p_value.startswith("<") else f"p = {p_value}")
        return (f"(95% interval over tasks: {low:.1f} to {high:.1f}; ", shown, ")")

    @property
    def points(self) -> str:
        return f"{100 * abs(self.compared.difference.mean):.1f} points {self.relation}"


def front(evaluation: ReportInput) -> Iterator[doc.Chapter]:
    """Yield the front, a chapter without a title."""
    rates, parts = evaluation.rates, list[doc.Part | doc.Words]()
    if len(evaluation.results) > 1:
        parts += verdict(evaluation)
    parts.append(solved_figure(evaluation.experiment, rates))
    if len(evaluation.results) > 1:
        parts.append(difference_figure(rates, evaluation.reference))
    yield doc.chapter("", *parts, _how_to_read(evaluation))


def verdict(evaluation: ReportInput) -> Iterator[doc.Listing | doc.Words]:
    """Yield a sentence for every other arm, which claims a difference only if its interval excludes 0.

    Of two models the exact test must agree. The first sentences compare arms of trained models with the untrained one,
    the last of the config first. The next ones compare that last one, and the arms that are not trained, with the
    reference. The last ones compare each arm of `eval.examples` with the one before it, such as a stage of training
    with the stage that it started from. If tasks are unfinished, each sentence also gives the interval with these
    counted as failures, and the first line names the arms whose verdict they change.
    """
    rates, reference = evaluation.rates, evaluation.reference
    pairs = trained_against_untrained(evaluation.experiment, reference)
    # With many arms, a sentence on each trained one against the reference would bury the others.
    omitted = {reference, *(trained for trained, _ in pairs[1:])}
    pairs += [(arm.name, reference) for arm in rates.finished if arm.name not in omitted]
    pairs += [(after, before) for before, after in pairwise(evaluation.experiment.eval.examples or ())]
    pairs = list(dict.fromkeys(pairs))
    items, disputed = [], dict[str, None]()
    for name, other in pairs:
        shown: doc.Spans = (doc.strong(name), *[" (a yardstick)"] * evaluation.reads_solution(name))
        claims = [_claim(arms, name, other) for arms in rates.views]
        # Unfinished tasks are in the last view, which is the only one if no task is finished.
        counted = [bool(rates.unfinished) and claim is claims[-1] for claim in claims]
        sentences = [
            sentence(
                shown, (doc.emphasis(other),), claim, ", with unfinished ones counted as failures" if all_tasks else ""
            )
            for claim, all_tasks in zip(claims, counted, strict=True)
        ]
        items.append(
            doc.Cell(words=doc.join_words(" ", sentences), value=claims[0].compared.difference.mean, arms=(name, other))
        )
        if len({claim.relation for claim in claims}) > 1:
            disputed[name] = None
    if rates.unfinished:
        yield _warning(rates, list(disputed))
    yield doc.Listing(items=tuple(items))


def sentence(first: doc.Spans, second: doc.Spans, claim: Claim, condition: str = "") -> doc.Spans:
    """Return a sentence that can be quoted without the rest of the report."""
    if claim.relation:
        solves = f" solves {claim.solved}{condition}, {claim.points} than "
        return (*first, solves, *second, " ", *claim.interval, ".")
    solved = f" ({claim.solved}{condition}) and "
    points = f": {100 * claim.compared.difference.mean:.1f} points "
    return ("The data do not show a difference between ", *first, solved, *second, points, *claim.interval, ".")


def _claim(arms: Sequence[ArmResult], first: str, second: str) -> Claim:
    by_name = {arm.name: arm for arm in arms}
    solved_NT = by_name[first].solved_NT
    compared = comparison(by_name[first], by_name[second])
    return Claim(float(solved_NT[-1].mean()), solved_NT.shape[1], len(solved_NT), compared)


def _warning(rates: Rates, disputed: Sequence[str]) -> doc.Words:
    unfinished = f"{rates.unfinished} of {rates.tasks} tasks are unfinished in some arm"
    if not rates.finished_tasks:
        return f"{unfinished}, so arms cannot be compared over finished tasks alone."
    if disputed:
        depends = " depends on whether they are counted as failures."
        return (f"{unfinished}, and the verdict on ", *doc.join_words(" and ", map(doc.strong, disputed)), depends)
    return f"{unfinished}; counting them as failures does not change the verdicts."


def solved_figure(experiment: Experiment, rates: Rates) -> doc.Figure:
    """Return the share solved by each trial, one line per arm, in the order of the config."""
    solid = rates.views[0]
    trials = range(len(solid[0].solved_NT))
    ranked = [arm.name for arm in sorted(solid, key=lambda arm: -arm.share_solved(-1))]
    series = []
    for arm in solid:
        intervals = [bootstrap(arm.solved_by(trial)) for trial in trials]
        offset = _OFFSET * (len(trials) - 1) * (ranked.index(arm.name) - (len(solid) - 1) / 2)
        x = [trial + 1 + (offset if trial else 0.0) for trial in trials]
        series.append(
            doc.Series(
                name=arm.name,
                points=tuple((at, interval.mean) for at, interval in zip(x, intervals, strict=True)),
                bounds=tuple((interval.low, interval.high) for interval in intervals),
                note=f"{intervals[-1].mean:.2f}",
            )
        )
    chart = doc.LineChart(
        x_title="attempts allowed",
        y_title="share of held-out tasks solved",
        series=tuple(series),
        x_ticks=tuple(trial + 1 for trial in trials),
        y_ticks=(0.0, 0.25, 0.5, 0.75, 1.0),
    )
    return doc.Figure(name="solved", caption=_caption(experiment, rates), chart=chart)


def _caption(experiment: Experiment, rates: Rates) -> str:
    name = experiment.environment.name
    own = [arm.name for arm in rates.all_tasks if not arm.shares_first]
    shared = f"trial 0 shared, except by {', '.join(own)}" if own else "trial 0 shared"
    shown = "the names are followed by the share at the last trial"
    if not rates.finished_tasks:
        return f"{name}, {rates.tasks} held-out tasks, unfinished ones counted as failures; {shown}."
    return f"{name}, {rates.finished_tasks} held-out tasks, {shared}; {shown}."


def difference_figure(rates: Rates, reference: str) -> doc.Figure:
    """Return the difference of every other arm from the reference after the last trial, as in the headline."""
    arms = {arm.name: arm for arm in rates.views[0]}
    rows = []
    for name, arm in arms.items():
        if name != reference:
            compared = comparison(arm, arms[reference])
            rows.append(doc.IntervalRow(name=name, **compared.difference._asdict(), claimed=compared.claimed))
    rows.sort(key=lambda row: -row.mean)
    caption = (
        f"Share of tasks solved by the last trial minus that of {reference}, paired by task, with 95% intervals. "
        "Filled: a difference is claimed, as in the headline; hollow: the data do not show one."
    )
    chart = doc.IntervalChart(x_title="difference in the share of tasks solved", rows=tuple(rows))
    return doc.Figure(name="differences", caption=caption, chart=chart)


def _how_to_read(evaluation: ReportInput) -> doc.Words:
    rates = evaluation.rates
    counts = Counter(task.split for task in evaluation.tasks)
    splits = doc.join_words(" and ", ((doc.code(split), f" ({count})") for split, count in counts.items()))
    unfinished = "No task was left unfinished."
    if rates.unfinished:
        unfinished = (
            f"The infrastructure left {rates.unfinished} tasks unfinished in some arm, so every rate is given twice: "
            "over the tasks that every arm finished, and over all tasks with unfinished ones counted as failures. From "
            "the first missing trial of an arm on, a task counts as unsolved with return 0; earlier trials keep their "
            "results. Run the same command again to finish them."
        )
    seeds: doc.Spans = ("they do not cover variation between training seeds.",)
    if any(arm.pooled for arm in evaluation.results):
        seeds = (
            "if an arm pools training seeds, seeds and tasks are resampled together, and the interval covers other "
            "tasks and other training seeds (with few seeds it is a little too narrow); ",
            doc.emphasis("with these seeds"),
            " gives the interval over tasks alone. An arm with one model does not cover variation between training "
            "seeds.",
        )
    return (
        f"{rates.finished_tasks} of {len(evaluation.tasks)} held-out tasks of split ",
        *splits,
        f" were finished in every arm. {unfinished} Brackets are 95% percentile bootstrap intervals over tasks "
        f"({DRAWS:,} draws); ",
        *seeds,
    )
