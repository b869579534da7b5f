"""Retrieval of advice that helped on similar tasks (proposed in Reflexion, section 5).

The score of a piece of advice is the similarity of its task times an upper confidence bound of its realised ratings
(UCB1, Auer et al. 2002), so that advice that has often helped comes first and rarely used advice is tried, too.

A reflector can also learn from what its retrievals brought: the gain of a retry that was made with a piece of advice
then counts like one more rating of it, in its mean and in its number of uses. Gains count for later tasks only, in a
fixed order of the tasks; eval/play/learning.py has the rule.

Everything that does not depend on the failure is computed once: the usefulness of each piece, and an inverted index of
the openings. A retrieval then adds up one array for each word of the failed task's opening.
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

from retroformer.arm_names import is_rated
from retroformer.errors import MissingInput
from retroformer.rating import ratings
from retroformer.records import Author, Memory, Record, Reflection, Sampling, Trajectory
from retroformer.store import Store

Floats = NDArray[np.float64]

EXPLORATION = 0.3
"""Weight of rarely used advice against advice that has paid off (c of UCB1, in units of return). No experiment varies
it; returns are between 0 and 1 in all environments here."""
_MANY_PIECES = 20_000
"""Number of pieces above which a retrieval takes milliseconds and runs in a thread, not to block the event loop."""
_WORD = re.compile(r"[^\W\d_]+")


class Experienced(Record):
    """One use of a piece of advice, with its source and rating."""

    text: str
    opening: str
    """Opening of the task that it was written for."""
    source: str
    """Provenance: run, arm, task, trial and candidate."""
    task_id: str
    rating: float


class Brought(NamedTuple):
    """Gain of a retry that was made with a retrieved piece of advice: its return minus that of the attempt before."""

    text: str
    gain: float


class Remembered(NamedTuple):
    """A piece of advice with all its uses."""

    uses: tuple[Experienced, ...]
    gains: tuple[float, ...] = ()
    """Gains of the retries for which it was retrieved."""

    @property
    def text(self) -> str:
        return self.uses[0].text

    @property
    def trials(self) -> int:
        """Number of its uses and retrievals."""
        return len(self.uses) + len(self.gains)

    @property
    def rating(self) -> float:
        """Mean of the ratings of its uses and of the gains of its retrievals."""
        return fmean((*(use.rating for use in self.uses), *self.gains))


def experienced(
    store: Store, days: int | None, now: datetime | None = None, leave_out: Sequence[str] = ()
) -> list[Experienced]:
    """Return the rated advice on a run's training tasks that is at most `days` old; never advice of the evaluation.

    Stories with a mark of `leave_out` are left out.
    """
    oldest = (now or datetime.now(UTC)) - timedelta(days=days) if days is not None else None
    experiences = []
    for arm in filter(is_rated, store.arms()):
        openings = {key.task_id: attempt.opening for key, attempt in store.stream_trajectories(arm)}
        too_old = _written_before(oldest, store, arm) if oldest is not None else set()
        left_out = store.marks.tasks(arm, leave_out)
        for rated in ratings(store, arm):
            if rated.task_id in left_out or (rated.task_id, rated.trial, rated.candidate) in too_old:
                continue
            source = f"{store.experiment}/{arm}/{rated.task_id}/{rated.trial}.{rated.candidate}"
            experiences.append(
                Experienced(
                    text=rated.text,
                    opening=openings[rated.task_id],
                    source=source,
                    task_id=rated.task_id,
                    rating=rated.rating,
                )
            )
    return experiences


def _written_before(oldest: datetime, store: Store, arm: str) -> set[tuple[str, int, int]]:
    """Return task, trial and candidate of each piece of advice older than `oldest`."""
    return {
        (stored.key.task_id, stored.key.trial, stored.key.candidate)
        for stored in store.stream_reflections(arm)
        if stored.stored_at is None or stored.stored_at < oldest
    }


class RetrievingReflector:
    """Reflector that retrieves advice written for other tasks instead of writing any.

    Raises:
        MissingInput: there is no experience.
    """

    def __init__(self, experiences: Iterable[Experienced], exploration: float = EXPLORATION) -> None:
        by_text = defaultdict[str, list[Experienced]](list)
        for experience in experiences:
            by_text[one_line(experience.text)].append(experience)
        self._pieces = [Remembered(tuple(uses)) for text, uses in sorted(by_text.items()) if text]
        if not self._pieces:
            raise MissingInput(
                "The memory of other tasks is empty: run `retroformer collect EXPERIMENT.yaml` first, or raise "
                "eval.retrieval_days."
            )
        self._exploration = exploration
        self._rate()
        self._similarity = Similarity([piece.uses[0].opening for piece in self._pieces])
        self._by_text = {piece.text: number for number, piece in enumerate(self._pieces)}
        self._by_task = defaultdict[str, list[int]](list)
        for number, piece in enumerate(self._pieces):
            for task_id in {use.task_id for use in piece.uses}:
                self._by_task[task_id].append(number)

    def _rate(self) -> None:
        self._total_trials = sum(piece.trials for piece in self._pieces)
        self._usefulness: Floats = np.array([self.usefulness(piece) for piece in self._pieces])

    def learn(self, brought: Iterable[Brought]) -> None:
        """Count these gains, in any order, for the pieces of the same texts; a text that is no piece is skipped."""
        gains = defaultdict[str, list[float]](list)
        for text, gain in brought:
            gains[one_line(text)].append(gain)
        self._pieces = [
            piece._replace(gains=(*piece.gains, *gains[text])) if (text := one_line(piece.text)) in gains else piece
            for piece in self._pieces
        ]
        self._rate()

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the best piece that is not in memory yet, with its source; blank if none is left."""
        if len(self._pieces) > _MANY_PIECES:
            best = await asyncio.to_thread(self._best, trajectory, memory)
        else:
            best = self._best(trajectory, memory)
        if best is None:
            return Reflection(text="", prompt=(), author=Author(endpoint="memory", model="none"))
        author = Author(endpoint="memory", model=best.uses[0].source)
        return Reflection(text=best.text, prompt=(), author=author, sampling=Sampling(seed=seed))

    def _best(self, trajectory: Trajectory, memory: Memory) -> Remembered | None:
        """Return the allowed piece with the highest score, the first by text among equals; None if there is none."""
        scores = self._similarity.to(trajectory.opening) * self._usefulness
        held = [self._by_text[text] for text in memory.reflections if text in self._by_text]
        scores[[*held, *self._by_task.get(trajectory.task.id, ())]] = -1.0
        best = int(scores.argmax())
        return self._pieces[best] if scores[best] >= 0 else None

    def usefulness(self, piece: Remembered) -> float:
        """Return the upper confidence bound of the rating, at least 0."""
        total = self._total_trials
        bonus = self._exploration * math.sqrt(2 * math.log(total) / piece.trials) if total > 1 else 0.0
        return max(0.0, piece.rating + bonus)


class Similarity:
    """Cosine similarity of TF-IDF word vectors; numbers are ignored, as they name objects of a single room."""

    def __init__(self, texts: Sequence[str]) -> None:
        copies = Counter(texts)
        words = {text: _words(text) for text in copies}
        self._documents = max(1, len(texts))
        self._containing = Counter[str]()
        for text, count in copies.items():
            self._containing.update(dict.fromkeys(words[text], count))
        # Many pieces are written for the same task, so each distinct text is indexed once.
        place_of = {text: place for place, text in enumerate(copies)}
        self._places_T = np.array([place_of[text] for text in texts], dtype=np.intp)
        self._count = len(copies)
        self._postings = self._index(words.values())

    def to(self, text: str) -> Floats:
        """Return the similarity of each text to this one, between 0 and 1."""
        similarities = np.zeros(self._count)
        # Adding word by word in the order of the text gives the sums of the plain definition to the last bit.
        for word, weight in self._vector(_words(text)).items():
            if (posting := self._postings.get(word)) is not None:
                places, weights = posting
                similarities[places] += weight * weights
        return similarities[self._places_T]

    def _index(self, documents: Iterable[Mapping[str, int]]) -> dict[str, tuple[NDArray[np.intp], Floats]]:
        """Return for each word the positions of the documents that contain it, and its weights in them."""
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


def one_line(text: str) -> str:
    """Return the text with single blanks, by which pieces of advice are told apart."""
    return " ".join(text.split())


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))
