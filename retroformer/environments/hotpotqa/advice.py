"""Advice on questions: whether it gives the answer away, and which advice other attempts have proved right."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence

from retroformer.environments.hotpotqa.environment import NOT_FOUND, parse, unquoted
from retroformer.environments.hotpotqa.metrics import CLOSED_ANSWERS, ENGLISH, normalize
from retroformer.files.document import code
from retroformer.method.records import Lesson, Outcome, Task, Trajectory
from retroformer.method.repetition import texts_of

_WORD = re.compile(r"\w+")
_ARTICLES = frozenset({"a", "an", "the"})


class GoldAnswerLeak:
    """Check whether advice holds the gold answer although nothing that the agent had seen or written does.

    The answer counts as a phrase: its words in a row, whatever their case, accents and punctuation. Answers that any
    advice may hold by chance are never counted: those of stop words (`yes`, `no`, `The Who`) and single characters
    only. A paraphrase of the answer is not noticed.
    """

    rule = (
        "Advice gives the answer away if it holds the gold answer as a phrase, and neither the question nor the "
        "attempts before it do. Answers of stop words only, such as ",
        code("yes"),
        ", are not counted.",
    )

    def __init__(self, answer: Callable[[Task], str]) -> None:
        self._answer = answer
        """Returns the gold answer of a task. Raises UnknownTask, MissingInput."""

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return the gold answer if the advice holds it, and neither the question nor these attempts do; else "".

        Raises UnknownTask, MissingInput.
        """
        gold = self._answer(attempts[-1].task)
        words = normalize(_folded(gold)).split()
        is_common = all(word in ENGLISH or word in CLOSED_ANSWERS or len(word) == 1 for word in words)
        if is_common or not holds(advice, gold):
            return ""
        return "" if any(holds(text, gold) for attempt in attempts for text in texts_of(attempt)) else gold


def holds(text: str, phrase: str) -> bool:
    """Return True if the words of a phrase stand in a text in a row.

    Punctuation may separate words or be left out: `U.S.` is in both `U S` and `US`.
    """
    shown, wanted = _forms(text), _forms(phrase)
    return any(words.strip() and words in form for form in shown for words in wanted)


def _forms(text: str) -> tuple[str, str]:
    """Return the words with punctuation as blanks and without punctuation, with a blank before and after each word."""
    folded = _folded(text)
    words = (word for word in _WORD.findall(folded) if word not in _ARTICLES)
    return f" {' '.join(words)} ", f" {normalize(folded)} "


def _folded(text: str) -> str:
    """Return the text in lower case without accents."""
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if not unicodedata.combining(character)).casefold()


class TitleHindsight:
    """Writer of advice from other attempts at the same question; those at other questions tell nothing about it.

    It names the pages that a correct attempt read and the failed ones did not.
    """

    def __init__(self, attempts: Iterable[Trajectory]) -> None:
        """Take the attempts that the writer of another environment reads."""

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
        *first, last = min(filter(None, needed), key=len, default=("",))
        return f"Search for {', '.join(first)} and {last}." if first else f"Search for {last}." if last else ""

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
