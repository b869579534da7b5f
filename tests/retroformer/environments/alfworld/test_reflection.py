"""A reflection is read against its own failure: numbers worked by hand in a room of six places."""

from retroformer.environments.alfworld.report import ReflectionCase, first_walks
from retroformer.method.records import Outcome, Step
from tests.support.household import attempt, took, walked

BLIND = attempt(*walked("drawer 1", "drawer 2"))
SIGHTED = attempt(*walked("drawer 1", "shelf 1", shelf_1="mug 2, pen 1"))


def read(text: str, given: tuple[str, ...] = ()) -> ReflectionCase:
    return ReflectionCase(BLIND, text, given=given)


def test_places_are_new_or_exhausted_or_invented() -> None:
    reading = read("Look in drawer 2-5 and shelf 1. Do not look in shelf 2.")
    assert reading.named == ("drawer 2", "drawer 3", "shelf 1", "shelf 2")
    assert reading.sent == ("drawer 2", "drawer 3", "shelf 1")
    assert reading.unsearched == ("drawer 3", "shelf 1")
    assert reading.exhausted == ("drawer 2",)
    assert reading.invented == ("drawer 4", "drawer 5")
    assert tuple(reading.view.room.contents) == ("drawer 1", "drawer 2")
    assert not reading.restates


def test_types_that_the_room_lacks_are_invented_only_with_a_number() -> None:
    assert read("Look in fridge 1.").invented == ("fridge 1",)
    assert read("Look in the fridge.").invented == ()
    assert read("Look in mug 3 and on page 2.").invented == ()


def test_a_nickname_of_several_types_is_one_invention() -> None:
    assert read("Look on table 2.").invented == ("coffeetable 2",)


def test_a_place_that_is_not_to_be_looked_into_is_not_counted_as_invented() -> None:
    assert read("Do not look in drawer 7.").invented == ()


def test_a_closed_place_that_was_not_opened_is_not_searched() -> None:
    closed = Step(action="go to drawer 3", observation="The drawer 3 is closed.")
    assert ReflectionCase(attempt(closed), "Look in drawer 3.").unsearched == ("drawer 3",)


def test_naming_the_place_of_a_thing_counts_more_than_sending_there() -> None:
    output = ReflectionCase(SIGHTED, "The mug 2 is in shelf 1.")
    assert (output.located, output.sent_back, output.exhausted) == (("shelf 1",), ("shelf 1",), ())
    sent = ReflectionCase(SIGHTED, "Look in shelf 1.")
    assert (sent.located, sent.sent_back, sent.exhausted) == ((), ("shelf 1",), ())
    wrong = ReflectionCase(SIGHTED, "The mug 2 is in drawer 1.")
    assert (wrong.located, wrong.sent_back, wrong.exhausted) == ((), (), ("drawer 1",))


def test_the_place_of_a_thing_is_its_initial_place() -> None:
    failure = attempt(*walked("shelf 1", shelf_1="mug 2"), took("mug 2", "shelf 1"), *walked("desk 1"))
    assert ReflectionCase(failure, "").seen_at == ("shelf 1",)


def test_the_lamp_of_a_task_is_one_of_its_things() -> None:
    failure = attempt(*walked("desk 1", desk_1="desklamp 1"), sentence="look at mug under the desklamp")
    assert ReflectionCase(failure, "The desklamp 1 is on desk 1.").located == ("desk 1",)


def test_the_failed_plan_is_restated_by_its_places_or_by_its_words() -> None:
    assert read("Look in drawer 1-2.").restates
    assert not read("Look in drawer 1-3.").restates
    assert not read("Try harder.").restates
    assert read("Try  harder.", given=("Look in desk 1.", "Try harder. ")).restates
    assert not read(" ", given=(" ",)).restates
    assert not ReflectionCase(SIGHTED, "Look in shelf 1.").restates


def test_advice_without_a_place_of_the_room_names_nothing() -> None:
    for text in ("", "Try harder next time.", "Look in fridge 1."):
        reading = read(text)
        assert (reading.named, reading.sent) == ((), ())


def test_an_attempt_in_another_environment_has_no_room() -> None:
    riddle = BLIND.model_copy(update={"opening": "What is the capital of France?"})
    reading = ReflectionCase(riddle, "Look in drawer 1.")
    assert (reading.named, reading.sent, reading.view.goal.thing) == ((), (), "")


def test_first_walks_are_the_first_two_moves() -> None:
    opened = Step(action="open drawer 1", observation="You open the drawer 1. In it, you see nothing.")
    assert first_walks(attempt(*walked("drawer 1"), opened, *walked("desk 1", "shelf 1"))) == ("drawer 1", "desk 1")
    assert first_walks(attempt(opened)) == ()


def test_an_invalid_retry_counts_as_none() -> None:
    spoiled = BLIND.model_copy(update={"outcome": Outcome.INVALID})
    assert not ReflectionCase(BLIND, "Look in desk 1.", spoiled).is_retried
    assert not ReflectionCase(BLIND, "Look in desk 1.").is_retried
    assert ReflectionCase(BLIND, "Look in desk 1.", BLIND).is_retried
