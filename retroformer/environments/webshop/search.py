"""Search with Lucene's BM25, exact to the last bit of its scores, over an index in a SQLite database.

    posting(word, part, data)   for each word and each part of the documents: pairs of document and count, uint32
    length(code)                length of each document, in document order, as the byte that Lucene stores
    place(data)                 position of each document when sorted by name, which decides ties; uint32

Scores are computed as in Lucene 9 (BM25Similarity.java): each word's score in float32, their sum in float64, rounded to
float32 at the end. k1 and b are Anserini's. Only the first 1,024 distinct words of a query count; Lucene refuses more.

Words of a text as in Lucene's English analysis: Unicode's annex 29, possessives, stop words, stems.

The text is first mapped to a string of classes, one letter per character, so that the annex's rules are one expression:

    L letter   N digit   K katakana   H ideograph or hiragana   S script without blanks, such as Thai   P pictograph
    R regional indicator   E connector (_)   X mark that extends the previous character   Z zero-width joiner
    m : between letters   q ' . between letters or between digits   n , ; between digits   - anything else

Simpler than Lucene: no rules for Hebrew quotes, and a token longer than 255 characters is cut by code points.
"""

import math
import re
import sqlite3
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

_AFTER_PLURALS = (
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate")),
    *(("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al")),
    *(("iviti", "ive"), ("biliti", "ble"), ("logi", "log")),
)
_AFTER_DOUBLE_SUFFIXES = (
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")),
)
_LAST = "al ance ence er ic able ible ant ement ment ent ion ou ism ate iti ous ive ize"
_LAST_SUFFIXES = tuple(_LAST.split())
"""Suffixes of the last step; if one ends another, the longer comes first."""


def stem(word: str) -> str:
    """Return the stem of a word in lower case, by Porter's stemmer (Program 14(3), 1980) as in Lucene.

    That has its author's later changes: words of one or two letters stay as they are, `-bli` becomes `-ble` (it was
    `-abli`), and `-logi` `-log`. Everything that is not a vowel counts as a consonant, including digits and letters of
    other alphabets. Snowball's `porter` lacks the changes, and keeps the second letter of `trekk`.
    """
    if len(word) <= 2:
        return word
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _without_past_or_progressive(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(_replace_suffix(word, _AFTER_PLURALS), _AFTER_DOUBLE_SUFFIXES)
    return _tidy(_without_last_suffix(word))


def _shape(word: str) -> str:
    """Return the word with `c` for each consonant and `v` for each vowel; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        vowel = letter in "aeiou" or (letter == "y" and shape.endswith("c"))
        shape += "v" if vowel else "c"
    return shape


def _measure(word: str) -> int:
    """Return the number of times a vowel is followed by a consonant: m of [C](VC)^m[V]."""
    return _shape(word).count("vc")


def _ends_short(word: str) -> bool:
    """Return True for consonant, vowel, consonant other than w, x, y: such a word had a silent e (hop-ing, hope)."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _without_past_or_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest == word:
            continue
        if "v" not in _shape(rest):
            return word
        if rest.endswith(("at", "bl", "iz")) or (_measure(rest) == 1 and _ends_short(rest)):
            return rest + "e"
        double = len(rest) > 1 and rest[-1] == rest[-2] and _shape(rest)[-1] == "c" and rest[-1] not in "lsz"
        return rest[:-1] if double else rest
    return word


def _replace_suffix(word: str, rules: tuple[tuple[str, str], ...]) -> str:
    """Apply the first rule whose suffix the word has, if the part before it has a measure."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            return rest + replacement if _measure(rest) > 0 else word
    return word


def _without_last_suffix(word: str) -> str:
    for suffix in _LAST_SUFFIXES:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            if suffix == "ion" and not rest.endswith(("s", "t")):
                return word
            return rest if _measure(rest) > 1 else word
    return word


def _tidy(word: str) -> str:
    """Return the word without a superfluous final e, and with one final l instead of two."""
    if word.endswith("e"):
        measure = _measure(word)
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word) > 1:
        word = word[:-1]
    return word


_STOPPED = """
    a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with
"""
STOP_WORDS = frozenset(_STOPPED.split())
_LONGEST = 255
_POSSESSIVES = ("'s", "\u2019s", "\uff07s")

_CONNECTED = dict.fromkeys("\u202f", "E") | dict.fromkeys("\u200d", "Z") | dict.fromkeys("\u066b", "N")
_BETWEEN = (
    dict.fromkeys(":\xb7\u0387\u055f\u05f4\u2027\ufe13\ufe55\uff1a", "m")
    | dict.fromkeys("'.\u2018\u2019\u2024\ufe52\uff07\uff0e", "q")
    | dict.fromkeys(",;\u037e\u0589\u060c\u060d\u066c\u07f8\u2044\ufe10\ufe14\ufe50\ufe54\uff0c\uff1b", "n")
)
_BY_CATEGORY = {"Pc": "E", "Nd": "N", "Mn": "X", "Mc": "X", "Me": "X", "Cf": "X"}
_LETTERS = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl"})
_LETTERS_BY_NAME = (
    (("CJK ", "IDEOGRAPHIC ", "HIRAGANA ", "HANGZHOU ", "TANGUT "), "H"),
    (("KATAKANA", "HALFWIDTH KATAKANA LETTER", "HALFWIDTH KATAKANA-HIRAGANA", "VERTICAL KANA"), "K"),
    (("HALFWIDTH KATAKANA",), "X"),
    (("THAI ", "LAO ", "MYANMAR ", "KHMER ", "TAI ", "NEW TAI ", "AHOM "), "S"),
)
_SIGNS_BY_NAME = ((("EMOJI MODIFIER",), "X"), (("REGIONAL INDICATOR",), "R"), (("CIRCLED LATIN",), "L"))
# Extended_Pictographic of Unicode's emoji-data 12.1, without characters that unicodedata calls letters.
_PICTOGRAPHS = re.compile(
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714"
    "\u2716\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1"
    "\u27b0\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001f0ff"
    "\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a"
    "\U0001f1ad-\U0001f1e5\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff\U0001f774-\U0001f77f"
    "\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f\U0001f85a-\U0001f85f\U0001f888-\U0001f88f"
    "\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a\U0001f93c-\U0001f945\U0001f947-\U0001fffd]"
)

# Possessive quantifiers: a megabyte of underscores or of marks must cost one pass, not its square.
_X = "[XZ]*+"
_LETTER_RUN = f"L{_X}(?:(?:[mq]{_X})?L{_X})*+"
_DIGIT_RUN = f"N{_X}(?:(?:[nq]{_X})?N{_X})*+"
_RUN = f"(?:(?:{_LETTER_RUN}|{_DIGIT_RUN})++|(?:K{_X})++)"
_CONNECTORS = f"(?:E{_X})++"
_WORD = f"{_RUN}(?:{_CONNECTORS}{_RUN})*+(?:{_CONNECTORS})?"
_SEGMENT = re.compile(
    f"{_CONNECTORS}(?:{_WORD})?|{_WORD}|P{_X}(?:(?<=Z)P{_X})*+|R{_X}R{_X}|H{_X}|(?:S{_X})++",
)


def words(text: str) -> list[str]:
    """Return the stems by which a search compares a text, in order."""
    return [word for segment in _segments(text) if (word := _word(segment))]


@lru_cache(maxsize=500_000)
def _word(segment: str) -> str:
    """Return the stem of a segment; empty for a stop word."""
    word = segment.lower()
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    return "" if word in STOP_WORDS else stem(word)


def _segments(text: str) -> Iterator[str]:
    classes = text.translate(_CLASSES)
    for segment in _SEGMENT.finditer(classes):
        start, end = segment.span()
        if classes[start] == "E" and not classes[start:end].strip("EXZ"):
            continue
        if end - start <= _LONGEST:
            yield text[start:end]
        else:
            yield from (text[begin : min(end, begin + _LONGEST)] for begin in range(start, end, _LONGEST))


class _Classes(dict[int, str]):
    """Class of each code point, computed on first use."""

    def __missing__(self, code: int) -> str:
        self[code] = letter = _class(chr(code))
        return letter


def _class(character: str) -> str:
    joiner = _CONNECTED.get(character) or _BETWEEN.get(character)
    if joiner:
        return joiner
    if character == "\u200b":
        return "-"
    category, name = unicodedata.category(character), unicodedata.name(character, "")
    for prefixes, letter in _LETTERS_BY_NAME if category in _LETTERS else _SIGNS_BY_NAME:
        if name.startswith(prefixes):
            return letter
    if category in _LETTERS:
        return "L"
    return "P" if _PICTOGRAPHS.match(character) else _BY_CATEGORY.get(category, "-")


_CLASSES = _Classes()


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
    if code < _EXACT:
        return code
    shift, bits = (code - _EXACT >> 3) - 1, code - _EXACT & 7
    return _EXACT + (bits if shift < 0 else (bits | 8) << shift)


def _four_bits(number: int) -> int:
    shift = number.bit_length() - 4
    return number if shift < 0 else (number >> shift & 7) | (shift + 1) << 3


_EXACT = 255 - _four_bits(2**31 - 1)
"""Number of lengths, from 0, that have their own code."""
