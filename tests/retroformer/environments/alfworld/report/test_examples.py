"""Examples are selected by hash, not by content, and shown unchanged."""

from hashlib import sha256

from retroformer.environments.alfworld.report.examples import moves, pick_examples, render_examples
from retroformer.environments.alfworld.report.reflection import ReflectionCase
from retroformer.records import Outcome, Trajectory
from tests.support.household import attempt, took, walked

SIX = walked("desk 1", "drawer 1", "drawer 2", "drawer 3", "shelf 1", "shelf 2")


def failed(name: str) -> Trajectory:
    return attempt(*walked("drawer 1"), task_id=name)


def case(name: str, text: str = "Look in desk 1.", trial: int = 0) -> ReflectionCase:
    return ReflectionCase(failed(name), text, attempt(*walked("desk 1"), task_id=name), trial=trial)


def test_the_first_tasks_by_hash_are_picked_whatever_their_order() -> None:
    names = [f"mug/{number}" for number in range(20)]
    picked = pick_examples([case(name) for name in names], [case(name) for name in reversed(names)])
    by_hash = sorted(names, key=lambda name: sha256(name.encode()).hexdigest())
    assert [example.task_id for example in picked] == by_hash[:10]
    assert by_hash[:10] != names[:10]


def test_only_first_failures_with_advice_from_both_arms_are_picked() -> None:
    before = [case("both"), case("blank", " "), case("late"), case("alone")]
    after = [case("both"), case("blank"), case("late", trial=1)]
    assert [example.task_id for example in pick_examples(before, after)] == ["both"]


def test_later_reflections_on_the_same_task_do_not_take_the_place_of_the_first() -> None:
    (example,) = pick_examples([case("a", "First."), case("a", "Second.", trial=1)], [case("a", "Other.")])
    assert (example.before.text, example.after.text) == ("First.", "Other.")


def test_six_actions_are_shown_and_the_ending() -> None:
    done = attempt(*SIX, solved=True)
    assert moves(done).endswith("go to shelf 1; go to shelf 2; 6 actions, solved")
    longer = attempt(*SIX, took("mug 1", "shelf 2"))
    assert moves(longer).endswith("go to shelf 1; go to shelf 2; ...; 7 actions, step limit")
    assert moves(attempt(*SIX[:1])) == "go to desk 1; 1 action, step limit"


def test_the_page_states_the_rule_and_shows_both_texts_with_what_followed() -> None:
    solved = attempt(*walked("shelf 1", shelf_1="mug 1"), took("mug 1", "shelf 1"), task_id="mug/1", solved=True)
    before = ReflectionCase(failed("mug/1"), "Look in\ndrawer 1 | *now*.", failed("mug/1"))
    after = ReflectionCase(failed("mug/1"), "Look in shelf 1.", solved)
    text = render_examples(pick_examples([before], [after]), "warm start", "trained")
    assert text.split("\n\n")[0] == (
        "The first task, in the order of the SHA-256 of their id, that failed at trial 0 and about which both "
        "*warm start* and *trained* wrote something."
    )
    assert "Table: Task 1: put some mug on desk (`mug/1`)" in text
    assert text.splitlines()[-3:] == [
        "| trial 0 |  | failed | go to drawer 1; 1 action, step limit |",
        "| warm start | Look in drawer 1 \\| \\*now\\*. | failed | go to drawer 1; 1 action, step limit |",
        "| trained | Look in shelf 1. | solved | go to shelf 1; take mug 1 from shelf 1; 2 actions, solved |",
    ]


def test_a_missing_retry_is_shown_as_not_tried() -> None:
    spoiled = failed("mug/1").model_copy(update={"outcome": Outcome.INVALID})
    case = ReflectionCase(failed("mug/1"), "Look in desk 1.", spoiled)
    text = render_examples(pick_examples([case], [case]), "warm start", "trained")
    assert "| warm start | Look in desk 1. | not tried | - |" in text


def test_the_absence_of_examples_is_stated() -> None:
    assert render_examples([], "warm start", "trained").startswith("There is no task at whose first failure")
