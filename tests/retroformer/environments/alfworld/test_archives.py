"""Test that the examples of the prompt packs `commands` and `sala` are attempts that the games answer as printed."""

import re

import pytest

from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.method.prompts import load_pack
from tests.support.alfworld import game_task
from tests.support.data import require_data

PACK, SALA = load_pack("commands", "alfworld"), load_pack("sala", "alfworld")
STEP = re.compile(r"^> (.+)\n((?:(?!> ).*\n)*)", re.MULTILINE)
GAMES = {
    "pick_and_place_simple": (
        "pick_and_place_simple-CellPhone-None-Drawer-302/trial_T20190907_235359_470335",
        "pick_and_place_simple-KeyChain-None-Sofa-208/trial_T20190909_065845_651712",
        "pick_and_place_simple-Newspaper-None-ArmChair-212/trial_T20190907_222321_153992",
    ),
    "pick_clean": (
        "pick_clean_then_place_in_recep-Kettle-None-StoveBurner-1/trial_T20190908_172317_474122",
        "pick_clean_then_place_in_recep-Bowl-None-Microwave-23/trial_T20190908_101118_633566",
        "pick_clean_then_place_in_recep-Spoon-None-DiningTable-20/trial_T20190909_034703_947964",
    ),
    "pick_heat": (
        "pick_heat_then_place_in_recep-Mug-None-CoffeeMachine-18/trial_T20190907_142151_953742",
        "pick_heat_then_place_in_recep-Egg-None-Fridge-24/trial_T20190909_005558_532531",
        "pick_heat_then_place_in_recep-Mug-None-Shelf-20/trial_T20190907_054140_093754",
    ),
    "pick_cool": (
        "pick_cool_then_place_in_recep-Apple-None-CounterTop-14/trial_T20190909_045026_110157",
        "pick_cool_then_place_in_recep-Potato-None-GarbageCan-1/trial_T20190909_102706_443288",
        "pick_cool_then_place_in_recep-Cup-None-Shelf-1/trial_T20190907_181551_510121",
    ),
    "look_at_obj": (
        "look_at_obj_in_light-AlarmClock-None-DeskLamp-328/trial_T20190908_212905_950861",
        "look_at_obj_in_light-Bowl-None-DeskLamp-316/trial_T20190908_230635_560113",
        "look_at_obj_in_light-Statue-None-DeskLamp-304/trial_T20190909_011906_700145",
    ),
    "pick_two": (
        "pick_two_obj_and_place-AlarmClock-None-Desk-304/trial_T20190907_215326_695860",
        "pick_two_obj_and_place-CellPhone-None-Drawer-318/trial_T20190908_104510_132397",
        "pick_two_obj_and_place-Candle-None-Drawer-411/trial_T20190909_060014_389023",
    ),
}
"""Train games of the examples, by the key of the examples in the pack."""
LOST = (
    "pick_clean_then_place_in_recep-Knife-None-Drawer-8/trial_T20190907_044636_221471",
    "pick_heat_then_place_in_recep-Mug-None-Cabinet-19/trial_T20190907_152738_415962",
)
"""Train games of the reflector's examples."""
LOST_BY_SALA = (
    "pick_two_obj_and_place-CellPhone-None-Dresser-327/trial_T20190908_042553_191155",
    "pick_clean_then_place_in_recep-Kettle-None-StoveBurner-18/trial_T20190907_153921_393288",
)
"""Train games of the failures in the prompt of SALA's one model."""


@pytest.mark.parametrize("kind", GAMES)
def test_a_game_answers_the_actors_examples_as_printed_and_is_won(kind: str) -> None:
    for example, game in zip(PACK.examples_by_task[kind], GAMES[kind], strict=True):
        assert answered_as_printed(example, game)


@pytest.mark.parametrize(("example", "game"), list(zip(PACK.reflect_examples, LOST, strict=True)))
def test_a_game_answers_the_reflectors_examples_as_printed_and_is_not_won(example: str, game: str) -> None:
    attempt, _, advice = example.partition("\n\nThe attempt failed (too many actions).\n")
    assert not answered_as_printed(f"{attempt}\n", game)
    assert advice.startswith(PACK.ask)


@pytest.mark.parametrize(("example", "game"), list(zip(SALA.failures, LOST_BY_SALA, strict=True)))
def test_a_game_answers_the_failures_of_sala_as_printed_and_is_not_won(example: str, game: str) -> None:
    attempt, _, plan = example.partition(SALA.ask.strip())
    assert not answered_as_printed(attempt, game)
    assert plan.strip()


def test_the_examples_for_other_tasks_are_among_those_by_task() -> None:
    by_task = [example for examples in PACK.examples_by_task.values() for example in examples]
    assert set(PACK.examples) < set(by_task)


def answered_as_printed(example: str, game: str) -> bool:
    """Replay an example in a game, and return True if it is won; every answer must be the printed one."""
    games = taskset(Alfworld(data=require_data("alfworld"), grammar="put"))
    environment = games.environment()
    opening, _, rest = example.partition("\n> ")
    seen = environment.reset(game_task(game))
    assert seen.observation == opening
    for action, observation in STEP.findall(f"> {rest}"):
        seen = environment.step(action)
        assert seen.observation == observation.strip(), action
    return seen.success
