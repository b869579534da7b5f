"""Example reflections before and after training, picked by hash, and what the actor then did."""

from bisect import insort
from collections.abc import Sequence
from hashlib import sha256
from operator import itemgetter
from typing import NamedTuple

from retroformer.environments.alfworld.report.reflection import ReflectionCase
from retroformer.environments.alfworld.text import compact
from retroformer.markdown import code, plain, quoted, table
from retroformer.records import Outcome, Trajectory

EXAMPLES = 10
ACTIONS_SHOWN = 6
_LONGEST_TEXT = 300
"""Maximum number of characters shown of one piece of advice; the store has the whole text."""


class Example(NamedTuple):
    """Two reflections on the same first failure."""

    task_id: str
    before: ReflectionCase
    after: ReflectionCase


class Shortlist:
    """First `count` examples by the SHA-256 of their task ids."""

    def __init__(self, count: int = EXAMPLES) -> None:
        self._count = count
        self._by_digest: list[tuple[str, Example]] = []

    def add(self, example: Example) -> None:
        """Keep an example if it is among the first so far."""
        insort(self._by_digest, (sha256(example.task_id.encode()).hexdigest(), example), key=itemgetter(0))
        del self._by_digest[self._count :]

    @property
    def examples(self) -> list[Example]:
        return [example for _, example in self._by_digest]


def pick_examples(
    before: Sequence[ReflectionCase], after: Sequence[ReflectionCase], count: int = EXAMPLES
) -> list[Example]:
    """Return the first tasks, by the SHA-256 of their id, that failed at trial 0 and have advice from both arms."""
    first, second = _first_failures(before), _first_failures(after)
    picked = Shortlist(count)
    for task_id in first.keys() & second.keys():
        picked.add(Example(task_id, first[task_id], second[task_id]))
    return picked.examples


def render_examples(examples: Sequence[Example], before: str, after: str) -> str:
    """Return Markdown: the selection rule, then a small table per task; `before` and `after` are names of arms."""
    if not examples:
        return f"There is no task at whose first failure both {before} and {after} wrote something."
    first = "The first task" if len(examples) == 1 else f"The first {len(examples)} tasks"
    rule = (
        f"{first}, in the order of the SHA-256 of their id, that failed at trial 0 and about "
        f"which both *{plain(before)}* and *{plain(after)}* wrote something."
    )
    return "\n\n".join(
        [rule, *(_render(number, example, before, after) for number, example in enumerate(examples, start=1))]
    )


def moves(attempt: Trajectory) -> str:
    """Return the first actions in the compact text and the ending: `go to bed 1; ...; 15 actions, step limit`."""
    actions = [compact.command(step.action) for step in attempt.steps]
    more = ["..."] if len(actions) > ACTIONS_SHOWN else []
    ending = f"{len(actions)} action{'' if len(actions) == 1 else 's'}, {attempt.ending.value}"
    return "; ".join([*actions[:ACTIONS_SHOWN], *more, ending])


def _first_failures(cases: Sequence[ReflectionCase]) -> dict[str, ReflectionCase]:
    return {case.failure.task.id: case for case in cases if case.trial == 0 and case.text.strip()}


def _render(number: int, example: Example, before: str, after: str) -> str:
    failure = example.before.failure
    sentence = compact.read_opening(failure.opening).task
    rows = [["trial 0", "", "failed", _moves_cell(failure)]]
    rows += [_row(arm, case) for arm, case in ((before, example.before), (after, example.after))]
    caption = f"Task {number}: {quoted(sentence, _LONGEST_TEXT)} ({code(example.task_id)})"
    return table(["arm", "advice", "result", "the actor"], rows, caption)


def _row(arm: str, case: ReflectionCase) -> list[str]:
    retry = case.retry
    if retry is None or retry.outcome is Outcome.INVALID:
        return [plain(arm), quoted(case.text, _LONGEST_TEXT), "not tried", "-"]
    result = "solved" if case.solved else "failed"
    return [plain(arm), quoted(case.text, _LONGEST_TEXT), result, _moves_cell(retry)]


def _moves_cell(attempt: Trajectory) -> str:
    return quoted(moves(attempt), 1000)
