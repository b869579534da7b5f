"""What an evaluation concludes: whether training helped, what it lacked if not, and which command comes next."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from retroformer.agents.arms.arm import TeacherArm
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import adapter_name
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.files import document as doc
from retroformer.method.rating import FEW_POSITIVES, by_failure, ratings
from retroformer.run.arm_names import is_rated

from ..measure.results import ArmResult
from ..measure.statistics import comparison
from .report_input import ReportInput, trained_against_untrained

LEAST_HELPFUL = 0.1
"""Share of collected advice that helps below which SFT imitates luck."""
MOST_CUT, MOST_IGNORED, MOST_ALIKE = 0.2, 0.5, 0.8
"""Shares of cut and of ignored advice, and of failures on which all candidates helped alike, that explain it."""
LEAST_LEAD = 0.1
"""Lead of the teacher, in the share of tasks solved, that explains it."""
MISSING_GAIN = "What training lacked"
"""Title of the chapter on a trained arm that is not shown to be better than the untrained one."""


class MissingGain:
    """Chapter on the likeliest reason why training did not help, with the command that shows it; none if it helped."""

    def __init__(self, evaluation: ReportInput) -> None:
        self._evaluation, self._counts = evaluation, Counter[str]()
        self._ignoring = ""
        """Task whose retry repeats the failure, action by action."""
        self._trained = _not_helped(evaluation)
        self._arm = "" if self._trained is None else self._trained.stored_names[0]

    def add(self, facts: TaskFacts) -> None:
        seed = facts.seeds[self._arm] if self._arm else SeedFacts({}, {})
        for trial, reflection in seed.reflections.items():
            failure, retry = seed.attempts.get(trial - 1), seed.attempts.get(trial)
            if failure is None or retry is None or not reflection.text.strip():
                continue
            ignored = [step.action for step in failure.steps] == [step.action for step in retry.steps]
            self._counts.update(retries=1, cut=int(reflection.is_cut), ignored=int(ignored))
            if ignored and not self._ignoring:
                self._ignoring = facts.task_id

    def chapters(self) -> Iterator[doc.Chapter]:
        if self._trained is not None:
            name = self._arm.removeprefix("eval/")
            start = "The data do not show that the advice of ", doc.strong(name), " is better than without training. "
            reason, command = next((reason, command) for applies, reason, command in self._reasons() if applies)
            yield doc.chapter(MISSING_GAIN, (*start, reason, ": see ", doc.code(command), "."))

    def _reasons(self) -> Iterator[tuple[bool, str, str]]:
        """Yield whether a reason applies, the reason, and a command that shows it; causes first."""
        counts, evaluation, trained = self._counts, self._evaluation, self._trained
        assert trained is not None
        store, run, retries = evaluation.store, evaluation.experiment, counts["retries"]
        place = shlex.quote(str(run.folder)) if run.store is None else "EXPERIMENT.yaml"
        show_collected = f"retroformer show {place} --arm collect"
        show_trained = f"retroformer show {place} --arm {shlex.quote(self._arm)}"
        failures = (group for rated in filter(is_rated, store.arms()) for group in by_failure(ratings(store, rated)))
        groups = [[candidate.rating for candidate in group if candidate.text.strip()] for group in failures]
        helped = [group for group in groups if max(group, default=0) > 0]
        positive, total = sum(rating > 0 for group in helped for rating in group), sum(map(len, groups))
        yield (
            total > 0 and positive < max(FEW_POSITIVES, LEAST_HELPFUL * total),
            f"Most likely there is too little to imitate: {positive} of {total} collected pieces of advice helped, and "
            "a stronger model that writes while collecting (reflector.teacher) gives more",
            show_collected,
        )
        yield (
            counts["cut"] > MOST_CUT * retries,
            f"Most likely the advice is cut, and a new run needs more tokens: {counts['cut']} of its {retries} pieces "
            f"of advice were cut at reflector.max_new_tokens={run.reflector.max_new_tokens}",
            show_trained,
        )
        yield (
            counts["ignored"] > MOST_IGNORED * retries,
            f"Most likely the agent ignores advice: {counts['ignored']} of {retries} retries repeated the failed "
            "attempt action by action",
            f"{show_trained} --task {shlex.quote(self._ignoring)}",
        )
        alike = len(helped) - sum(min(group) < max(group) for group in helped)
        yield (
            alike > MOST_ALIKE * len(helped),
            f"Most likely ratings do not tell good advice from bad: on {alike} of {len(helped)} failures that advice "
            "helped, all candidates helped alike",
            show_collected,
        )
        arms = run.eval.arms
        taught = [result.share_solved(-1) for result in evaluation.results if isinstance(arms[result.name], TeacherArm)]
        share = trained.share_solved(-1)
        yield (
            max(taught, default=share) > share + LEAST_LEAD,
            f"Most likely it does not write as its teacher does yet ({max(taught, default=share):.0%} against "
            f"{share:.0%} of tasks), and more collect.tasks or train.sft.epochs, or `train dpo` on these ratings, may "
            "help",
            show_trained,
        )
        tasks = len(evaluation.tasks)
        reason = f"The usual reasons do not apply, and {tasks} tasks show large differences alone"
        yield True, reason, f"retroformer view {place}"


def _not_helped(evaluation: ReportInput) -> ArmResult | None:
    """Return the best trained arm if no trained arm is shown to be better than the untrained one; else None."""
    if not evaluation.rates.finished_tasks:
        return None
    arms = {arm.name: arm for arm in evaluation.results}
    pairs = trained_against_untrained(evaluation.experiment, evaluation.reference)
    compared = [comparison(arms[trained], arms[untrained]) for trained, untrained in pairs]
    if any(gain.claimed and gain.difference.mean > 0 for gain in compared):
        return None
    return max((arms[trained] for trained, _ in pairs), key=lambda arm: arm.share_solved(-1), default=None)


def spoken(report: doc.Report, experiment: Experiment) -> list[str]:
    """Return what `eval` prints of a report: the sentence on the best trained arm, and what training lacked."""
    said = [cell.words for cell in _best(report, experiment)] + [part.words for part in _lacked(report)]
    return [doc.plain(words) for words in said]


def next_command(report: doc.Report, experiment: Experiment, config: Path, overrides: Sequence[str]) -> str:
    """Return the command after an evaluation: it shows what training lacked, promotes what helped, or shows the run."""
    for part in _lacked(report):
        return next(span.text for span in part.words if isinstance(span, doc.StyledText) and span.style == "code")
    for best in _best(report, experiment) if trained_against_untrained(experiment, "") else ():
        # Of several training seeds, the last.
        adapter = adapter_name(experiment.eval.arms[best.arms[0]].models[-1])
        return shlex.join(["retroformer", "promote", str(config), adapter, *overrides])
    return f"retroformer view {shlex.quote(str(config))}"


def _best(report: doc.Report, experiment: Experiment) -> list[doc.Cell]:
    """Return the sentence on the trained arm with the largest gain, or the first one if none is trained."""
    first = report.conclusion[: max(1, len(trained_against_untrained(experiment, "")))]
    return sorted(first, key=lambda item: -(item.value or 0))[:1]


def _lacked(report: doc.Report) -> list[doc.Paragraph]:
    parts = [part for chapter in report.chapters if chapter.title == MISSING_GAIN for part in chapter.parts]
    return [part for part in parts if isinstance(part, doc.Paragraph)]
