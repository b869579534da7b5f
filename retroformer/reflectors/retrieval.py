"""Advice from other tasks: what was written for a similar failure and has paid (Reflexion, section 5, asks for it).

A piece of advice is worth the similarity of its task times an upper confidence bound of its realised ratings (UCB1,
Auer et al. 2002), so that what has helped often comes first and what was hardly tried is tried, too.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import NamedTuple

from retroformer.arms import is_rated
from retroformer.errors import MissingInput
from retroformer.rating import rated_reflections
from retroformer.records import Author, Memory, Record, Reflection, Sampling, Trajectory
from retroformer.store import Store

_WORD = re.compile(r"[^\W\d_]+")


class Experienced(Record):
    """One use of a piece of advice: where it comes from, and what it brought."""

    text: str
    opening: str
    """Of the task it was written for."""
    source: str
    """Its provenance: run, arm, task, trial and candidate."""
    task_id: str
    rating: float


class Remembered(NamedTuple):
    """A piece of advice with all its uses."""

    uses: tuple[Experienced, ...]

    @property
    def text(self) -> str:
        return self.uses[0].text

    @property
    def rating(self) -> float:
        """Mean of what its uses brought."""
        return fmean(use.rating for use in self.uses)


def experienced(store: Store, days: int | None, now: datetime | None = None) -> list[Experienced]:
    """The rated advice of a run's training tasks, without what is older than `days`; evaluation never feeds it."""
    oldest = (now or datetime.now(UTC)) - timedelta(days=days) if days is not None else None
    found = []
    for arm in filter(is_rated, store.arms()):
        openings = {key.task_id: attempt.opening for key, attempt in store.trajectories(arm).items()}
        written_at = {one.key: one.stored_at for one in store.reflections(arm)}
        for rated in rated_reflections(store, arm):
            key, moment = rated.key, written_at[rated.key]
            if oldest is None or (moment is not None and moment >= oldest):
                source = f"{store.experiment}/{arm}/{key.task_id}/{key.trial}.{key.candidate}"
                found.append(
                    Experienced(
                        text=rated.reflection.text,
                        opening=openings[key.task_id],
                        source=source,
                        task_id=key.task_id,
                        rating=rated.rating,
                    )
                )
    return found


class RetrievingReflector:
    """Writes nothing: gives what was written for other tasks.

    Raises:
        MissingInput: there is no experience.
    """

    def __init__(self, experiences: Iterable[Experienced], exploration: float) -> None:
        by_text = defaultdict[str, list[Experienced]](list)
        for one in experiences:
            by_text[" ".join(one.text.split())].append(one)
        self._pieces = [Remembered(tuple(uses)) for text, uses in sorted(by_text.items()) if text]
        if not self._pieces:
            raise MissingInput(
                "The memory of other tasks is empty: run `python -m collect EXPERIMENT.yaml` first, or raise "
                "eval.retrieval.days."
            )
        self._exploration = exploration
        self._similarity = Similarity([piece.uses[0].opening for piece in self._pieces])

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """The best piece that the memory does not hold yet, with where it comes from; blank where none is left."""
        likeness = self._similarity.to(trajectory.opening)
        scored = [
            (alike * self.usefulness(piece), piece)
            for alike, piece in zip(likeness, self._pieces, strict=True)
            if piece.text not in memory.reflections and all(u.task_id != trajectory.task.id for u in piece.uses)
        ]
        if not scored:
            return Reflection(text="", prompt=(), author=Author(endpoint="memory", model="none"))
        _, best = max(scored, key=lambda one: one[0])
        author = Author(endpoint="memory", model=best.uses[0].source)
        return Reflection(text=best.text, prompt=(), author=author, sampling=Sampling(seed=seed))

    def usefulness(self, piece: Remembered) -> float:
        """Upper confidence bound of the rating, never below 0."""
        total = sum(len(one.uses) for one in self._pieces)
        bonus = self._exploration * math.sqrt(2 * math.log(total) / len(piece.uses)) if total > 1 else 0.0
        return max(0.0, piece.rating + bonus)


class Similarity:
    """Cosine of TF-IDF vectors of words; numbers are left out, as they name things of one room."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [_words(text) for text in texts]
        self._documents = max(1, len(texts))
        self._containing = Counter(word for words in counts for word in words)
        self._vectors = [self._vector(words) for words in counts]

    def to(self, text: str) -> list[float]:
        """Of each text with this one, between 0 and 1."""
        wanted = self._vector(_words(text))
        return [sum(weight * vector.get(word, 0.0) for word, weight in wanted.items()) for vector in self._vectors]

    def _vector(self, words: Mapping[str, int]) -> dict[str, float]:
        weights = {
            word: count * math.log((1 + self._documents) / (1 + self._containing[word])) + 1e-9
            for word, count in words.items()
        }
        length = math.sqrt(math.fsum(weight**2 for weight in weights.values())) or 1.0
        return {word: weight / length for word, weight in weights.items()}


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))
