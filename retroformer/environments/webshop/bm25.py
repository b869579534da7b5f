"""Search with Lucene's BM25, exact to the last bit of its scores, over an index in a SQLite database.

    posting(word, part, data)   for each word and each part of the documents: pairs of document and count, uint32
    length(code)                length of each document, in document order, as the byte that Lucene stores
    place(data)                 position of each document when sorted by name, which decides ties; uint32

Scores are computed as in Lucene 9 (BM25Similarity.java): each word's score in float32, their sum in float64, rounded to
float32 at the end. k1 and b are Anserini's. Only the first 1,024 distinct words of a query count; Lucene refuses more.
"""

import math
import sqlite3
from array import array
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from retroformer.environments.webshop.words import words

Floats = npt.NDArray[np.float32]

_K1, _B, _ONE = np.float32(0.9), np.float32(0.4), np.float32(1)
_MOST_WORDS = 1024
_PART = 100_000
"""Number of documents whose postings are in memory at once."""
_TABLES = """
    CREATE TABLE posting(word TEXT, part INTEGER, data BLOB, PRIMARY KEY(word, part));
    CREATE TABLE length(code BLOB, average REAL, documents INTEGER);
    CREATE TABLE place(data BLOB);
"""


class IndexWriter:
    """Writer of an index; documents are added in order and numbered from 0."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._names: list[str] = []
        self._lengths = bytearray()
        self._words_in_all = self._not_empty = 0
        self._postings: dict[str, array[int]] = {}
        database.executescript(_TABLES)

    def add(self, name: str, contents: str) -> None:
        """Add a document. Names decide the order of equal scores."""
        counts = Counter(words(contents))
        for word, count in counts.items():
            self._postings.setdefault(word, array("I")).extend((len(self._names), count))
        self._names.append(name)
        self._lengths.append(length_code(counts.total()))
        self._words_in_all += counts.total()
        self._not_empty += bool(counts)
        if len(self._names) % _PART == 0:
            self._flush()

    def finish(self) -> None:
        """Write the postings that are still in memory."""
        self._flush()
        order = sorted(range(len(self._names)), key=self._names.__getitem__)
        places = np.empty(len(order), dtype=np.uint32)
        places[order] = np.arange(len(order), dtype=np.uint32)
        average = self._words_in_all / max(1, self._not_empty)
        self._database.execute("INSERT INTO length VALUES (?, ?, ?)", (bytes(self._lengths), average, self._not_empty))
        self._database.execute("INSERT INTO place VALUES (?)", (places.tobytes(),))

    def _flush(self) -> None:
        rows = ((word, len(self._names), data.tobytes()) for word, data in sorted(self._postings.items()))
        self._database.executemany("INSERT INTO posting VALUES (?, ?, ?)", rows)
        self._postings = {}


class SearchIndex:
    """Searchable index of the documents of a database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        codes, average, self._documents = database.execute("SELECT code, average, documents FROM length").fetchone()
        self._norms: Floats = _norms(np.float32(average))[np.frombuffer(codes, dtype=np.uint8)]
        self._places = np.frombuffer(database.execute("SELECT data FROM place").fetchone()[0], dtype=np.uint32)

    def search(self, query: str, count: int = 50) -> list[int]:
        """Return the best documents, best first, ties by name; only those that contain a word of the query."""
        totals = np.zeros(len(self._norms))
        for word, times in islice(Counter(words(query)).items(), _MOST_WORDS):
            documents, frequencies = self._postings(word)
            if len(documents):
                # Lucene's idf, which is never negative.
                rarity = math.log(1 + (self._documents - len(documents) + 0.5) / (len(documents) + 0.5))
                weight = np.float32(times) * np.float32(rarity)
                # Not simplified: each operation rounds, and equal scores must come out equal.
                totals[documents] += weight - weight / (_ONE + frequencies * self._norms[documents])
        return self._best(totals, count)

    def _postings(self, word: str) -> tuple[npt.NDArray[Any], Floats]:
        parts = self._database.execute("SELECT data FROM posting WHERE word = ? ORDER BY part", (word,))
        pairs = np.frombuffer(b"".join(data for (data,) in parts), dtype=np.uint32).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1].astype(np.float32)

    def _best(self, totals: npt.NDArray[np.float64], count: int) -> list[int]:
        matching = np.flatnonzero(totals)
        scores = totals[matching].astype(np.float32)
        if len(matching) > count:
            kept = scores >= np.partition(scores, -count)[-count]
            matching, scores = matching[kept], scores[kept]
        order = np.lexsort((self._places[matching], -scores))[:count]
        return [int(document) for document in matching[order]]


def _norms(average: np.float32) -> Floats:
    """Return 1 / (k1 (1 - b + b length / average)) for each length code."""
    lengths = np.array([length_of(code) for code in range(256)], dtype=np.float32)
    norms: Floats = _ONE / (_K1 * ((_ONE - _B) + _B * lengths / average))
    return norms


def length_code(length: int) -> int:
    """Return a length in one byte, as Lucene's SmallFloat: exact below 40, then with four significant bits."""
    return length if length < _EXACT else _EXACT + _four_bits(length - _EXACT)


def length_of(code: int) -> int:
    """Return the length that a byte stands for, which is the original length rounded down."""
    return code if code < _EXACT else _EXACT + _from_four_bits(code - _EXACT)


def _four_bits(number: int) -> int:
    shift = number.bit_length() - 4
    return number if shift < 0 else (number >> shift & 7) | (shift + 1) << 3


def _from_four_bits(code: int) -> int:
    shift = (code >> 3) - 1
    return code & 7 if shift < 0 else (code & 7 | 8) << shift


_EXACT = 255 - _four_bits(2**31 - 1)
"""Number of lengths, from 0, that have their own code."""
