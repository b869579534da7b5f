"""Sentence splitter, accurate enough for Lookup."""

import re

_END = re.compile(r"([.!?])[\"'\u201d\u2019)\]]*\s+")
_LAST_WORD = re.compile(r"[\w.]*$")
_WORDS = "mr mrs ms dr st jr sr vs prof gen col lt sgt capt rev hon inc ltd co corp ca approx fl op vol pp ed feat"
_ABBREVIATIONS = frozenset(_WORDS.split())
_LONGEST_WORD = 20


def sentences(paragraph: str) -> list[str]:
    """Return the sentences in order, without the blanks between them.

    A sentence ends with a full stop, question or exclamation mark before a blank, unless a small letter follows, or the
    stop belongs to an initial or an abbreviation (`J. K.`, `U.S.`, `Dr.`): joining two is better than cutting one.
    """
    pieces, start = list[str](), 0
    for end in _END.finditer(paragraph):
        next_character = paragraph[end.end() : end.end() + 1]
        if not next_character or next_character.islower() or (end[1] == "." and _is_short(paragraph, end.start())):
            continue
        pieces.append(paragraph[start : end.end()].strip())
        start = end.end()
    return [piece for piece in (*pieces, paragraph[start:].strip()) if piece]


def _is_short(paragraph: str, stop: int) -> bool:
    """Return True if the word before the full stop at this position is an initial or an abbreviation."""
    word = _LAST_WORD.search(paragraph[max(0, stop - _LONGEST_WORD) : stop])
    assert word is not None
    return (len(word[0]) == 1 and word[0].isalpha()) or "." in word[0] or word[0].lower() in _ABBREVIATIONS
