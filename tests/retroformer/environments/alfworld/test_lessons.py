"""Lessons: their texts express their meaning, kinds have their shares, and all facts come from the game."""

from collections import Counter
from random import Random

import pytest

from retroformer.environments.alfworld.advice_reader import PlaceAdvice, plural, read_advice
from retroformer.environments.alfworld.attempt_reader import Goal, RoomKnowledge, Solution
from retroformer.environments.alfworld.scripted_play import (
    NO_LESSON,
    SHARES,
    TeacherView,
    WrittenLesson,
    as_listed,
    meaning,
    write_lesson,
)

ORDER = ("desk 1", "drawer 1", "drawer 2", "drawer 3", "shelf 1", "shelf 2", "sinkbasin 1", "bed 1", "safe 1")
GOAL = Goal(thing="mug", transform="clean", target="desk")


def game(thing: str = "mug", looked: tuple[str, ...] = ("desk 1", "drawer 1")) -> TeacherView:
    seen = RoomKnowledge()
    for place in looked:
        seen.watch(f"go to {place}", "nothing")
    return TeacherView(
        Goal(thing=thing, transform="clean", target="desk"),
        ORDER,
        seen,
        Solution(((f"{thing} 1", "shelf 2"),), "sinkbasin 1", "desk 1"),
    )


def lessons(count: int) -> list[WrittenLesson]:
    random = Random(0)
    return [write_lesson(game(), game("plate", ("drawer 1", "bed 1")), random) for _ in range(count)]


def test_lesson_kinds_have_their_declared_shares() -> None:
    assert sum(SHARES.values()) == pytest.approx(1)
    kinds = Counter(lesson.kind for lesson in lessons(4000))
    assert {kind: kinds[kind] / 4000 for kind in SHARES} == pytest.approx(dict(SHARES), abs=0.025)


def test_an_independent_reader_finds_the_meaning_in_the_words() -> None:
    """The rule-based actor's reader recovers the meaning from the text alone."""
    read = [lesson for lesson in lessons(600) if len(lesson.texts) == 1 and lesson.kind in ("hindsight", "places")]
    assert len(read) > 200
    for lesson in read:
        advice = read_advice(lesson.texts, ORDER, GOAL)
        # "The mug may be in X" is a place to look into for the writer and a sighting for the reader.
        places = advice.first or advice.sightings.get("mug", ())
        assert as_listed(places) == lesson.advice.first, lesson.texts


def test_a_lesson_names_what_the_failure_saw_and_continues_after_it() -> None:
    for lesson in lessons(600):
        if lesson.kind == "hindsight" and len(lesson.texts) == 1:
            assert not {"desk 1", "drawer 1"} & set(lesson.advice.first)
            if lesson.advice.first:
                assert lesson.advice.first[0] == "drawer 2"


def test_the_omniscient_lesson_says_where_the_thing_is() -> None:
    omniscient = [lesson for lesson in lessons(600) if lesson.kind == "oracle"]
    assert omniscient
    assert all(lesson.advice.sightings == {"mug": ("shelf 2",)} for lesson in omniscient)
    assert all("mug 1" in lesson.texts[-1] and "shelf 2" in lesson.texts[-1].lower() for lesson in omniscient)


def test_advice_for_another_game_means_only_its_places_and_things_in_this_room() -> None:
    foreign = PlaceAdvice(
        first=("drawer 3", "fridge 1"),
        sightings={"plate": ("shelf 1",), "mug": ("bed 1", "cabinet 1")},
        targets=("shelf 1", "desk 1"),
        appliances=("microwave 1",),
    )
    assert meaning(foreign, GOAL, ORDER) == PlaceAdvice(
        first=("drawer 3",), sightings={"mug": ("bed 1",)}, targets=("desk 1",)
    )


def test_places_of_an_older_reflection_come_last() -> None:
    advised_twice = [lesson for lesson in lessons(2000) if len(lesson.texts) == 2 and lesson.kind == "hindsight"]
    assert advised_twice
    for lesson in advised_twice:
        assert {"desk 1", "drawer 1"} <= set(lesson.advice.skip)


def test_without_anything_to_say_there_is_no_lesson() -> None:
    everything = game(looked=ORDER)
    said = [write_lesson(everything, everything, Random(seed)) for seed in range(300)]
    assert all(lesson.texts and all(lesson.texts) for lesson in said if lesson != NO_LESSON)


@pytest.mark.parametrize(("singular", "expected"), [("shelf", "shelves"), ("drawer", "drawers"), ("couch", "couches")])
def test_plurals(singular: str, expected: str) -> None:
    assert plural(singular) == expected


def test_places_are_in_the_order_in_which_ranges_name_them() -> None:
    assert as_listed(("drawer 3", "bed 1", "drawer 1")) == ("drawer 1", "drawer 3", "bed 1")
