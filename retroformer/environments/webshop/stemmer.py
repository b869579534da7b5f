"""Porter's stemmer (Program 14(3), 1980) with its author's later changes, as in Lucene.

The changes: words of one or two letters stay as they are, `-bli` becomes `-ble` (it was `-abli`), and `-logi` `-log`.
Everything that is not a vowel counts as a consonant, including digits and letters of other alphabets.

Snowball's `porter` cannot replace it: it lacks the changes (`technologi`, `assembli`, `u` for `us`), and keeps the
second letter of `trekk`.
"""

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
    """Return the stem of a word in lower case."""
    if len(word) <= 2:
        return word
    word = _without_plural(word)
    word = _without_past_or_progressive(word)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        word = word[:-1] + "i"
    word = _replace_suffix(word, _AFTER_PLURALS)
    word = _replace_suffix(word, _AFTER_DOUBLE_SUFFIXES)
    word = _without_last_suffix(word)
    return _tidy(word)


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


def _ends_in_double_consonant(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _ends_short(word: str) -> bool:
    """Return True for consonant, vowel, consonant other than w, x, y: such a word had a silent e (hop-ing, hope)."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    if word.endswith("s") and not word.endswith("ss"):
        return word[:-1]
    return word


def _without_past_or_progressive(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest != word:
            return _repaired(rest) if "v" in _shape(rest) else word
    return word


def _repaired(word: str) -> str:
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_in_double_consonant(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


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
