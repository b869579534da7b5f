"""How an answer counts against the gold answer: exact match, and two versions of F1.

The return of HotPotQA is `f1_without_stop_words` (Retroformer, section 4.1): words in common once articles, punctuation
and English stop words are gone. `f1` is the same without the stop-word list, as SQuAD, HotPotQA and ReAct count it.
"""

import re
import string
from collections import Counter

from retroformer.environments.hotpotqa.stop_words import ENGLISH

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLE = re.compile(r"\b(a|an|the)\b")
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


def normalize(answer: str) -> str:
    """Lower case, without ASCII punctuation and articles, single blanks (SQuAD's rule)."""
    return " ".join(_ARTICLE.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, gold: str) -> bool:
    """Whether both are the same once normalised. This is the success signal of the papers, an oracle."""
    return normalize(answer) == normalize(gold)


def f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of the normalised words, in [0, 1].

    `yes`, `no` and `noanswer` are right as a whole or worth nothing: "no one" earns nothing for "no".
    """
    if _is_closed_and_wrong(answer, gold):
        return 0.0
    return _overlap(normalize(answer).split(), normalize(gold).split())


def f1_without_stop_words(answer: str, gold: str) -> float:
    """The paper's F1, in [0, 1]: as `f1`, over the words that are no stop words.

    An answer or a gold answer that has nothing but stop words ("The Who", "It") would be empty, so for such a pair all
    words count, as in `f1`.
    """
    if _is_closed_and_wrong(answer, gold):
        return 0.0
    answer_words, gold_words = normalize(answer).split(), normalize(gold).split()
    answer_content, gold_content = _content(answer_words), _content(gold_words)
    if not answer_content or not gold_content:
        return _overlap(answer_words, gold_words)
    return _overlap(answer_content, gold_content)


def _is_closed_and_wrong(answer: str, gold: str) -> bool:
    pair = {normalize(answer), normalize(gold)}
    return len(pair) == 2 and not pair.isdisjoint(_CLOSED_ANSWERS)


def _content(words: list[str]) -> list[str]:
    return [word for word in words if word not in ENGLISH]


def _overlap(answer_words: list[str], gold_words: list[str]) -> float:
    """2PR / (P + R) over multisets of words; 0 without a common word, but 1 for two equal answers without any."""
    if answer_words == gold_words:
        return 1.0
    common = (Counter(answer_words) & Counter(gold_words)).total()
    return 2 * common / (len(answer_words) + len(gold_words))
