"""Why attempts failed, as Reflexion sorts them (NeurIPS, section 4.1), and what the agent made of them itself."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from eval.outcome import ArmOutcome
from eval.table import share, table
from retroformer.records import Outcome, Trajectory

_TOO_MANY_ACTIONS = 30
"""More of them are inefficient planning."""


def failure_classes(outcomes: Sequence[ArmOutcome]) -> str:
    """Failed attempts of each arm: in how many the agent hallucinated, or planned inefficiently; it may be both."""
    rows = []
    for name, attempts in _groups(outcomes):
        failed = [one for one in attempts if one.outcome is Outcome.FAILURE]
        counts = (sum(map(sort, failed)) for sort in (hallucinated, planned_inefficiently))
        rows.append([name, str(len(failed)), *(share(count, len(failed)) for count in counts)])
    return table(["", "failed attempts", "hallucination", "inefficient planning"], rows)


def hallucinated(attempt: Trajectory) -> bool:
    """Whether the agent did the same twice or more often and was answered the same."""
    return any(count > 1 for count in Counter((step.action, step.observation) for step in attempt.steps).values())


def planned_inefficiently(attempt: Trajectory) -> bool:
    """Whether the agent did more than 30 actions."""
    return len(attempt.steps) > _TOO_MANY_ACTIONS


def judgements(outcomes: Sequence[ArmOutcome]) -> str:
    """The agent's own evaluation held against the true outcome; empty where it was told the truth."""
    rows = []
    for name, attempts in _groups(outcomes):
        counts = Counter((one.judged, one.outcome is Outcome.SUCCESS) for one in attempts if one.judged is not None)
        if counts:
            kinds = ((True, True), (False, True), (True, False), (False, False))
            rows.append([name, *(str(counts[kind]) for kind in kinds), share(_right(counts), counts.total())])
    header = ["", "TP: content, solved", "FN: not content, solved", "FP: content, failed", "TN: not content, failed"]
    return table([*header, "right"], rows) if rows else ""


def _right(counts: Counter[tuple[bool, bool]]) -> int:
    return counts[True, True] + counts[False, False]


def _groups(outcomes: Sequence[ArmOutcome]) -> Iterator[tuple[str, Iterable[Trajectory]]]:
    """The attempts of trial 0, which all arms share, and the retries of each."""
    shared = outcomes[0].seeds[0].attempts
    yield "trial 0, shared", [one for (_, trial), one in shared.items() if trial == 0]
    for arm in outcomes:
        yield (
            f"{arm.name}, retries",
            [one for seed in arm.seeds for (_, trial), one in seed.attempts.items() if trial],
        )
