"""Tests of shopping among four invented products."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retroformer.agents.actors import offer_actions
from retroformer.environments.pool import EnvironmentPool
from retroformer.environments.tasksets import EPISODE_OVER
from retroformer.environments.webshop import extras
from retroformer.environments.webshop.environment import Webshop, WebshopEnvironment
from retroformer.environments.webshop.shop import Shop
from retroformer.environments.webshop.site import INVALID_ACTION
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step, Task, Transition
from tests.support.odd_actions import every_episode, odd_actions
from tests.support.webshop import make, visit, write_shop

LAMP = "B000000001"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return write_shop(tmp_path / "data")


def lamp_goal(folder: Path, color: str = "sky blue", size: str = "9 inch") -> int:
    """Return the index of the goal for the reading lamp with these options."""
    goals, wanted = Shop(folder).goals("synthetic"), (("color", color), ("size", size))
    stored = [goals.goal(str(idx)) for idx in range(len(goals.asins()))]
    return next(idx for idx, goal in enumerate(stored) if goal.options == wanted)


def shopping(folder: Path, *actions: str, **knobs: object) -> list[Transition]:
    return visit(make(folder, **knobs).environment(), lamp_goal(folder), *actions)


def test_react_shows_pages_in_few_lines(folder: Path) -> None:
    seen = shopping(folder, "search[lamp]", f"click[{LAMP}]", "click[Features]", "click[< Prev]")
    opening, results, item, features, again = (transition.observation for transition in seen)
    assert opening.startswith(
        "\nWebShop \nInstruction:  \nFind me easy install reading lamps with color: sky blue, and "
    )
    assert results == (
        "\n[Back to Search] \nPage 1 (Total results: 3) \n[Next >] \n[B000000002] \nDesk Lamp with Clamp "
        "\n$1019.5 to $1200.0 \n[B000000004] \nOak Lamp \n$25.0 to $30.0 \n[B000000001] \nReading Lamp \n$10.0 "
    )
    assert item == (
        '\n[Back to Search] \n[< Prev] \ncolor [sky blue][red | white]\nsize [5"][9 inch]\nReading Lamp \nPrice: $10.0 '
        "\nRating: N.A. \n[Description] \n[Features] \n[Reviews] \n[Buy Now] "
    )
    assert features == "\n[Back to Search] \n[< Prev] \n Made with care.  "
    assert again == item


def test_react_buys_the_chosen_product(folder: Path) -> None:
    seen = shopping(
        folder, "search[lamp]", f"click[{LAMP}]", "click[sky blue]", "click[9 inch]", "click[Reviews]", "click[< Prev]"
    )
    assert [transition.observation for transition in seen[3:5]] == [
        "You have clicked sky blue.",
        "You have clicked 9 inch.",
    ]
    assert '[[sky blue]][red | white]\nsize [5"][[9 inch]]' in seen[-1].observation
    *_, bought = shopping(
        folder, "search[lamp]", f"click[{LAMP}]", "click[sky blue]", "click[9 inch]", "click[Buy Now]"
    )
    score = "Your score (min 0.0, max 1.0): 1.0"
    assert bought == Transition(observation=score, reward=1.0, terminated=True, success=True)


def test_only_the_full_reward_is_a_success(folder: Path) -> None:
    idx = lamp_goal(folder, "red | white")
    actions = ["search[lamp]", f"click[{LAMP}]", "click[9 inch]", "click[Buy Now]"]
    environment = make(folder).environment()
    forgotten = visit(environment, idx, *actions)[-1]
    goals = Shop(folder).goals("synthetic")
    other = next(idx for idx, asin in enumerate(goals.asins()) if asin != LAMP)
    right = visit(environment, other, "search[oak]", "click[B000000004]", "click[Buy Now]")[-1]
    # One attribute, two options and the price; then one attribute, one option that was not chosen, and the price.
    assert (forgotten.reward, forgotten.success, forgotten.terminated) == (3 / 4, False, True)
    assert (right.reward, right.success, right.terminated) == (2 / 3, False, True)


@pytest.mark.parametrize(
    "action",
    [
        "jump",
        "",
        "search",
        "Search[lamp]",
        "click",
        "click[Buy Now]",
        "click[Next >]",
        "click[< Prev]",
        "click[Features]",
    ],
)
def test_react_answers_nonsense_on_the_search_page(folder: Path, action: str) -> None:
    opening, answer = shopping(folder, action)
    assert (answer.observation, answer.reward, answer.over) == (INVALID_ACTION, 0.0, False)
    assert answer.choices == opening.choices == ()


def test_react_needs_exact_button_names_and_searches_on_the_search_page_only(folder: Path) -> None:
    seen = shopping(
        folder,
        *(
            "search[lamp]",
            "search[table]",
            "click[b000000001]",
            "click[B999999999]",
            f" click[{LAMP}]\n",
            "click[buy now]",
        ),
        *("click[5 inch]", "click[Description]", "click[Buy Now]", "click[Back to Search]"),
    )
    invalid = [transition.observation == INVALID_ACTION for transition in seen]
    assert invalid == [False, False, True, True, True, False, True, True, False, True, False]
    assert seen[-1].observation == seen[0].observation


def test_react_answers_a_thought_and_leaves_the_page(folder: Path) -> None:
    seen = shopping(folder, "search[lamp]", "think[which one?]", "think: aloud", f"click[{LAMP}]", "reset")
    assert [transition.observation for transition in seen[2:4]] == ["OK.", "OK."]
    assert seen[2].choices == seen[1].choices
    assert seen[-1].observation == seen[0].observation


def test_react_loses_the_page_if_its_address_would_break(folder: Path) -> None:
    seen = shopping(folder, "search[lamp #1]", f"click[{LAMP}]", "click[Back to Search]", "search[oak lamp]")
    assert [transition.observation for transition in seen[1:3]] == ["", INVALID_ACTION]
    assert seen[1].choices == ()
    assert "Oak Lamp" in seen[-1].observation
    *_, lost, bought = shopping(
        folder, "search[oak]", "click[B000000004]", "click[oil #2]", "click[Reviews]", "click[< Prev]", "click[Buy Now]"
    )
    assert (lost.observation, bought.observation, bought.reward, bought.terminated) == ("", "", 0.0, True)


def test_react_keeps_an_earlier_products_options_clickable(folder: Path) -> None:
    seen = shopping(
        folder, "search[lamp]", f"click[{LAMP}]", "click[< Prev]", "click[B000000002]", "click[9 inch]", "click[4 feet]"
    )
    assert [transition.observation for transition in seen[-2:]] == ["You have clicked 9 inch.", INVALID_ACTION]


def test_react_offers_the_clicks_that_do_something(folder: Path) -> None:
    _, results, item, sub = shopping(folder, "search[lamp]", f"click[{LAMP}]", "click[Description]")
    assert set(results.choices) == {"click[Back to Search]", *(f"click[B00000000{number}]" for number in (1, 2, 4))}
    assert item.choices[-4:] == ("click[sky blue]", "click[red | white]", 'click[5"]', "click[9 inch]")
    assert sub.choices == ("click[Back to Search]", "click[< Prev]")


def test_the_last_action_truncates_and_nothing_happens_after_the_end(folder: Path) -> None:
    *_, last, after = shopping(folder, "search[lamp]", "think[x]", "click[Buy Now]", max_steps=2)
    assert (last.truncated, last.terminated) == (True, False)
    assert (after.observation, after.reward, after.over) == (EPISODE_OVER, 0.0, True)
    *_, bought = shopping(folder, "search[lamp]", f"click[{LAMP}]", "click[Buy Now]", max_steps=3)
    assert (bought.truncated, bought.terminated) == (False, True)


def test_a_step_before_any_goal_and_a_goal_that_is_not_there_are_refused(folder: Path) -> None:
    environment = make(folder).environment()
    with pytest.raises(EnvironmentFailure):
        environment.step("search[lamp]")
    for task_id in ("5000", "first", "-1", "\u00b2", "9" * 30):
        with pytest.raises(UnknownTask):
            environment.reset(Task(id=task_id, environment="webshop", split="all"))


def test_worker_processes_share_one_built_shop(folder: Path, tmp_path: Path) -> None:
    async def both() -> list[str]:
        section = Webshop(data=folder, split="all")
        async with EnvironmentPool(section, 0, 2, 60) as pool:

            async def first_answer(task: Task) -> str:
                async with pool.episode(task) as episode:
                    await episode.reset()
                    return (await episode.step("search[table]")).observation

            return await asyncio.gather(*map(first_answer, make(folder).tasks()[:2]))

    first, second = asyncio.run(both())
    assert first == second
    assert "Oak Table" in first
    assert len(list((tmp_path / "cache" / "webshop").glob("shop-*.sqlite"))) == 1


BUTTONS = (
    *("Buy Now", "< Prev", "Next >", "Back to Search", "Description", "Attributes", "reset", LAMP, '5"', "sky blue"),
    *("lamp oak", "search[lamp]", f"click[{LAMP}]", "click[Buy Now]", "think[lamp]", '"', "'", "?", "/", "\u0301" * 9),
)


def test_no_action_breaks_the_shop(folder: Path) -> None:
    environment, idx = make(folder).environment(), lamp_goal(folder)

    @settings(every_episode, max_examples=200)
    @given(actions=odd_actions(("search[", "click[", "think[", "search[lamp] "), BUTTONS), choice=st.integers(0, 9))
    def play(actions: list[str], choice: int) -> None:
        (seen,) = visit(environment, idx)
        for odd in actions:
            for action in (odd, f"search[{odd}]", "search[oak]", *seen.choices[choice : choice + 1]):
                if not seen.over:
                    seen = environment.step(action)
                    assert 0 <= seen.reward <= 1

    play()


@pytest.mark.parametrize("unit", ["a", "[", "]", "search[", "[]", "lamp ", "_", "\u0301", "\U0001f1fa", "#"])
def test_a_megabyte_is_answered_like_any_action(folder: Path, unit: str) -> None:
    environment: WebshopEnvironment = make(folder).environment()
    long = unit * (1_000_000 // len(unit))
    seen = visit(environment, lamp_goal(folder), f"search[{long}]", f"click[{long}]", f"think[{long}", long)
    assert not any(transition.over for transition in seen)
    assert all(len(transition.observation) < 1000 for transition in seen)


def test_a_chooser_may_search_for_the_request_itself_where_nothing_can_be_clicked(folder: Path) -> None:
    environment = make(folder, goals="human").environment()
    opening, results = visit(environment, 0, "search[i want a table]")
    task = Task(id="0", environment="webshop", split="all")
    start = Scene(task=task, opening=opening.observation, steps=(), memory=Memory(), choices=opening.choices)
    assert extras.choices is not None
    (search,) = extras.choices(start)
    assert re.fullmatch(r"search\[i want a table, and price lower than \d+\.00 dollars\]", search)
    assert extras.choices(start.model_copy(update={"choices": results.choices})) == results.choices
    assert len(results.choices) > 1


def test_a_chooser_reads_advice_and_attempt_as_text_and_its_words_name_the_actions() -> None:
    task = Task(id="0", environment="webshop", split="all")
    memory = Memory(reflections=("Buy the  oak table.",))
    scene = Scene(
        task=task, opening="Shop", steps=(Step(action="search[oak]", observation="Oak Table"),), memory=memory
    )
    offered = offer_actions(lambda _: ("click[Buy  Now]", "click[< Prev]"), scene)
    assert offered.prompt == "Advice: Buy the oak table.\nShop\n> search[oak]\nOak Table\n>"
    assert offered.continuations == (" click[Buy Now]\n", " click[< Prev]\n")
    assert offered.actions == ("click[Buy  Now]", "click[< Prev]")
