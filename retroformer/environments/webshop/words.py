"""Words of a text as in Lucene's English analysis: Unicode's annex 29, possessives, stop words, stems.

The text is first mapped to a string of classes, one letter per character, so that the annex's rules are one expression:

    L letter   N digit   K katakana   H ideograph or hiragana   S script without blanks, such as Thai   P pictograph
    R regional indicator   E connector (_)   X mark that extends the previous character   Z zero-width joiner
    m : between letters   q ' . between letters or between digits   n , ; between digits   - anything else

Simpler than Lucene: no rules for Hebrew quotes, and a token longer than 255 characters is cut by code points.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

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
