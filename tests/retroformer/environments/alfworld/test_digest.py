"""Tests of the digest of attempts."""

from retroformer.environments.alfworld.compact import room_order
from retroformer.environments.alfworld.reflection_prompt import digest
from retroformer.method.records import Ending, Lesson, Outcome, Step, Task, Trajectory

TASK = Task(id="game", environment="alfworld", split="train")
OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a drawer 2, a drawer 1, and a shelf 1.\n\n"
    "Your task is to: put some mug on shelf."
)

ORDER = room_order(TASK, ("drawer 2", "drawer 1", "shelf 1"))


def played(*pairs: tuple[str, str]) -> Trajectory:
    steps = tuple(Step(action=action, observation=observation) for action, observation in pairs)
    return Trajectory(task=TASK, opening=OPENING, steps=steps, outcome=Outcome.FAILURE, ending=Ending.TOO_MANY_ACTIONS)


def test_a_digest_lists_what_was_seen_and_which_places_are_left() -> None:
    attempt = played(
        ("go to drawer 1", "The drawer 1 is closed."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a mug 1, and a pen 2."),
        ("take mug 1 from drawer 1", "You pick up the mug 1 from the drawer 1."),
    )
    assert digest(attempt).splitlines() == [
        "Task: put some mug on shelf",
        "Seen: mug 1 in drawer 1",
        "Searched: drawer 1",
        f"Not searched: {', '.join(place for place in ORDER if place != 'drawer 1')}",
    ]


def test_a_digest_says_that_nothing_of_the_task_was_seen() -> None:
    attempt = played(("go to shelf 1", "On the shelf 1, you see a pen 1, and a mugholder 1."))
    assert "Seen: none\n" in digest(attempt)


def test_an_opening_that_shows_nothing_names_no_place() -> None:
    attempt = played(("go to shelf 1", "On the shelf 1, you see a mug 1."))
    empty = OPENING.replace("a drawer 2, a drawer 1, and a shelf 1", "nothing")
    assert digest(attempt.model_copy(update={"opening": empty})).splitlines() == [
        "Task: put some mug on shelf",
        "Seen: mug 1 in shelf 1",
        "Searched: shelf 1",
    ]


def test_every_thing_of_the_task_is_named() -> None:
    lamp = OPENING.replace("put some mug on shelf", "look at mug under the desklamp")
    attempt = played(("go to shelf 1", "On the shelf 1, you see a desklamp 1, a mug 3, and a pen 2."))
    text = digest(attempt.model_copy(update={"opening": lamp}))
    assert "Seen: desklamp 1 in shelf 1, mug 3 in shelf 1\n" in text


def test_a_place_that_stayed_closed_counts_as_unsearched() -> None:
    attempt = played(("go to drawer 2", "The drawer 2 is closed."))
    text = digest(attempt)
    assert "\nSearched" not in text
    assert "drawer 1-2" in text


def test_an_action_that_was_refused_leaves_no_trace() -> None:
    refused = ("take mug 1 from drawer 1", "Nothing happens.")
    shown = ("go to shelf 1", "On the shelf 1, you see nothing.")
    assert digest(played(shown, refused)) == digest(played(shown))


def test_what_earlier_attempts_searched_counts_as_searched() -> None:
    first = played(
        ("go to drawer 1", "The drawer 1 is closed."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a mug 2."),
    )
    second = played(("go to shelf 1", "On the shelf 1, you see nothing."))
    assert digest(second, [Lesson(attempt=first, advice="")]).splitlines() == [
        "Task: put some mug on shelf",
        "Seen: mug 2 in drawer 1",
        "Searched: shelf 1, drawer 1",
        "Not searched: drawer 2",
    ]


def test_a_thing_is_where_it_lay_before_an_attempt_moved_it() -> None:
    moved = played(
        ("go to drawer 1", "On the drawer 1, you see a mug 1, and a pen 2."),
        ("take mug 1 from drawer 1", "You pick up the mug 1 from the drawer 1."),
        ("go to shelf 1", "On the shelf 1, you see nothing."),
        ("move mug 1 to shelf 1", "You move the mug 1 to the shelf 1."),
        ("examine shelf 1", "On the shelf 1, you see a mug 1."),
    )
    assert "Seen: mug 1 in drawer 1\n" in digest(moved)
    latest = played(("go to drawer 2", "The drawer 2 is closed."))
    assert "Seen: mug 1 in drawer 1\n" in digest(latest, [Lesson(attempt=moved, advice="")])
