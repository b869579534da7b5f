"""Similarity of texts by their words, as arrays: numpy is not loaded when a config is read."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_WORD = re.compile(r"[^\W\d_]+")


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


def _words(text: str) -> Counter[str]:
    return Counter(_WORD.findall(text.lower()))
