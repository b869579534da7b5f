"""Tests of the digest of an attempt."""

from retroformer.environments.alfworld.text.compact import room_order
from retroformer.environments.alfworld.text.digest import digest
from retroformer.records import Step, Task

TASK = Task(id="game", environment="alfworld", split="train")
OPENING = (
    "You are in the middle of a room. Looking quickly around you, you see a drawer 2, a drawer 1, and a shelf 1.\n\n"
    "Your task is to: put some mug on shelf."
)

ORDER = room_order(TASK, ("drawer 2", "drawer 1", "shelf 1"))


def steps(*pairs: tuple[str, str]) -> tuple[Step, ...]:
    return tuple(Step(action=action, observation=observation) for action, observation in pairs)


def test_a_digest_lists_contents_and_unsearched_places() -> None:
    attempt = steps(
        ("go to drawer 1", "The drawer 1 is closed."),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a mug 1, and a pen 2."),
        ("take mug 1 from drawer 1", "You pick up the mug 1 from the drawer 1."),
    )
    assert digest(TASK, OPENING, attempt).splitlines() == [
        "Task: put some mug on shelf",
        "Found: drawer 1: mug 1, pen 2",
        f"Not searched: {', '.join(place for place in ORDER if place != 'drawer 1')}",
        "Done: take mug 1 from drawer 1",
    ]


def test_a_place_that_stayed_closed_counts_as_unsearched() -> None:
    attempt = steps(("go to drawer 2", "The drawer 2 is closed."))
    text = digest(TASK, OPENING, attempt)
    assert "Found" not in text
    assert "drawer 1-2" in text


def test_both_grammars_read_the_same() -> None:
    moved = steps(("move mug 1 to shelf 1", "You move the mug 1 to the shelf 1."))
    put = steps(("put mug 1 in/on shelf 1", "You put the mug 1 in/on the shelf 1."))
    assert digest(TASK, OPENING, moved) == digest(TASK, OPENING, put)
