"""Advice from other tasks: what was written for a similar failure and has paid (Reflexion, section 5, asks for it).

A piece of advice is worth the similarity of its task times an upper confidence bound of its realised ratings (UCB1,
Auer et al. 2002), so that what has helped often comes first and what was hardly tried is tried, too.

What does not depend on the failure is computed once: the usefulness of each piece, and an inverted index of the
openings. A retrieval then adds up one array for each word of the failed task's opening.
"""

import asyncio
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from retroformer.arms import is_rated
from retroformer.errors import MissingInput
from retroformer.rating import ratings
from retroformer.records import Author, Memory, Record, Reflection, Sampling, Trajectory
from retroformer.store import Store

Floats = NDArray[np.float64]

_MANY_PIECES = 20_000
"""A retrieval from more takes milliseconds: a thread does it, so that the event loop is not kept waiting."""
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
        openings = {key.task_id: attempt.opening for key, attempt in store.stream_trajectories(arm)}
        forgotten = _written_before(oldest, store, arm) if oldest is not None else set()
        for rated in ratings(store, arm):
            if (rated.task_id, rated.trial, rated.candidate) in forgotten:
                continue
            source = f"{store.experiment}/{arm}/{rated.task_id}/{rated.trial}.{rated.candidate}"
            found.append(
                Experienced(
                    text=rated.text,
                    opening=openings[rated.task_id],
                    source=source,
                    task_id=rated.task_id,
                    rating=rated.rating,
                )
            )
    return found


def _written_before(oldest: datetime, store: Store, arm: str) -> set[tuple[str, int, int]]:
    """Task, trial and candidate of the advice that is older."""
    return {
        (stored.key.task_id, stored.key.trial, stored.key.candidate)
        for stored in store.stream_reflections(arm)
        if stored.stored_at is None or stored.stored_at < oldest
    }


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
        self._total_uses = sum(len(piece.uses) for piece in self._pieces)
        self._usefulness: Floats = np.array([self.usefulness(piece) for piece in self._pieces])
        self._similarity = Similarity([piece.uses[0].opening for piece in self._pieces])
        self._by_text = {piece.text: number for number, piece in enumerate(self._pieces)}
        self._by_task = defaultdict[str, list[int]](list)
        for number, piece in enumerate(self._pieces):
            for task_id in {use.task_id for use in piece.uses}:
                self._by_task[task_id].append(number)

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """The best piece that the memory does not hold yet, with where it comes from; blank where none is left."""
        if len(self._pieces) > _MANY_PIECES:
            best = await asyncio.to_thread(self._best, trajectory, memory)
        else:
            best = self._best(trajectory, memory)
        if best is None:
            return Reflection(text="", prompt=(), author=Author(endpoint="memory", model="none"))
        author = Author(endpoint="memory", model=best.uses[0].source)
        return Reflection(text=best.text, prompt=(), author=author, sampling=Sampling(seed=seed))

    def _best(self, trajectory: Trajectory, memory: Memory) -> Remembered | None:
        """The piece of the highest score, which is never negative; of equal ones the first by its text."""
        scores = self._similarity.to(trajectory.opening) * self._usefulness
        held = [self._by_text[text] for text in memory.reflections if text in self._by_text]
        scores[[*held, *self._by_task.get(trajectory.task.id, ())]] = -1.0
        best = int(scores.argmax())
        return self._pieces[best] if scores[best] >= 0 else None

    def usefulness(self, piece: Remembered) -> float:
        """Upper confidence bound of the rating, never below 0."""
        total = self._total_uses
        bonus = self._exploration * math.sqrt(2 * math.log(total) / len(piece.uses)) if total > 1 else 0.0
        return max(0.0, piece.rating + bonus)


class Similarity:
    """Cosine of TF-IDF vectors of words; numbers are left out, as they name things of one room."""

    def __init__(self, texts: Sequence[str]) -> None:
        copies = Counter(texts)
        words = {text: _words(text) for text in copies}
        self._documents = max(1, len(texts))
        self._containing = Counter[str]()
        for text, count in copies.items():
            self._containing.update(dict.fromkeys(words[text], count))
        # Many pieces are written for the same task, so each different text is in the index once.
        place_of = {text: place for place, text in enumerate(copies)}
        self._places_T = np.array([place_of[text] for text in texts], dtype=np.intp)
        self._count = len(copies)
        self._postings = self._index(words.values())

    def to(self, text: str) -> Floats:
        """Of each text with this one, between 0 and 1."""
        similarities = np.zeros(self._count)
        # Word by word in the order of the text: the sums are those of the plain definition to the last bit.
        for word, weight in self._vector(_words(text)).items():
            if (posting := self._postings.get(word)) is not None:
                places, weights = posting
                similarities[places] += weight * weights
        return similarities[self._places_T]

    def _index(self, documents: Iterable[Mapping[str, int]]) -> dict[str, tuple[NDArray[np.intp], Floats]]:
        """For each word the places of the documents that hold it, and its weights there."""
        places, weights = defaultdict[str, list[int]](list), defaultdict[str, list[float]](list)
        for place, words in enumerate(documents):
            for word, weight in self._vector(words).items():
                places[word].append(place)
                weights[word].append(weight)
        return {word: (np.array(places[word], dtype=np.intp), np.array(weights[word])) for word in places}

    def _vector(self, words: Mapping[str, int]) -> dict[str, float]:
        weights = {
            word: count * math.log((1 + self._documents) / (1 + self._containing[word])) + 1e-9
            for word, count in words.items()
        }
        length = math.sqrt(math.fsum(weight**2 for weight in weights.values())) or 1.0
        return {word: weight / length for word, weight in weights.items()}


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))
