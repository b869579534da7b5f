"""Scores of an answer against the gold answer: exact match, and two versions of F1.

The return of HotPotQA is `f1_without_stop_words` (Retroformer, section 5.1); `f1` is that of SQuAD, HotPotQA and ReAct.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

_WORDS = """
    a an the
    me my myself we our ours ourselves you your yours yourself yourselves he him his himself she her hers
    herself it its itself they them their theirs themselves
    this that these those there here
    who whom whose which what when where why how
    am is are was were be been being do does did doing have has had having
    can could might must shall should would cannot
    and or but nor if because as until while although though than so both either neither
    of at by for with about against between into through during before after above below to from up down in out on
    off over under upon onto within without among toward towards per via
    again further then once also only just very too not any all each every some such same other more most own
"""
ENGLISH = frozenset(_WORDS.split())
"""Words of other lists that are answers or parts of names are missing on purpose: `yes`, `no`, `one`, `i` (Elizabeth
I), `us` (U.S.), `may` (the month), `will` (Will Smith), halves of contractions (`t`, `don`)."""

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize(answer: str) -> str:
    """Return the answer in lower case, without ASCII punctuation and articles, with single blanks (SQuAD's rule)."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> bool:
    """Return True if both are equal once normalised. This is the papers' success signal, an oracle."""
    return normalize(answer) == normalize(gold)


def f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of the normalised words, in [0, 1].

    `yes`, `no` and `noanswer` only count as a whole: "no one" scores 0 against "no".
    """
    pair = {normalize(answer), normalize(gold)}
    if len(pair) == 2 and not pair.isdisjoint(CLOSED_ANSWERS):
        return 0.0
    return _overlap(normalize(answer).split(), normalize(gold).split())


def f1_without_stop_words(answer: str, gold: str) -> float:
    """Return the paper's F1, in [0, 1]: `f1` over the words that are not stop words.

    If the answer or the gold answer consists only of stop words ("The Who", "It"), all words of the pair count, as in
    `f1`.
    """
    of_all_words = f1(answer, gold)
    content = [[word for word in normalize(text).split() if word not in ENGLISH] for text in (answer, gold)]
    return _overlap(*content) if of_all_words and all(content) else of_all_words


def _overlap(answer_words: list[str], gold_words: list[str]) -> float:
    """Return 2PR / (P + R) over multisets of words; 0 without a common word, but 1 if both are empty."""
    if answer_words == gold_words:
        return 1.0
    common = (Counter(answer_words) & Counter(gold_words)).total()
    return 2 * common / (len(answer_words) + len(gold_words))


RETURNS: Mapping[str, Callable[[str, str], float]] = MappingProxyType(
    {"f1": f1_without_stop_words, "f1_with_stop_words": f1, "em": exact_match}
)
"""Return of an answer, given the gold answer, by name: the paper's F1; the F1 of SQuAD and ReAct, which has no
stop-word list; exact match."""
