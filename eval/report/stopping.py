"""Where each arm would have stopped under the stopping rules of Reflexion.

They are from section 4.2 of the NeurIPS paper and section 2 of its first version.

Unless `eval.stop` applies the second rule, the trials after that point are played anyway, so one run shows the whole
curve and every rule.
"""

from collections.abc import Sequence

from retroformer.markdown import plain, table

from ..measure.results import ArmResult, first_without_gain
from ..measure.statistics import Floats

FAILURES_IN_A_ROW = 3
"""Failed attempts after which the agent gives a task up."""


def stopping_rules(results: Sequence[ArmResult]) -> str:
    """Render the share solved under each rule; empty if there are too few trials for a rule to matter."""
    if len(results[0].solved_NT) <= FAILURES_IN_A_ROW:
        return ""
    header = [
        "arm",
        f"a task is given up after {FAILURES_IN_A_ROW} failures in a row",
        "all stop after the first trial without improvement",
        "all trials",
    ]
    rows = [
        [
            plain(arm.name),
            f"{arm.solved_NT[FAILURES_IN_A_ROW - 1].mean():.3f}",
            f"{arm.solved_NT[last].mean():.3f}, after trial {last}",
            f"{arm.solved_NT[-1].mean():.3f}",
        ]
        for arm in results
        for last in (last_trial(arm.solved_NT),)
    ]
    return table(header, rows, "Share of tasks solved under each stopping rule.")


def last_trial(solved_NT: Floats) -> int:
    """Return the first retry that solved no further task, or the last trial if every retry solved some."""
    last = first_without_gain(solved_NT.mean(axis=1))
    return len(solved_NT) - 1 if last is None else last
