"""Counts of an arm, places of an object, and their tables, worked by hand."""

from collections.abc import Iterable

from retroformer.environments.alfworld.report import (
    AdviceChapter,
    AdviceCounter,
    ReflectionCase,
    advice_tables,
)
from tests.support.evaluations import arm
from tests.support.household import attempt, took, walked
from tests.support.markdown_tables import markdown

BLIND = attempt(*walked("drawer 1", "drawer 2"))
SIGHTED = attempt(*walked("drawer 1", "shelf 1", shelf_1="mug 2, pen 1"), task_id="mug/2")
SOLVED = attempt(*walked("shelf 1", shelf_1="mug 2"), took("mug 2", "shelf 1"), task_id="mug/2", solved=True)
CASES = (
    ReflectionCase(BLIND, "Look in drawer 3 and drawer 8.", attempt(*walked("desk 1", "drawer 3"))),
    ReflectionCase(BLIND, "Look in drawer 1-2.", attempt(*walked("desk 1", "shelf 2", "drawer 1"))),
    ReflectionCase(BLIND, "Try harder next time."),
    ReflectionCase(SIGHTED, "The mug 2 is in  shelf 1.", SOLVED),
    ReflectionCase(
        SIGHTED, "The mug 2 is in shelf 1.", attempt(*walked("shelf 1")), given=("The mug 2 is in shelf 1.",)
    ),
    ReflectionCase(SIGHTED, "Look on the shelves.", SOLVED),
)
COUNTS = {
    "reflections": 6,
    # 7 + 4 + 4 + 7 + 7 + 4
    "words": 33,
    "unusable": 1,
    # drawer 3, and shelf 2 of the shelves
    "searching_on": 2,
    "restating": 2,
    "places": 8,
    "unsearched": 2,
    "seen": 3,
    "exhausted": 2,
    # drawer 8
    "invented": 1,
    "sighted": 3,
    "locating": 2,
    "sent_back": 3,
    "retries": 5,
    "directed": 5,
    "followed": 4,
    "solved": 2,
}


def measure(cases: Iterable[ReflectionCase]) -> AdviceCounter:
    counter = AdviceCounter()
    for case in cases:
        counter.add(case)
    return counter


def test_an_arm_is_counted_as_by_hand() -> None:
    counter = measure(CASES)
    assert counter.counts == COUNTS
    assert len(counter.texts) == 5


def test_the_tables_give_counts_with_their_shares() -> None:
    text = markdown(*advice_tables({"trained": measure(CASES)}))
    assert "| trained | 6 | 5 | 5.5 | 2 of 6 (33%) | 2 of 6 (33%) | 1 of 6 (17%) |" in text
    assert "| trained | 8 | 2 of 8 (25%) | 3 of 8 (38%) | 2 of 8 (25%) | 1 of 8 (12%) |" in text
    assert "| 2 of 3 (67%) | 3 of 3 (100%) |\n" in text
    assert "| trained | 5 | 5 of 5 (100%) | 4 of 5 (80%) | 2 of 5 (40%) |" in text


def test_an_arm_that_wrote_nothing_has_no_row() -> None:
    silent = measure([ReflectionCase(BLIND, "", BLIND)])
    assert "no reflection" not in markdown(*advice_tables({"no reflection": silent, "trained": measure(CASES)}))
    assert advice_tables({"no reflection": silent}) == []


def test_a_share_of_zero_is_a_dash() -> None:
    text = markdown(*advice_tables({"frozen": measure([ReflectionCase(BLIND, "Try harder.")])}))
    assert "| frozen | 0 | - | - | - | - | - | - |" in text
    assert "| frozen | 0 | - | - | - |" in text


def test_no_failure_gives_no_chapter() -> None:
    assert list(AdviceChapter([arm("trained")]).chapters()) == []
