"""What the index keeps of a story: its row, the words to search for, and its pieces of advice."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from retroformer.coach.stories.story import Story
from retroformer.method.records import Outcome, Trajectory

_KEPT_CHARACTERS = 2000
"""Characters of a piece of advice in the index; the store has all."""
_SHOWN_CHARACTERS = 300
"""Characters of the last advice in the table of stories."""


@dataclass(frozen=True)
class Piece:
    """A piece of advice."""

    model: str
    rating: float | None
    flags: str
    written_at: str
    text: str


@dataclass(frozen=True)
class Entry:
    """A story as it is indexed."""

    row: dict[str, object]
    """Columns of the table of stories."""
    advice: str
    steps: str
    """Texts of the advice and the steps that a search finds."""
    pieces: tuple[Piece, ...]

    @property
    def key(self) -> tuple[object, ...]:
        return self.row["run"], self.row["arm"], self.row["task"]


def entry_of(story: Story, facts: int) -> Entry:
    """Return the entry of a story with this number of facts."""
    return Entry(_row(story, facts), _advice_text(story), _step_text(story), tuple(_pieces(story)))


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case, in order."""
    return re.findall(r"\w+", text.lower())


def word_counts(texts: Iterable[str]) -> Counter[str]:
    """Return the number of texts that hold each word."""
    return Counter(chain.from_iterable(set(words_of(text)) for text in texts))


def _row(story: Story, facts: int) -> dict[str, object]:
    attempts = [attempt for turn in story.turns for attempt in turn.attempts]
    ratings = [turn.rating for turn in story.turns if turn.rating is not None]
    solved = [turn.key.trial for turn in story.turns if turn.solved]
    tried = [turn for turn in story.chain if turn.attempt is not None]
    return {
        "run": story.experiment,
        "arm": story.arm,
        "task": story.task.id,
        "facts": facts,
        "attempts": len(attempts),
        "trials": story.columns,
        "outcome": _outcome(story),
        "solved_at": min(solved, default=None),
        "first": tried[0].episode_return if tried else None,
        "last": tried[-1].episode_return if tried else None,
        "best": max(ratings, default=None),
        "worst": min(ratings, default=None),
        "flags": _joined(flag for turn in story.turns for flag in turn.flags),
        "actions": sum(len(attempt.steps) for attempt in attempts),
        "tokens": sum(attempt.usage.prompt_tokens + attempt.usage.completion_tokens for attempt in attempts),
        "advice": next((turn.advice[:_SHOWN_CHARACTERS] for turn in reversed(story.chain) if turn.advice.strip()), ""),
    }


def _pieces(story: Story) -> Iterator[Piece]:
    for turn in story.turns:
        if turn.reflection is not None:
            written_at = turn.written_at.isoformat() if turn.written_at is not None else ""
            text = turn.advice[:_KEPT_CHARACTERS]
            yield Piece(turn.reflection.author.model, turn.rating, _joined(turn.flags), written_at, text)


def _joined(flags: Iterable[str]) -> str:
    return " ".join(f"[{flag}]" for flag in sorted(set(flags)))


def _outcome(story: Story) -> str:
    """Return how the story ended: solved at once, solved later, failed, or invalid if the infrastructure stopped it."""
    if any(turn.solved for turn in story.turns):
        return "solved at once" if story.turns[0].solved else "solved later"
    if story.blocked or any(attempt.outcome is Outcome.INVALID for turn in story.turns for attempt in turn.attempts):
        return "invalid"
    return "failed"


def _advice_text(story: Story) -> str:
    return "\n".join(turn.advice for turn in story.turns)


def _step_text(story: Story) -> str:
    """Return the texts of all attempts, each once: retries repeat much of what they read."""
    attempts = (attempt for turn in story.turns for attempt in turn.attempts)
    return "\n".join(dict.fromkeys(chain.from_iterable(map(_texts, attempts))))


def _texts(attempt: Trajectory) -> Iterator[str]:
    yield attempt.opening
    for step in attempt.steps:
        yield from (step.thought, step.action, step.observation)
