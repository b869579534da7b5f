"""Odd actions for any environment, as strategies of hypothesis."""

from collections.abc import Sequence

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_MEGABYTE = 1_000_000
_LONG = ("a", " ", "[", "]", "\x00", "\U0001f600", "\ud800", "no such word ", "the ", "a b c d e f g h ", "\n", '"')
_TEXT = st.text(st.characters(exclude_categories=()), max_size=60) | st.text(
    "[](){}<>|#*^:\"'`~\\/ \x00\n", max_size=60
)
_WORDS = st.sampled_from(("OR", "AND", "NOT", "NEAR", "title:", "thought", "Action 1:", "reset", "null", "\ufeff"))

every_episode = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)
"""Settings of a test that plays episodes: the same ones in every run, however long they take."""


def odd_actions(verbs: Sequence[str], valid: Sequence[str] = (), most: int = 20) -> st.SearchStrategy[list[str]]:
    """Draw up to `most` actions of one episode: nonsense, nested brackets, spoilt valid ones, and a megabyte.

    Args:
        verbs: beginnings of the environment's actions, such as `Search` or `go to`.
        valid: actions of the environment, or parts of them, which are also joined, cut and mixed with signs.
        most: longest episode.
    """
    verb = st.sampled_from(tuple(verbs)) | st.sampled_from(tuple(verbs)).map(str.upper)
    opening, closing = st.sampled_from(("[", "[[", " ", ":", "(", "")), st.sampled_from(("]", "", ")"))
    called = st.tuples(verb, opening, _TEXT, closing).map("".join)
    nested = st.builds(lambda head, depth, text: head + "[" * depth + text + "]", verb, st.integers(0, 400), _TEXT)
    long = st.builds(lambda head, piece: head + piece * (_MEGABYTE // len(piece)) + "]", verb, st.sampled_from(_LONG))
    joined = st.lists(st.sampled_from((*valid, *verbs)) | _TEXT | _WORDS, max_size=4).map("".join)
    cut = st.builds(lambda text, place: text[: place % (len(text) + 1)], joined, st.integers(0, 60))
    usual = st.sampled_from(tuple(valid) or tuple(verbs))
    # A megabyte is rare, as each takes as long as hundreds of other actions.
    action = st.integers(0, 49).flatmap(lambda dice: long if dice == 49 else called | nested | joined | cut | usual)
    return st.lists(action, max_size=most)
