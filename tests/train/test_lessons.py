"""Lessons: the words say what the meaning means, kinds come in their shares, and nothing is invented about a game."""

from collections import Counter
from random import Random

import pytest

from retroformer.actors.advice import Advice, read_advice
from retroformer.actors.clauses import plural
from retroformer.environments.alfworld.reading import Experience, Goal
from retroformer.environments.alfworld.solution import Solution
from train.lessons import MIXTURE, NO_LESSON, Game, Lesson, as_listed, meaning, write_lesson

ORDER = ("desk 1", "drawer 1", "drawer 2", "drawer 3", "shelf 1", "shelf 2", "sinkbasin 1", "bed 1", "safe 1")
GOAL = Goal(thing="mug", deed="clean", target="desk")


def game(thing: str = "mug", looked: tuple[str, ...] = ("desk 1", "drawer 1")) -> Game:
    seen = Experience()
    for place in looked:
        seen.watch(f"go to {place}", "nothing")
    return Game(
        Goal(thing=thing, deed="clean", target="desk"),
        ORDER,
        Solution(((f"{thing} 1", "shelf 2"),), "sinkbasin 1", "desk 1"),
        seen,
    )


def lessons(count: int) -> list[Lesson]:
    random = Random(0)
    return [write_lesson(game(), game("plate", ("drawer 1", "bed 1")), random) for _ in range(count)]


def test_the_kinds_come_in_their_declared_shares() -> None:
    assert sum(MIXTURE.values()) == pytest.approx(1)
    kinds = Counter(lesson.kind for lesson in lessons(4000))
    assert {kind: kinds[kind] / 4000 for kind in MIXTURE} == pytest.approx(dict(MIXTURE), abs=0.025)


def test_an_independent_reader_finds_the_meaning_in_the_words() -> None:
    """The rule-based actor's reader knows the words alone; the writer knew what it meant."""
    read = [lesson for lesson in lessons(600) if len(lesson.texts) == 1 and lesson.kind in ("looking back", "places")]
    assert len(read) > 200
    for lesson in read:
        advice = read_advice(lesson.texts, ORDER, GOAL)
        # "The mug may be in X" is a place to look into for the writer and a sighting for the reader.
        places = advice.first or advice.sightings.get("mug", ())
        assert as_listed(places) == lesson.advice.first, lesson.texts


def test_what_a_failure_saw_is_said_and_where_to_go_on_starts_behind_it() -> None:
    for lesson in lessons(600):
        if lesson.kind == "looking back" and len(lesson.texts) == 1:
            assert not {"desk 1", "drawer 1"} & set(lesson.advice.first)
            if lesson.advice.first:
                assert lesson.advice.first[0] == "drawer 2"


def test_the_all_knowing_kind_says_where_the_thing_is() -> None:
    told = [lesson for lesson in lessons(600) if lesson.kind == "all-knowing"]
    assert told
    assert all(lesson.advice.sightings == {"mug": ("shelf 2",)} for lesson in told)
    assert all("mug 1" in lesson.texts[-1] and "shelf 2" in lesson.texts[-1].lower() for lesson in told)


def test_of_advice_for_another_game_only_places_of_this_room_and_its_own_thing_mean_anything() -> None:
    foreign = Advice(
        first=("drawer 3", "fridge 1"),
        sightings={"plate": ("shelf 1",), "mug": ("bed 1", "cabinet 1")},
        targets=("shelf 1", "desk 1"),
        appliances=("microwave 1",),
    )
    assert meaning(foreign, GOAL, ORDER) == Advice(
        first=("drawer 3",), sightings={"mug": ("bed 1",)}, targets=("desk 1",)
    )


def test_an_older_reflection_was_tried_so_what_it_asked_for_comes_last() -> None:
    advised_twice = [lesson for lesson in lessons(2000) if len(lesson.texts) == 2 and lesson.kind == "looking back"]
    assert advised_twice
    for lesson in advised_twice:
        assert {"desk 1", "drawer 1"} <= set(lesson.advice.skip)


def test_without_anything_to_say_there_is_no_lesson() -> None:
    everything = game(looked=ORDER)
    said = [write_lesson(everything, everything, Random(seed)) for seed in range(300)]
    assert all(lesson.texts and all(lesson.texts) for lesson in said if lesson != NO_LESSON)


@pytest.mark.parametrize(("one", "many"), [("shelf", "shelves"), ("drawer", "drawers"), ("couch", "couches")])
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


def test_places_are_in_the_order_in_which_ranges_name_them() -> None:
    assert as_listed(("drawer 3", "bed 1", "drawer 1")) == ("drawer 1", "drawer 3", "bed 1")
