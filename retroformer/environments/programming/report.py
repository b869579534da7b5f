"""Report chapter on the quality of the tests that the agent wrote (Reflexion, NeurIPS version, Table 2).

The paper's rates are conditional on the result of the agent's own tests, so TP and FP add up to 1, and so do FN and TN.
Its text gives FP as P(solution wrong | tests pass). The usual rates, conditional on the solution, stand beside them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from retroformer.document import Cell, Chapter, Row, arm_cell, chapter, share, table
from retroformer.environments.extras import ReportedArm, TaskFacts
from retroformer.environments.programming.environment import language_of, own_tests_passed
from retroformer.records import Outcome, Trajectory

_FIRST = "trial 0, shared"
_NOTE = (
    "Whether the agent's own tests passed, against the hidden tests: the solution is right if those passed. TP, FP, FN "
    "and TN are the conditional rates of Reflexion's Table 2; the last two columns are conditional on the solution. An "
    "arm's row counts the last attempt at each task. Attempts without a valid test of the agent's own count in no rate."
)
_HEADER = (
    "attempts | language | with own tests | TP: right, if tests pass | FP: wrong, if tests pass | "
    "FN: right, if tests fail | TN: wrong, if tests fail | tests pass, if right | tests fail, if wrong"
)


class OwnTestsChapter:
    """Chapter that compares the results of the agent's own tests with those of the hidden tests, by language."""

    def __init__(self, arms: Sequence[ReportedArm]) -> None:
        self._arms = arms
        self._counts: dict[tuple[str, str], Counter[tuple[bool | None, bool]]] = {}
        """Number of attempts by (own tests passed, solution right), for each group and language."""

    def add(self, facts: TaskFacts) -> None:
        """Count the attempts at one task."""
        if facts.first is not None:
            self._count(_FIRST, facts.first)
        for arm in self._arms:
            for stored in arm.stored_names:
                if attempts := facts.seeds[stored].attempts:
                    self._count(f"{arm.name}, last attempts", attempts[max(attempts)])

    def _count(self, group: str, attempt: Trajectory) -> None:
        if attempt.outcome is Outcome.INVALID or not attempt.steps:
            return
        passed = own_tests_passed(attempt.steps[-1].observation)
        counts = self._counts.setdefault((group, language_of(attempt.opening)), Counter())
        counts[passed, attempt.outcome is Outcome.SUCCESS] += 1

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapter, unless no attempt had tests of its own."""
        groups = {_FIRST: Cell(words=_FIRST)}
        groups |= {f"{arm.name}, last attempts": arm_cell(arm.name, f"{arm.name}, last attempts") for arm in self._arms}
        ordered = sorted(self._counts.items(), key=lambda entry: (list(groups).index(entry[0][0]), entry[0][1]))
        if any(counts[passed, right] for _, counts in ordered for passed in (True, False) for right in (True, False)):
            rows: list[Row] = [[groups[group], language, *_rates(counts)] for (group, language), counts in ordered]
            rates = table(_HEADER.split(" | "), rows, "Conditional rates of the own tests.")
            yield chapter("How good the agent's own tests were", _NOTE, rates)


def _rates(counts: Counter[tuple[bool | None, bool]]) -> list[Cell]:
    true_positive, false_positive = counts[True, True], counts[True, False]
    false_negative, true_negative = counts[False, True], counts[False, False]
    passed, failed = true_positive + false_positive, false_negative + true_negative
    return [
        share(passed + failed, counts.total()),
        share(true_positive, passed),
        share(false_positive, passed),
        share(false_negative, failed),
        share(true_negative, failed),
        share(true_positive, true_positive + false_negative),
        share(true_negative, true_negative + false_positive),
    ]
