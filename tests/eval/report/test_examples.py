"""Examples are selected by hash, not by content, and shown unchanged, with what the actor then did."""

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

from eval.report.advice import EXAMPLES, Examples, moves
from retroformer.environments.extras import SeedFacts, TaskFacts
from retroformer.method.records import Outcome, Trajectory
from tests.support.characters import advice
from tests.support.evaluations import arm, evaluated
from tests.support.household import attempt, took, walked
from tests.support.markdown_tables import chapters_in_markdown, tables_in

SIX = walked("desk 1", "drawer 1", "drawer 2", "drawer 3", "shelf 1", "shelf 2")
STAGES = ("base", "warm", "sft", "ppo")


def failed(name: str = "mug/1") -> Trajectory:
    return attempt(*walked("drawer 1"), task_id=name)


def facts(name: str, texts: dict[str, str], **retries: Trajectory) -> TaskFacts:
    """Return the results at a task of arms that wrote these texts after the first failure."""
    first = failed(name)
    seeds = {
        arm: SeedFacts(
            {0: first} | ({1: retries[arm]} if arm in retries else {}), {1: advice(texts[arm])} if arm in texts else {}
        )
        for arm in STAGES
    }
    return TaskFacts(name, first, seeds)


def rendered(of_tasks: Iterable[TaskFacts], names: Iterable[str] | None = None) -> str:
    arms: dict[str, Any] = {name: {"kind": "model", "model": name} for name in STAGES}
    section = {"arms": arms} | ({"examples": list(names)} if names else {})
    examples = Examples(evaluated([arm(name, name) for name in STAGES], eval=section))
    for each in of_tasks:
        examples.add(each)
    return chapters_in_markdown(examples.chapters())


def test_the_first_tasks_by_hash_are_shown_whatever_their_order() -> None:
    names = [f"mug/{number}" for number in range(20)]
    text = rendered(facts(name, {"sft": "Look."}) for name in names)
    by_hash = sorted(names, key=lambda name: sha256(name.encode()).hexdigest())[:EXAMPLES]
    assert [name for name in by_hash if f"| {name} |" in text] == by_hash
    assert text.count("Table: ") == EXAMPLES < len(names)
    assert text == rendered(facts(name, {"sft": "Look."}) for name in reversed(names))


def test_each_stage_s_advice_on_one_failure_stands_beside_what_the_actor_then_did() -> None:
    solved = attempt(*walked("shelf 1", shelf_1="mug 1"), took("mug 1", "shelf 1"), solved=True)
    texts = {"warm": "Look in\ndrawer 1 | *now*.", "sft": "Look in shelf 1.", "ppo": "Look in shelf 1."}
    spoiled = failed().model_copy(update={"outcome": Outcome.INVALID})
    text = rendered([facts("mug/1", texts, warm=failed(), sft=solved, ppo=spoiled)])
    assert text.startswith(
        "The first task, in the order of the SHA-256 of their id, that failed at trial 0 and about which each of "
        "these arms wrote something: *warm*, *sft*, *ppo*."
    )
    assert "Table: Your task is to: put some mug on desk.\n" in text
    assert tables_in(text) == [
        [
            "| trial 0 |  | failed | go to drawer 1; 1 action, step limit | mug/1 |",
            "| warm | Look in drawer 1 \\| \\*now\\*. | failed | go to drawer 1; 1 action, step limit | mug/1 |",
            "| sft | Look in shelf 1. | solved | go to shelf 1; take mug 1 from shelf 1; 2 actions, solved | mug/1 |",
            "| ppo | Look in shelf 1. | not tried | - | mug/1 |",
        ]
    ]


def test_the_failures_of_arms_with_other_first_attempts_are_shown_apart() -> None:
    both = facts("mug/1", {"warm": "Look.", "sft": "Look."})
    both.seeds["sft"].attempts[0] = attempt(*walked("desk 1"))
    assert [line.split(" | ")[0::3] for line in tables_in(rendered([both]))[0][:2]] == [
        ["| trial 0 of warm", "go to drawer 1; 1 action, step limit"],
        ["| trial 0 of sft", "go to desk 1; 1 action, step limit"],
    ]


def test_a_failure_is_shown_only_if_every_arm_wrote_about_it() -> None:
    both = {"warm": "Look.", "sft": "Look."}
    text = rendered([facts("both", both), facts("alone", {"sft": "Look."}), facts("blank", both | {"warm": " "})])
    assert (text.count("Table: "), "| both |" in text) == (1, True)


def test_a_config_may_name_the_arms_to_show() -> None:
    tasks = [facts("all", dict.fromkeys(STAGES, "Look.")), facts("two", {"base": "Look.", "ppo": "Look."})]
    text = rendered(tasks, ["ppo", "base"])
    assert [line.split(" | ")[0] for line in tables_in(text)[0]] == ["| trial 0", "| base", "| ppo"]
    assert text.count("Table: ") == 2


def test_the_absence_of_such_a_failure_is_stated_and_silent_arms_have_no_section() -> None:
    tasks = [facts("a", {"warm": "Look."}), facts("b", {"sft": "Look."})]
    assert rendered(tasks).startswith("There is no task at whose first failure each of these arms wrote something: *w")
    assert rendered([facts("a", {})]) == ""


def test_six_actions_are_shown_and_the_ending() -> None:
    done = attempt(*SIX, solved=True)
    assert moves(done).endswith("go to shelf 1; go to shelf 2; 6 actions, solved")
    longer = attempt(*SIX, took("mug 1", "shelf 2"))
    assert moves(longer).endswith("go to shelf 1; go to shelf 2; ...; 7 actions, step limit")
    assert moves(attempt(*SIX[:1])) == "go to desk 1; 1 action, step limit"
