"""Did what PPO was paid for pay? What it gained with its reward model, held against what it gained in the world.

So is GRPO asked where a reward model paid it, too. Both gains are over the SFT policy that training started from. A
reward model that rates higher and higher what helps no more is the alarm that training cannot ring by itself, since it
plays nothing.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from eval.outcome import ArmOutcome
from eval.rates import difference_after_last
from eval.statistics import Interval, Intervals
from eval.table import table
from eval.training import Trained, trained_adapters
from retroformer.best_of import best_of
from retroformer.config import Arm, Experiment

_LAST = 0.2
"""Share of the updates that are the end of training; one batch alone has few prompts."""


class Gain(NamedTuple):
    """Of an arm whose models PPO or GRPO has trained, over the arm of the policies from which it started."""

    arm: str
    start: str
    scored: float
    """By the reward model on the prompts of training, in standard deviations of its score; a mean over the seeds."""
    realised: Interval
    """Of the shares of held-out tasks solved by the last trial, paired by task."""

    @property
    def alarming(self) -> bool:
        """The reward model saw a gain, and the world shows none that could be told from 0."""
        return self.scored > 0 and self.realised.low <= 0


def gains(experiment: Experiment, outcomes: Sequence[ArmOutcome], intervals: Intervals | None = None) -> list[Gain]:
    """One for each arm that a reward model paid and that started, by hash, from exactly the policies of another arm."""
    intervals = intervals or Intervals(experiment.seed)
    played = {arm.name: arm for arm in outcomes}
    known = {name: _trained(experiment, arm) for name, arm in experiment.eval.arms.items() if name in played}
    starts = {frozenset(one.metrics["adapter_sha256"] for one in found): name for name, found in known.items()}
    gained = []
    for name, found in known.items():
        if found and all(one.paid_by_reward_model for one in found):
            start = starts.get(frozenset(one.metrics["inputs"]["adapters"]["sft"] for one in found))
            if start is not None:
                realised = difference_after_last(played[name], played[start], intervals)
                gained.append(Gain(name, start, fmean(map(_score_gain, found)), realised))
    return gained


def render_gains(found: Sequence[Gain]) -> str:
    """A table in Markdown, and a sentence for each alarm; empty where no arm has its start to be compared with."""
    rows = [[one.arm, one.start, f"{one.scored:+.2f}", f"{one.realised}"] for one in found]
    header = ["arm", "over", "reward model's score, in its deviations", "solved by the last trial"]
    alarms = [
        f"**Alarm**: the reward model rates *{one.arm}* {one.scored:.2f} deviations above *{one.start}*, and its "
        f"success is not told from that of *{one.start}*, or below it: {one.realised}."
        for one in found
        if one.alarming
    ]
    return "\n\n".join([table(header, rows), *alarms]) if found else ""


def _trained(experiment: Experiment, arm: Arm) -> list[Trained]:
    """The adapters of an arm's models, without the reward models behind them; none where one chooses the answers."""
    models = (arm.model,) if isinstance(arm.model, str) else arm.model
    if arm.kind != "model" or any(map(best_of, models)):
        return []
    found = trained_adapters(experiment, models)
    return [one for one in found if one.stage != "reward"]


def _score_gain(policy: Trained) -> float:
    """From the first update, which the SFT policy answered, to the mean of the last ones."""
    scores: list[float] = [update["score"] for update in policy.metrics["history"]]
    return fmean(scores[-max(1, round(_LAST * len(scores))) :]) - scores[0]
