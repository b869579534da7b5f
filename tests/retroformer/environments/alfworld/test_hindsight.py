"""Hindsight writes what attempts have shown, and nothing else."""

import asyncio

import pytest

from retroformer.environments.alfworld import compact, scripted_play
from retroformer.environments.alfworld import hindsight as module
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.advice_writer import listed
from retroformer.environments.alfworld.attempt_reader import read_goal, view_of
from retroformer.environments.alfworld.hindsight import PlaceHindsight, PlaceTable, table_reflector
from retroformer.method.records import Ending, Lesson, Memory, Message, Outcome, Step, Task, Trajectory
from tests.reachable_modules import reachable_modules

PLACES = tuple(f"{kind} {number}" for kind in ("cabinet", "desk", "drawer", "shelf") for number in (1, 2, 3))
ROOM = ", ".join(f"a {place}" for place in PLACES)


def attempt(game: str, looks: dict[str, str], wanted: str = "mug", solved: bool = False) -> Trajectory:
    """Return an attempt at putting a thing on a desk that looked into places and saw things there."""
    return Trajectory(
        task=Task(id=game, environment="alfworld", split="train"),
        opening=f"You are in a room. Looking around, you see {ROOM}.\n\nYour task is to: put some {wanted} on desk.",
        steps=tuple(
            Step(action=f"go to {place}", observation=f"On the {place}, you see {things}.")
            for place, things in looks.items()
        ),
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.STEP_LIMIT,
    )


def order(failure: Trajectory) -> list[str]:
    return list(compact.room_order(failure.task, PLACES))


DRAWERS = [attempt(f"mug-{number}", {"drawer 1": "a mug 1", "shelf 1": "a pen 1"}) for number in range(5)]
SHELVES = [attempt(f"book-{number}", {"shelf 2": "a book 1", "drawer 2": "nothing"}, "book") for number in range(5)]


def test_the_table_counts_looks_in_rooms_that_have_the_thing() -> None:
    table = PlaceTable([*DRAWERS, *SHELVES])
    assert table.rate("mug", "drawer") > table.rate("mug", "cabinet") > table.rate("mug", "shelf")
    assert table.rate("book", "shelf") > table.rate("book", "drawer")
    # 5 finds in 10 looks: (5 + 1) / (10 + 2) over all places, which weighs two looks beside five of drawers.
    assert float(table.rate("mug", "drawer")) == pytest.approx((5 + 2 * 0.5) / (5 + 2))
    assert float(table.rate("mug", "cabinet")) == 0.5


def test_a_thing_that_nobody_found_was_still_looked_for() -> None:
    table = PlaceTable([attempt("mug-1", {"cabinet 1": "nothing", "cabinet 2": "nothing"})])
    assert table.rate("mug", "cabinet") < table.rate("mug", "drawer")


def test_one_room_counts_once_however_often_it_was_played() -> None:
    once, often = (PlaceTable([*DRAWERS, *SHELVES[:1] * times]) for times in (1, 9))
    assert once.rate("book", "shelf") == often.rate("book", "shelf")


def test_a_moved_thing_counts_where_it_lay_at_first() -> None:
    moved = attempt("mug-1", {"drawer 1": "a mug 1", "desk 1": "a mug 1"})
    table = PlaceTable([moved])
    assert table.rate("mug", "drawer") > table.rate("mug", "desk")


def test_hindsight_names_the_likeliest_unsearched_places() -> None:
    failure = attempt("mug-9", {"drawer 2": "nothing"})
    text = PlaceHindsight([*DRAWERS, *SHELVES, failure]).advice(failure, (), ())
    places = sorted(place for place in PLACES if place.startswith("drawer") and place != "drawer 2")
    assert text.startswith(f"Look in {listed(places).replace(' and ', ', ')}, ")
    assert "drawer 2" not in text.replace("drawer 2-", "")


def test_hindsight_says_where_things_were_seen_in_any_attempt() -> None:
    first, second = attempt("mug-9", {"cabinet 3": "a mug 2"}), attempt("mug-9", {"drawer 2": "nothing"})
    text = PlaceHindsight(DRAWERS).advice(second, (Lesson(attempt=first, advice=""),), ())
    assert text == "The mug 2 is in cabinet 3."


def test_a_place_that_a_later_attempt_proved_is_named_however_unlikely_it_is() -> None:
    failure = attempt("mug-9", {"drawer 1": "nothing"})
    later = attempt("mug-9", {"shelf 3": "a mug 1"}, solved=True)
    writer = PlaceHindsight([*DRAWERS, *SHELVES])
    unlikely = "shelf 3"
    assert unlikely not in writer.advice(failure, (), ())
    named = writer.advice(failure, (), (later,))
    assert unlikely in named
    assert writer.advice(failure, (), (attempt("mug-9", {"shelf 3": "a pen 1"}),)) == writer.advice(failure, (), ())


def test_eight_places_are_named_however_many_are_proved() -> None:
    failure = attempt("mug-9", {"drawer 1": "nothing"})
    proving = [attempt("mug-9", {place: "a mug 1"}) for place in PLACES if place != "drawer 1"]
    writer = PlaceHindsight(DRAWERS)
    named = [set(places_in(writer.advice(failure, (), proving[:count]))) for count in (0, 3, len(proving))]
    assert [len(places) for places in named] == [8, 8, 8]
    assert {"cabinet 1", "cabinet 2", "cabinet 3"} <= named[1]


def places_in(advice: str) -> tuple[str, ...]:
    """Return the places that advice names for the room of these games."""
    return read_advice([advice], PLACES, read_goal("put some mug on desk.")).first


def test_a_place_that_was_searched_is_never_named() -> None:
    failure = attempt("mug-9", dict.fromkeys(PLACES, "nothing"))
    assert PlaceHindsight(DRAWERS).advice(failure, (), (attempt("mug-9", {"shelf 3": "a mug 1"}),)) == ""


def test_the_table_arm_counts_attempts_and_reads_all_attempts_at_its_task() -> None:
    def render(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
        return ()

    first, second = attempt("mug-9", {"drawer 1": "nothing"}), attempt("mug-9", {"drawer 2": "nothing"})
    memory = Memory(earlier=(Lesson(attempt=first, advice="Look in drawer 2."),))
    written = asyncio.run(table_reflector(render, [*DRAWERS, *SHELVES]).reflect(second, memory, 0))
    assert written.text.startswith("Look in drawer 3, ")
    assert view_of(second, memory.earlier).missing == ("mug",)
    fewer = asyncio.run(table_reflector(render, [*DRAWERS, *SHELVES], places=2).reflect(second, memory, 0))
    assert [len(places_in(advice.text)) for advice in (written, fewer)] == [8, 2]


def test_no_more_places_are_named_than_the_actor_was_trained_to_read() -> None:
    assert module.HINDSIGHT_PLACES == scripted_play.MAX_PLACES


def test_hindsight_cannot_reach_a_solution() -> None:
    """No module that it imports, itself or through others, knows games, walkthroughs or the planner."""
    read = reachable_modules(module.__name__)
    assert "retroformer.environments.alfworld.hindsight" in read
    solving = {"engine", "environment", "generated_games", "planner", "released_games", "rules"}
    assert not [name for name in read if name.rsplit(".", 1)[-1] in solving or ".game" in name or "oracle" in name]


ASKED = {
    "book": "put some book on desk",
    "two cup": "put two cup in shelf",
    "pan": "cool some pan and put it in cabinet",
    "lamp": "examine the key with the desklamp",
}
"""Tasks of other training games, by what they ask for; their rooms have what the games need."""
OTHERS = [
    attempt(f"{name} {number}", {"shelf 2": f"a {name.split()[-1]} 1, and a desklamp 1"}).model_copy(
        update={"opening": f"You are in a room. Looking around, you see {ROOM}.\n\nYour task is to: {sentence}."}
    )
    for name, sentence in ASKED.items()
    for number in range(3)
]


def tasks_of(failure: Trajectory, earlier: tuple[Lesson, ...] = (), count: int = 9) -> dict[str, str]:
    """Return the other tasks that a failure counts as one at, each with what hindsight writes about it."""
    writer = PlaceHindsight([*DRAWERS, *OTHERS])
    others = writer.variations(failure, earlier, count)
    attempts = [*(lesson.attempt for lesson in earlier), failure]
    assert all(other.steps == attempts[len(before)].steps[: len(other.steps)] for other, before in others)
    return {compact.read_opening(other.opening).task: writer.advice(other, before, ()) for other, before in others}


def test_a_failure_is_also_one_at_the_tasks_that_could_be_set_in_its_room() -> None:
    written = tasks_of(attempt("mug-9", {"shelf 3": "a pen 1, a book 2, and a cup 1", "drawer 2": "nothing"}))
    assert written[ASKED["book"]] == "The book 2 is in shelf 3."
    assert written[ASKED["two cup"]].startswith("The cup 1 is in shelf 3. Look in shelf 1-2")
    # Nobody asks for a pen, a room without a fridge is none to cool in, and for its own thing it has failed anyway.
    assert set(written) == {ASKED["book"], ASKED["two cup"]}


def test_what_was_not_seen_at_all_is_looked_for() -> None:
    written = tasks_of(attempt("mug-9", {"drawer 2": "nothing"}))
    assert written[ASKED["book"]].startswith("Look in shelf 1-3")


@pytest.mark.parametrize(
    ("looks", "seen", "bounds"),
    [
        ({"shelf 3": "a book 2"}, "book", (10, 35)),
        ({"shelf 3": "a cup 2"}, "two cup", (10, 35)),
        ({"shelf 3": "a book 2, and a cup 2"}, "book", (30, 60)),
    ],
    ids=["all or none", "some or none", "all or some"],
)
def test_tasks_are_most_often_those_of_which_nothing_was_seen(
    looks: dict[str, str], seen: str, bounds: tuple[int, int]
) -> None:
    firsts = [next(iter(tasks_of(attempt(f"mug-{100 + number}", looks), count=1))) for number in range(90)]
    assert bounds[0] <= firsts.count(ASKED[seen]) <= bounds[1]
    assert set(firsts) == {ASKED["book"], ASKED["two cup"]}
    assert len(firsts) == 90


def test_a_thing_that_is_never_at_the_places_that_are_left_is_not_asked_for() -> None:
    looks = {"shelf 1": "nothing", "shelf 2": "nothing", "shelf 3": "nothing"}
    assert tasks_of(attempt("mug-9", looks), count=1) == {}


def test_a_game_that_is_solved_before_the_first_action_is_no_task() -> None:
    there = attempt("mug-9", {"desk 2": "a book 2", "shelf 3": "a cup 1"})
    assert set(tasks_of(there)) == {ASKED["two cup"]}
    # One cup of two is not all of them.
    assert set(tasks_of(attempt("mug-9", {"shelf 3": "a cup 1, and a book 1"}))) == {ASKED["book"], ASKED["two cup"]}
    assert ASKED["two cup"] not in tasks_of(attempt("mug-9", {"shelf 3": "a cup 1, a cup 2, and a book 1"}))


def test_every_kind_of_thing_is_asked_for_equally_often() -> None:
    """However many tasks of the training games are about it."""
    targets = ("cabinet", "desk", "drawer", "shelf")
    others = [
        attempt(f"{kind} in {target}", {"shelf 2": f"a {kind} 1"}).model_copy(
            update={"opening": f"Looking around, you see {ROOM}.\n\nYour task is to: put some {kind} on {target}."}
        )
        for kind, count in (("book", 4), ("cup", 1))
        for target in targets[:count]
    ]
    writer, sentences = PlaceHindsight([*DRAWERS, *others]), list[str]()
    for number in range(80):
        failure = attempt(f"mug-{100 + number}", {"drawer 2": "nothing"})
        sentences += [compact.read_opening(other.opening).task for other, _ in writer.variations(failure, (), 1)]
    assert 28 <= sum("cup" in sentence for sentence in sentences) <= 52


def test_a_part_of_the_attempt_counts_in_rooms_with_other_numbers_of_places() -> None:
    earlier = (Lesson(attempt=attempt("mug-9", {"drawer 3": "nothing"}), advice="Look in drawer 3."),)
    failure = attempt(
        "mug-9", {f"{kind} {number}": "nothing" for number in (1, 2) for kind in ("cabinet", "desk", "drawer")}
    )
    nowhere = Step(action="go to shelf 99", observation="Nothing happens.")
    failure = failure.model_copy(update={"steps": (*failure.steps, nowhere)})
    others = PlaceHindsight([*DRAWERS, *OTHERS]).variations(failure, earlier, 400)
    seconds = [other for other, before in others if before]
    assert {len(other.steps) for other in seconds} == {3, 4, 5, 6, 7}
    rooms = [compact.read_opening(other.opening).places for other in seconds]
    assert sum(room == PLACES for room in rooms) >= len(rooms) // 2
    counts = {
        kind: {sum(compact.type_of(place) == kind for place in room) for room in rooms} for kind in ("drawer", "shelf")
    }
    # Drawer 3 was searched by an earlier attempt, and no attempt went to a shelf.
    assert counts == {"drawer": {3, 4, 5, 6, 7}, "shelf": {1, 2, 3, 4, 5, 6, 7}}


def test_what_an_earlier_attempt_saw_counts_too() -> None:
    first, second = attempt("mug-9", {"cabinet 3": "a book 2"}), attempt("mug-9", {"drawer 2": "nothing"})
    written = tasks_of(second, (Lesson(attempt=first, advice="Look in drawer 2."),))
    assert written[ASKED["book"]] == "The book 2 is in cabinet 3."


def test_a_part_may_end_in_an_earlier_attempt_and_knows_nothing_of_later_ones() -> None:
    first, second = attempt("mug-9", {"drawer 2": "nothing"}), attempt("mug-9", {"shelf 3": "a book 2"})
    earlier = (Lesson(attempt=first, advice="Look in shelf 3."),)
    others = PlaceHindsight([*DRAWERS, *OTHERS]).variations(second, earlier, 60)
    assert {before for _, before in others} == {(), earlier}
    for other, before in others:
        assert ("shelf 3" in view_of(other, before).searched) == bool(before)


def test_an_attempt_that_moved_something_also_counts_at_another_task() -> None:
    taking = Step(action="take book 2 from shelf 3", observation="You pick up the book 2.")
    failure = attempt("mug-9", {"shelf 3": "a book 2"})
    failure = failure.model_copy(update={"steps": (*failure.steps, taking)})
    assert tasks_of(failure)[ASKED["book"]] == "The book 2 is in shelf 3."


def test_an_opening_without_places_has_no_other_tasks() -> None:
    empty = attempt("mug-9", {}).model_copy(
        update={"opening": "Looking around, you see nothing.\n\nYour task is to: put some mug on desk."}
    )
    assert tasks_of(empty) == {}


def test_a_room_with_other_numbers_keeps_the_places_that_the_advice_names() -> None:
    earlier = (Lesson(attempt=attempt("mug-9", {"drawer 1": "nothing"}), advice="Look in Shelf 1-3 and the drawers."),)
    failure = attempt("mug-9", {"drawer 1": "nothing", "desk 1": "nothing", "cabinet 1": "nothing"})
    others = PlaceHindsight([*DRAWERS, *OTHERS]).variations(failure, earlier, 60)
    rooms = [compact.read_opening(other.opening).places for other, before in others if before]
    assert all({"shelf 3", "drawer 3"} <= set(room) for room in rooms)
    assert not all("cabinet 3" in room for room in rooms)
