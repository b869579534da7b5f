"""Texts of SFT: hindsight about stored failures, and rated ones of failures on which advice mattered."""

from contextlib import closing
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.errors import MissingInput
from retroformer.method.records import Ending, Key, Outcome, Reflection, Step, Task, Trajectory
from retroformer.run.store import open_store
from tests.support.characters import CAPITAL, attempt_at
from tests.support.facts import add_trajectory
from tests.train.world import AUTHOR, BAD, GOOD, collect, config_file, prompt
from train.data.inputs import advice_to_imitate
from train.data.samples import AdviceText

pytestmark = pytest.mark.usefixtures("workplace")

ROOM = (
    "You are in a room. Looking around, you see a drawer 1, a drawer 2, a shelf 1, and a desk 1.\n\n"
    "Your task is to: put some mug on desk."
)


def played(game: str, place: str, things: str, solved: bool = False) -> Trajectory:
    step = Step(
        action=f"go to {place}", observation=f"On the {place}, you see {things}.", reward=1.0 if solved else 0.0
    )
    return Trajectory(
        task=Task(id=game, environment="alfworld", split="train"),
        opening=ROOM,
        steps=(step,),
        outcome=Outcome.SUCCESS if solved else Outcome.FAILURE,
        ending=Ending.SOLVED if solved else Ending.STEP_LIMIT,
    )


def store_game(config: Path, game: str, retry: Trajectory | None, rule: str) -> None:
    """Store a failure at drawer 1, a reflection on it, and its retry."""
    with closing(open_store(load(config))) as store:
        first, second = Key(arm="collect", task_id=game), Key(arm="collect", task_id=game, trial=1)
        add_trajectory(store, first, played(game, "drawer 1", "nothing"))
        store.add_reflection(second, 0, Reflection(text=rule, prompt=prompt(game), author=AUTHOR))
        if retry is not None:
            add_trajectory(store, second, retry)


def test_a_failure_is_relabelled_with_what_a_retry_has_found(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    store_game(config, "mug-1", played("mug-1", "shelf 1", "a mug 1", solved=True), "Look in shelf 1.")
    store_game(config, "mug-2", played("mug-2", "desk 1", "nothing"), "Look in desk 1.")
    *reflected, last = advice_to_imitate(load(config, ["train.sft.texts=hindsight"]))
    assert reflected == [
        AdviceText(prompt("mug-1"), "Look in shelf 1, desk 1 and drawer 2."),
        # Nobody found the mug of this game, but another game's was on a shelf.
        AdviceText(prompt("mug-2"), "Look in shelf 1, desk 1 and drawer 2."),
    ]
    assert last.text == "Look in shelf 1 and drawer 2."


def test_a_failure_of_the_last_trial_is_relabelled_too(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    store_game(config, "mug-1", played("mug-1", "drawer 2", "nothing"), "Look in drawer 2.")
    store_game(config, "mug-2", played("mug-2", "shelf 1", "a mug 1", solved=True), "Look in shelf 1.")
    _, last, _ = advice_to_imitate(load(config, ["train.sft.texts=hindsight", "reflector.view=compact"]))
    assert last.text == "Look in shelf 1 and desk 1."
    assert last.prompt[-1].content == (
        "Task: put some mug on desk\n"
        "Seen: none\n"
        "Searched: drawer 1-2\n"
        "Not searched: shelf 1, desk 1\n"
        "Advice: Look in drawer 2.\n"
        "Searched then: drawer 2\n"
        "Failed. Advice for the next attempt:"
    )


def test_a_reflector_that_reads_the_last_attempt_is_not_taught_what_earlier_ones_showed(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    store_game(config, "mug-1", played("mug-1", "drawer 2", "nothing"), "Look in drawer 2.")
    store_game(config, "mug-2", played("mug-2", "shelf 1", "a mug 1", solved=True), "Look in shelf 1.")
    words = ["train.sft.texts=hindsight", "reflector.view=compact", "reflector.history=last"]
    _, last, _ = advice_to_imitate(load(config, words))
    assert "Searched: drawer 2\nNot searched: shelf 1, desk 1, drawer 1\n" in last.prompt[-1].content
    assert last.text == "Look in shelf 1, desk 1 and drawer 1."


def test_a_failure_also_teaches_about_other_goals(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    for number in range(12):
        store_game(config, f"mug-{number}", played(f"mug-{number}", "shelf 1", "a book 1"), "Look in shelf 1.")
    with closing(open_store(load(config))) as store:
        book = played("book-1", "desk 1", "a book 1", solved=True)
        book = book.model_copy(update={"opening": ROOM.replace("mug", "book")})
        add_trajectory(store, Key(arm="collect", task_id="book-1"), book)
        store.add_reflection(
            Key(arm="collect", task_id="book-1", trial=1), 0, Reflection(text="x", prompt=prompt("b"), author=AUTHOR)
        )
    words = ["train.sft.texts=hindsight", "reflector.view=compact"]
    own = advice_to_imitate(load(config, words))
    both = advice_to_imitate(load(config, [*words, "train.sft.other_goals=1"]))
    assert [advice for advice in both if "some book" not in advice.prompt[-1].content] == own
    others = {advice.text: advice.prompt[-1].content for advice in both if "some book" in advice.prompt[-1].content}
    # The order of the places that are left depends on the game.
    overlooked = others["The book 1 is in shelf 1."]
    assert overlooked.startswith(
        "Task: put some book on desk\nSeen: book 1 in shelf 1\nSearched: shelf 1, drawer 1\nNot searched: "
    )
    assert overlooked.endswith("Advice: Look in shelf 1.\nSearched then: shelf 1\nFailed. Advice for the next attempt:")
    assert set(others) > {"The book 1 is in shelf 1."}
    assert all(text.startswith("Look in ") for text in set(others) - {"The book 1 is in shelf 1."})


def test_hindsight_and_rated_advice_can_be_taught_together(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    store_game(config, "mug-1", played("mug-1", "shelf 1", "a mug 1", solved=True), "Look in shelf 1.")
    texts = [advice.text for advice in advice_to_imitate(load(config, ["train.sft.texts=both"]))]
    assert texts == ["Look in shelf 1.", "Look in shelf 1, desk 1 and drawer 2."]


def test_tasks_that_are_left_out_teach_nothing_even_about_others(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    store_game(config, "mug-1", played("mug-1", "shelf 1", "a mug 1", solved=True), "Look in shelf 1.")
    store_game(config, "mug-2", played("mug-2", "drawer 1", "nothing"), "Look in drawer 1.")
    with closing(open_store(load(config))) as store:
        store.marks.add("collect", "mug-1", "leaking")
    kept, less = (
        advice_to_imitate(load(config, ["train.sft.texts=hindsight", *words]))
        for words in ((), ("train.leave_out=[leaking]",))
    )
    assert [advice.prompt for advice in kept[:2]] == [prompt("mug-1"), prompt("mug-2")]
    assert kept[1].text == "Look in shelf 1, desk 1 and drawer 2."
    assert less[0].prompt == prompt("mug-2")
    assert less[0].text != kept[1].text


def test_where_an_environment_proves_nothing_the_best_advice_that_helped_is_taken(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    collect(config, tasks=2)
    experiment = load(config, ["train.sft.texts=hindsight"])
    assert [advice.text for advice in advice_to_imitate(experiment)] == [GOOD, GOOD]


def test_the_gain_of_a_retry_without_advice_does_not_hide_the_best_advice(tmp_path: Path) -> None:
    """That retry measures luck (`collect.unadvised`); advice is rated by what it gains on it."""
    config = config_file(tmp_path, tmp_path)
    experiment = load(config, ["train.sft.texts=hindsight"])
    with closing(open_store(experiment)) as store:
        first = Key(arm="collect", task_id="riddle")
        add_trajectory(store, first, attempt_at(CAPITAL))
        for candidate, (text, returned) in enumerate((("", 0.4), (GOOD, 0.6), (BAD, 0.0))):
            retry = Key(arm="collect", task_id="riddle", trial=1, candidate=candidate)
            store.add_reflection(retry, 0, Reflection(text=text, prompt=prompt("riddle"), author=AUTHOR))
            add_trajectory(store, retry, attempt_at(CAPITAL, (returned,)))
    assert [advice.text for advice in advice_to_imitate(experiment)] == [GOOD]


def test_without_anything_proved_the_stage_says_so(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    collect(config, tasks=2, rate=lambda text: 0.0)
    with pytest.raises(MissingInput, match=r"proved any advice right.*train.sft.texts=rated"):
        advice_to_imitate(load(config, ["train.sft.texts=hindsight"]))


def test_rated_texts_may_be_limited_to_failures_on_which_advice_mattered(tmp_path: Path) -> None:
    config = config_file(tmp_path, tmp_path)
    collect(config, tasks=2)
    collect(config, tasks=3, arm="collect 2", rate=lambda text: 1.0)
    every, mixed = (
        [advice.text for advice in advice_to_imitate(load(config, ["round=2", f"train.sft.texts={which}"]))]
        for which in ("rated", "mixed")
    )
    assert sorted(every) == sorted([GOOD] * 5 + [BAD] * 3)
    assert mixed == [GOOD] * 2
