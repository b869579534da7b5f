"""Tests that the compact text is exactly the household actor's training text, in either grammar."""

import pytest

from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.attempt_reader import Goal, read_goal, read_steps
from retroformer.method.records import Step, Task

TASK = Task(
    id="pick_and_place_simple-Mug-None-Desk-308/trial_T20190909_210238_431966",
    environment="alfworld",
    split="valid_unseen",
)
PLACES = "a bed 1, a desk 2, a desk 1, a drawer 3, a drawer 2, a drawer 1, a shelf 10, a shelf 9, and a sidetable 1"
OPENING = (
    f"You are in the middle of a room. Looking quickly around you, you see {PLACES}.\n\n"
    "Your task is to: put some mug on desk."
)


@pytest.mark.parametrize("gap", ["\n\n", "\n", " \n\n"])
def test_an_opening_is_read_into_task_and_places(gap: str) -> None:
    task, places = compact.read_opening(f"Welcome!\n\n{OPENING}".replace("\n\nYour", f"{gap}Your"))
    assert task == "put some mug on desk"
    assert places[:3] == ("bed 1", "desk 2", "desk 1")
    assert places[-1] == "sidetable 1"


def test_any_other_text_gives_no_task_and_no_places() -> None:
    assert compact.read_opening("What is the capital of France?") == ("", ())


def test_types_are_shuffled_by_the_game_and_numbers_ascend() -> None:
    # The order that the household actor's own program gives for this game.
    room = [f"{kind} {n}" for kind, most in ROOM_308.items() for n in range(most, 0, -1)]
    line = ", ".join(compact.ranges(compact.room_order(TASK, room)))
    assert line == ORDER_308
    other = compact.room_order(TASK.model_copy(update={"split": "train"}), room)
    assert sorted(other) == sorted(room)
    assert ", ".join(compact.ranges(other)) != ORDER_308


ROOM_308 = {
    "bed": 1, "desk": 2, "drawer": 6, "garbagecan": 1, "laundryhamper": 1, "mirror": 1, "shelf": 11, "sidetable": 2,
}  # fmt: skip
ORDER_308 = "garbagecan 1, mirror 1, desk 1-2, shelf 1-11, sidetable 1-2, drawer 1-6, bed 1, laundryhamper 1"


def test_ranges_leave_gaps_out() -> None:
    assert compact.ranges(["cabinet 1", "desk 1", "cabinet 2", "cabinet 4"]) == ("cabinet 1-2", "cabinet 4", "desk 1")
    assert compact.ranges([]) == ()


def test_the_header_has_a_line_for_each_non_blank_piece_of_advice() -> None:
    plain = compact.header(TASK, OPENING)
    task_line, room_line, end = plain.split("\n")
    assert task_line == "Task: put some mug on desk"
    assert room_line.startswith("Room: ")
    assert "shelf 9-10" in room_line
    assert end == ""
    advised = compact.header(TASK, OPENING, ("Look in\ndrawer 2.", " ", "The mug 1 is in shelf 9. "))
    assert advised == f"{plain}Advice: Look in drawer 2.\nAdvice: The mug 1 is in shelf 9.\n"
    assert compact.header(TASK, OPENING, ("", "\n")) == plain


@pytest.mark.parametrize(
    ("action", "observation", "short"),
    [
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 2.", "mug 1, pen 2"),
        ("go to desk 1", "On the desk 1, you see a apple 1, a mug 1, and a pen 2.", "apple 1, mug 1, pen 2"),
        ("go to shelf 1", "You arrive at loc 12. On the shelf 1, you see nothing.", "nothing"),
        ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.", "closed"),
        ("examine drawer 1", "The drawer 1 is closed.", "closed"),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a key 1.", "key 1"),
        ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see nothing.", "nothing"),
        ("go to safe 1", "You arrive at safe 1. The safe 1 is open. In it, you see nothing.", "nothing"),
        ("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1.", "You pick up the mug 1."),
        ("move mug 1 to desk 1", "You move the mug 1 to the desk 1.", "You move the mug 1."),
        ("put mug 1 in/on desk 1", "You put the mug 1 in/on the desk 1.", "You move the mug 1."),
        ("heat mug 1 with microwave 1", "You heat the mug 1 using the microwave 1.", "You heat the mug 1."),
        ("use desklamp 1", "You turn on the desklamp 1.", "You turn on the desklamp 1."),
        ("fly", "Nothing happens.", "Nothing happens."),
        ("look", "x" * 161, "x" * 160),
    ],
)
def test_observations_are_shortened(action: str, observation: str, short: str) -> None:
    assert compact.observation(action, f"\n{observation}\n") == short


def test_both_grammars_have_one_compact_form() -> None:
    assert compact.command(" put mug 1 in/on desk 2 ") == "move mug 1 to desk 2"
    assert compact.command("go to desk 2") == "go to desk 2"
    assert compact.in_grammar("move mug 1 to desk 2", "put") == "put mug 1 in/on desk 2"
    assert compact.in_grammar("move mug 1 to desk 2", "move") == "move mug 1 to desk 2"
    assert compact.in_grammar("go to desk 2", "put") == "go to desk 2"


def test_the_grammar_is_inferred_from_possible_actions() -> None:
    assert compact.grammar_of(("look", "put mug 1 in/on desk 2")) == "put"
    assert compact.grammar_of(("move mug 1 to desk 2",)) == "move"
    assert compact.grammar_of(("look",)) is None


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put some mug on desk", Goal(thing="mug", target="desk")),
        ("put a mug in desk.", Goal(thing="mug", target="desk")),
        ("put a clean mug in desk", Goal(thing="mug", transform="clean", target="desk")),
        ("clean some mug and put it in desk", Goal(thing="mug", transform="clean", target="desk")),
        ("put a hot egg in garbagecan", Goal(thing="egg", transform="heat", target="garbagecan")),
        ("heat some egg and put it in garbagecan", Goal(thing="egg", transform="heat", target="garbagecan")),
        ("cool some pan and put it in stoveburner", Goal(thing="pan", transform="cool", target="stoveburner")),
        ("put a cool pan in stoveburner", Goal(thing="pan", transform="cool", target="stoveburner")),
        ("put two cd in safe", Goal(thing="cd", count=2, target="safe")),
        ("find two cd and put them in safe", Goal(thing="cd", count=2, target="safe")),
        ("look at book under the desklamp", Goal(thing="book", lamp="desklamp")),
        ("examine the book with the desklamp", Goal(thing="book", lamp="desklamp")),
        ("write a poem about rain", Goal()),
    ],
)
def test_task_sentences_are_understood(sentence: str, goal: Goal) -> None:
    assert read_goal(sentence) == goal


def test_steps_show_where_things_are_and_were() -> None:
    seen = read_steps(
        [
            Step(action="go to desk 1", observation="On the desk 1, you see a mug 1, and a pen 2."),
            Step(action="take mug 1 from desk 1", observation="You pick up the mug 1 from the desk 1."),
            Step(action="think: now the drawer", observation="OK."),
            Step(action="go to drawer 1", observation="The drawer 1 is closed."),
            Step(action="put mug 1 in/on drawer 1", observation="Nothing happens."),
            Step(
                action="open drawer 1",
                observation="You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
            ),
            Step(action="put mug 1 in/on drawer 1", observation="You put the mug 1 in/on the drawer 1."),
            Step(action="go to drawer 2", observation="The drawer 2 is closed."),
        ]
    )
    assert seen.at == "drawer 2"
    assert seen.holding == ""
    assert seen.contents == {"desk 1": ("mug 1", "pen 2"), "drawer 1": ()}
    assert seen.shut == {"drawer 2"}
    assert seen.first_seen == {"mug 1": "desk 1", "pen 2": "desk 1"}
    assert seen.whereabouts == {"pen 2": "desk 1", "mug 1": "drawer 1"}
    assert seen.refusals == {"move mug 1 to drawer 1"}
