"""Advice that other attempts have proved right: the pages that a correct attempt read and the failed ones did not."""

from collections.abc import Iterable, Iterator, Sequence

from retroformer.environments.hotpotqa.action import parse, unquoted
from retroformer.environments.hotpotqa.environment import NOT_FOUND
from retroformer.environments.hotpotqa.leak import holds
from retroformer.records import Lesson, Outcome, Trajectory


class TitleHindsight:
    """Writer of advice from other attempts at the same question; those at other questions tell nothing about it."""

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        """Build the writer without reading the attempts."""

    def advice(self, failure: Trajectory, earlier: Sequence[Lesson], others: Sequence[Trajectory]) -> str:
        """Return `Search for A and B.` with the titles that the correct attempt with the fewest needed.

        Empty if no other attempt is correct, or if it needed no other page. A title that holds the attempt's answer is
        left out: the reflector cannot know the answer, so it must not be taught to give it away.
        """
        read = {
            title.casefold()
            for attempt in (failure, *(lesson.attempt for lesson in earlier))
            for title in _titles(attempt)
        }
        needed = [_needed(attempt, read) for attempt in others if attempt.outcome is Outcome.SUCCESS]
        titles = min(filter(None, needed), key=len, default=())
        return f"Search for {_listed(titles)}." if titles else ""

    def variations(self, failure: Trajectory, earlier: Sequence[Lesson], count: int) -> tuple[()]:
        """Return none: nobody has asked another question about these pages."""
        return ()


def _needed(attempt: Trajectory, read: set[str]) -> tuple[str, ...]:
    """Return the titles that a correct attempt read and that are not among those read, without its answer."""
    calls = [parse(step.action) for step in attempt.steps]
    answers = [unquoted(call.argument) for call in calls if call.verb == "finish"]
    titles = dict.fromkeys(title for title in _titles(attempt) if title.casefold() not in read)
    return tuple(title for title in titles if not any(holds(title, answer) for answer in answers))


def _titles(attempt: Trajectory) -> Iterator[str]:
    """Yield the entities whose search found a page."""
    for step in attempt.steps:
        call = parse(step.action)
        if call.verb == "search" and not step.observation.startswith(NOT_FOUND):
            yield unquoted(call.argument)


def _listed(titles: Sequence[str]) -> str:
    *first, last = titles
    return f"{', '.join(first)} and {last}" if first else last
