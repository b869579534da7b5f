"""How the wording of advice differs between its authors: length, flags, and the words that one uses more."""

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..measure.statistics import Floats
from .index import Index

FLAGS = ("truncated", "copy", "repeated plan", "same steps")
"""Flags whose share is given."""
_WORDS = 12
"""Words that are shown on each side."""
_PRIOR = 0.5
_CLEAR = 1.96
"""Standard deviations from which a difference is shown."""


@dataclass(frozen=True)
class Wording:
    """Counts over the advice of one model in one arm."""

    author: int
    """Number of the author in the index."""
    run: str
    arm: str
    model: str
    pieces: int
    words: int
    rated: int
    gained: int
    rating: float
    """Sum of the ratings."""
    flagged: Mapping[str, int]

    @property
    def name(self) -> str:
        return f"{self.arm}, {self.model}"


def wordings(index: Index, run: str) -> list[Wording]:
    """Return the counts of each arm's models, in the order of their first advice."""
    flags = ", ".join(f"sum(instr(flags, '[{flag}]') > 0) AS flag{number}" for number, flag in enumerate(FLAGS))
    query = (
        "SELECT author.id, arm, model, pieces, words, rated, gained, rating, counted.* FROM author JOIN ("
        "SELECT author, count(*) AS pieces, sum(words) AS words, count(rating) AS rated, sum(rating > 0) AS gained, "
        f"sum(rating) AS rating, min(written_at) AS written_at, {flags} FROM advice "
        "WHERE words AND author IN (SELECT id FROM author WHERE run = :run) GROUP BY author"
        ") AS counted ON counted.author = author.id ORDER BY written_at, author.id"
    )
    with index.connect() as connection:
        return [_wording(run, row) for row in connection.execute(query, {"run": run})]


def _wording(run: str, row: sqlite3.Row) -> Wording:
    return Wording(
        author=row["author"],
        run=run,
        arm=row["arm"],
        model=row["model"],
        pieces=row["pieces"],
        words=row["words"],
        rated=row["rated"],
        gained=row["gained"] or 0,
        rating=row["rating"] or 0.0,
        flagged={flag: row[f"flag{number}"] for number, flag in enumerate(FLAGS)},
    )


def typical_words(index: Index, one: Wording, other: Wording) -> Sequence[tuple[str, int, int]]:
    """Return the words that are more typical of `one`, with the number of pieces of each that hold them.

    They are ordered by the log odds ratio in units of its standard deviation (Monroe et al., 2008, eq. 22, with a flat
    prior), so that rare words do not come first.
    """
    query = (
        "SELECT word, pieces, ifnull((SELECT pieces FROM author_word WHERE author = :other AND word = here.word), 0) "
        "FROM author_word AS here WHERE author = :one AND pieces >= :least"
    )
    chosen = {"one": one.author, "other": other.author, "least": _least_pieces(one, other)}
    with index.connect() as connection:
        rows = [tuple(row) for row in connection.execute(query, chosen)]
    counts = np.array([row[1:] for row in rows], dtype=float).reshape(-1, 2)
    scores = _scores(counts[:, 0], one.pieces, counts[:, 1], other.pieces)
    ranked = sorted((-scores[number], rows[number]) for number in np.flatnonzero(scores > _CLEAR))
    return [row for _, row in ranked[:_WORDS]]


def _least_pieces(one: Wording, other: Wording) -> int:
    """Return the number of pieces below which no word differs clearly, even if the other author never uses it."""
    here_K = np.arange(1.0, one.pieces + 1)
    scores = _scores(here_K, one.pieces, np.zeros_like(here_K), other.pieces)
    return 1 + int(np.count_nonzero(np.maximum.accumulate(scores) <= _CLEAR))


def _scores(here_W: Floats, pieces_here: int, there_W: Floats, pieces_there: int) -> Floats:
    """Return the log odds ratio of each word in units of its standard deviation, (W,)."""
    a, b = here_W + _PRIOR, pieces_here - here_W + _PRIOR
    c, d = there_W + _PRIOR, pieces_there - there_W + _PRIOR
    scores: Floats = np.log(a * d / (b * c)) / np.sqrt(1 / a + 1 / b + 1 / c + 1 / d)
    return scores
