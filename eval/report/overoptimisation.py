"""Over-optimisation check: gains in the reward model's score compared with gains in tasks solved.

It covers PPO, and GRPO trained with a reward model. Both gains are over the SFT policy that training started from. The
alarm is a score that rises while success does not; training cannot see this by itself, since it plays no tasks.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from retroformer.agents.arms.arm import Arm
from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import best_of
from retroformer.files.document import Chapter, Paragraph, Part, Row, arm_cell, chapter, emphasis, number, strong, table

from ..measure.results import ArmResult
from ..measure.statistics import MeanInterval, bootstrap, difference
from .report_input import ReportInput, interval_cell, views
from .training import TrainedAdapter, trained_adapters

_END_OF_TRAINING = 0.2
"""Share of the updates that count as the end of training; a single batch has few prompts."""


class Gain(NamedTuple):
    """Gain of an arm trained with PPO or GRPO over the arm of the policies it started from."""

    arm: str
    start: str
    scored: float
    """Gain in the reward model's score on training prompts, in standard deviations of the score; mean over seeds."""
    realised: MeanInterval
    """Gain in the share of held-out tasks solved by the last trial, paired by task."""

    @property
    def alarming(self) -> bool:
        """True if the reward model's score rose and the interval of the gain in tasks solved is not above 0."""
        return self.scored > 0 and self.realised.low <= 0


def score_gains(evaluation: ReportInput) -> Iterator[Chapter]:
    """Yield the gains of the arms trained with a reward model, if there are any."""
    rates, experiment = evaluation.rates, evaluation.experiment
    if gains(experiment, rates.views[-1]):
        shown = views(rates, lambda arms: gain_parts(gains(experiment, arms)))
        yield chapter("Gains in the reward model's score and in tasks solved", *shown)


def gains(experiment: Experiment, results: Sequence[ArmResult]) -> list[Gain]:
    """Return a gain for each arm trained with a reward model and started, by hash, from the policies of another arm."""
    played = {arm.name: arm for arm in results}
    adapters_of = {name: _policies(experiment, arm) for name, arm in experiment.eval.arms.items() if name in played}
    starts = {
        frozenset(adapter.metrics.adapter_sha256 for adapter in adapters): name
        for name, adapters in adapters_of.items()
    }
    result = []
    for name, adapters in adapters_of.items():
        if adapters and all(adapter.uses_reward_model for adapter in adapters):
            start = starts.get(frozenset(adapter.metrics.inputs["adapters"]["sft"] for adapter in adapters))
            if start is not None:
                realised = bootstrap(difference(played[name].solved_by(-1), played[start].solved_by(-1)))
                result.append(Gain(name, start, fmean(map(_score_gain, adapters)), realised))
    return result


def _policies(experiment: Experiment, arm: Arm) -> list[TrainedAdapter]:
    """Return the adapters of an arm's models without their reward models; empty for other arms and for best-of-n."""
    adapters = [] if any(map(best_of, arm.models)) else trained_adapters(experiment, arm.models)
    return [adapter for adapter in adapters if adapter.stage != "reward"]


def gain_parts(gained: Sequence[Gain]) -> Iterator[Part]:
    """Yield a table and a sentence for each alarm; nothing if there are no gains."""
    rows: list[Row] = [
        {
            "arm": arm_cell(gain.arm),
            "over": arm_cell(gain.start),
            "reward model's score, in its deviations": number(gain.scored, "+.2f"),
            "solved by the last trial": interval_cell(gain.realised, arms=(gain.arm, gain.start)),
        }
        for gain in gained
    ]
    if rows:
        yield table(rows, "Gains over the policy that training started from.")
    for gain in gained:
        if gain.alarming:
            arm, start = emphasis(gain.arm), emphasis(gain.start)
            rated = f" {gain.scored:.2f} deviations above "
            unsolved = f" does not solve significantly more tasks: {gain.realised}."
            alarm = (strong("Alarm"), ": the reward model rates ", arm, rated, start, ", but ", arm, unsolved)
            yield Paragraph(words=alarm)


def _score_gain(policy: TrainedAdapter) -> float:
    """Return the gain from the first update, sampled from the SFT policy, to the mean of the last ones."""
    scores: list[float] = [update["score"] for update in policy.metrics.history]
    return fmean(scores[-max(1, round(_END_OF_TRAINING * len(scores))) :]) - scores[0]
