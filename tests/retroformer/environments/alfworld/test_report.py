"""Counts of an arm, places of an object, and their tables, worked by hand."""

from collections.abc import Iterable, Mapping, Sequence

from retroformer.environments.alfworld.report import (
    AdviceChapter,
    AdviceCounter,
    PlaceCounter,
    ReflectionCase,
    advice_tables,
)
from retroformer.files.document import Table
from retroformer.method.records import Trajectory
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


def count_places(arms: Mapping[str, Sequence[ReflectionCase]], attempts: Sequence[Trajectory]) -> PlaceCounter:
    """Return the places of arms in these cases, added task by task."""
    counter = PlaceCounter()
    failures = [case.failure for cases in arms.values() for case in cases]
    for task_id in dict.fromkeys(trajectory.task.id for trajectory in (*failures, *attempts)):
        read = {arm: [case for case in cases if case.failure.task.id == task_id] for arm, cases in arms.items()}
        counter.add(read, [trajectory for trajectory in attempts if trajectory.task.id == task_id])
    return counter


def table_of(counter: PlaceCounter, *arms: str) -> Table:
    table = counter.table(arms)
    assert table is not None
    return table


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


def test_a_type_counts_once_a_reflection_and_a_find_once_a_task() -> None:
    pens = ReflectionCase(attempt(task_id="pen/1", sentence="put some pen on desk"), "Look in desk 1.")
    arms = {
        "frozen": [
            ReflectionCase(BLIND, "Look in drawer 1-3."),
            ReflectionCase(SIGHTED, "Look in drawer 2, drawer 3 and shelf 1-2."),
        ],
        "trained": [ReflectionCase(BLIND, "Look in desk 1."), pens],
    }
    desk = attempt(*walked("desk 1", desk_1="mug 1"), took("mug 1", "desk 1"), task_id="mug/3", solved=True)
    failed = attempt(*walked("desk 1", desk_1="mug 1"), took("mug 1", "desk 1"), task_id="mug/4")
    counter = count_places(arms, [SOLVED, SOLVED, desk, failed])
    assert counter.failures == {"mug": 2, "pen": 1}
    assert counter.finds == {"mug": {"shelf": 1, "desk": 1}}
    # drawer 1 and shelf 1 had been searched; drawers 2 and 3 are one type, as are shelf 2 and the rest.
    assert counter.guesses["mug"] == {"frozen": {"drawer": 2, "shelf": 1}, "trained": {"desk": 1}}
    lines = markdown(table_of(counter, "frozen", "trained")).splitlines()
    assert lines[-4:] == [
        "| object | failures | found in (tasks) | frozen | trained |",
        "| --- | --- | --- | --- | --- |",
        "| mug | 2 | desk 1, shelf 1 | drawer 2, shelf 1 | desk 1 |",
        "| pen | 1 | - | - | desk 1 |",
    ]


def test_the_find_of_a_thing_counts_at_its_initial_place() -> None:
    again = (*walked("shelf 1", shelf_1="mug 2"), took("mug 2", "shelf 1"))
    back = attempt(*again, *walked("desk 1", desk_1="mug 2"), took("mug 2", "desk 1"), solved=True)
    counter = count_places({"trained": [ReflectionCase(BLIND, "Look in desk 1.")]}, [back])
    assert counter.finds == {"mug": {"shelf": 1}}


def test_six_objects_are_shown_and_no_arm_without_a_guess() -> None:
    things = ("apple", "book", "bowl", "cup", "fork", "mug", "pen")
    cases = [
        ReflectionCase(attempt(task_id=thing, sentence=f"put some {thing} on desk"), "Look in desk 1.")
        for thing in things
    ]
    counter = count_places({"trained": cases, "silent": []}, [])
    assert list(counter.failures) == list(things)
    shown = markdown(table_of(counter, "trained", "silent"))
    assert shown.count("| desk 1 |") == 6
    assert "| mug | 1 | - | desk 1 |" in shown
    assert "silent" not in shown


def test_three_types_of_place_are_shown_the_most_frequent_first() -> None:
    searched = attempt(sentence="put some mug on safe")
    opening = searched.opening.replace("a desk 1", "a desk 1, a bed 1")
    failure = searched.model_copy(update={"opening": opening})
    texts = ("Look in desk 1 and bed 1.", "Look in shelf 1 and drawer 1.", "Look in shelf 2.")
    counter = count_places({"trained": [ReflectionCase(failure, text) for text in texts]}, [])
    assert markdown(table_of(counter, "trained")).endswith("| mug | 1 | - | shelf 2, bed 1, desk 1 |")


def test_no_failure_gives_no_chapter() -> None:
    assert list(AdviceChapter([arm("trained")]).chapters()) == []
