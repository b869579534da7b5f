"""Tests of generated games: solvable, repeatable, disjoint, learnable, with the stock engine's texts."""

import random
from collections import Counter
from typing import Any

import pytest

from retroformer.environments.alfworld import generated_rooms as rooms
from retroformer.environments.alfworld.engine import GameEngine
from retroformer.environments.alfworld.environment import Alfworld, check_grammar
from retroformer.environments.alfworld.generated_games import GeneratedGames, draw_goal, draw_world, kind_of
from retroformer.environments.alfworld.planner import Planner
from retroformer.environments.alfworld.python_planner import PythonPlanner
from retroformer.errors import ConfigError, UnknownTask
from tests.support.alfworld import StockEngine, game_task, needs_stock_engine


def games(seed: int = 0, **options: Any) -> GeneratedGames:
    return GeneratedGames(Alfworld(name="alfworld", source="generated", **options), seed)


@pytest.mark.parametrize(("grammar", "receptacles", "number"), [("move", 6, 60), ("put", 12, 18), ("put", 30, 6)])
def test_walkthroughs_win_games_of_all_types(grammar: str, receptacles: int, number: int) -> None:
    source = games(grammar=grammar, receptacles=receptacles)
    environment = source.environment()
    types = Counter[str]()
    for task in source.tasks()[:number]:
        answer = environment.reset(task)
        assert not answer.over
        places = answer.observation.partition("you see ")[2].partition(".")[0].replace(", and ", ", ").split(", ")
        assert len(places) == receptacles
        for action in source.walkthrough(task):
            assert action in answer.choices
            assert not answer.over
            answer = environment.step(action)
        assert answer.success
        types[task.id.split("/")[2].split("-")[0]] += 1
    assert types == dict.fromkeys(rooms.KINDS, number // 6)


def test_the_planner_finds_plans_no_longer_than_the_walkthroughs() -> None:
    fast_downward = pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    source = games(receptacles=6)
    library = fast_downward.load_lib()
    for task in source.tasks()[:6]:
        game = source.game(task)
        _, sas = fast_downward.pddl2sas(game.domain, game.problem, optimize=True)
        assert library.solve_sas(sas.encode(), False)
        assert 0 < library.get_last_plan_length() <= len(source.walkthrough(task)) + 1


def test_a_game_depends_on_seed_split_and_index_alone() -> None:
    task = games().tasks()[17]
    assert games().game(task) == games().game(task)
    # Neither the listed split nor the chosen types change a game.
    assert games(split="held_out", task_types=("look",)).game(task) == games().game(task)
    assert [task.id for task in games().tasks()] == [task.id for task in games().tasks()]
    assert games(seed=1).tasks()[17].id != task.id


def test_an_id_is_enough_to_make_a_game_far_beyond_the_list() -> None:
    source = games()
    with pytest.raises(UnknownTask) as caught:
        source.game(game_task("generated/train/pick-mug-shelf-123456789"))
    suggested = str(caught.value).split("'")[3]
    assert suggested.endswith("-123456789")
    assert source.game(game_task(suggested)).walkthrough


def test_train_and_held_out_share_no_game() -> None:
    problems = {
        split: {games().game(task).problem for task in games(split=split).tasks()[:300]}
        for split in ("train", "held_out")
    }
    ids = {split: {task.id for task in games(split=split).tasks()} for split in ("train", "held_out")}
    assert all(len(different) == 300 for different in problems.values())
    assert problems["train"].isdisjoint(problems["held_out"])
    assert ids["train"].isdisjoint(ids["held_out"])


def test_only_the_wanted_types_are_listed_by_index() -> None:
    tasks = games(task_types=("heat", "two")).tasks()
    assert len(tasks) == 4000
    assert {task.id.split("/")[2].split("-")[0] for task in tasks} == {"heat", "two"}
    indices = [int(task.id.rsplit("-", 1)[1]) for task in tasks]
    assert indices == sorted(indices)


def test_errors_for_unknown_splits_and_ids_suggest_close_ones() -> None:
    with pytest.raises(UnknownTask, match="Did you mean 'held_out'"):
        games(split="heldout").tasks()
    with pytest.raises(UnknownTask, match="they look like 'generated/train/"):
        games().game(game_task("look_at_obj_in_light-Mug-None-DeskLamp-308/trial_1"))
    task = games().tasks()[3]
    with pytest.raises(UnknownTask, match=f"with seed 0. Did you mean '{task.id}'"):
        games().game(game_task(task.id.rsplit("-", 2)[0] + "-nowhere-000003"))


def test_things_are_in_their_homes_with_the_declared_probability() -> None:
    places: dict[str, Counter[str]] = {}
    for index in range(2000):
        chance = random.Random(index)
        world = draw_world(draw_goal(chance.choice(rooms.KINDS), chance), 14, chance)
        for thing, place in world.where.items():
            if kind_of(thing) != world.goal.thing and thing != world.lamp:
                places.setdefault(kind_of(thing), Counter())[kind_of(place)] += 1
    at_home = sum(count[home] for thing, count in places.items() for home in rooms.THINGS[thing].homes)
    total = sum(count.total() for count in places.values())
    assert total > 15_000
    assert at_home / total == pytest.approx(rooms.AT_HOME, abs=0.01)
    for thing, count in places.items():
        assert sum(count[home] for home in rooms.THINGS[thing].homes) / count.total() > 0.75


def test_a_wanted_thing_may_be_in_its_home_and_never_at_its_destination() -> None:
    homes = Counter[bool]()
    for index in range(1500):
        chance = random.Random(index)
        goal = draw_goal(chance.choice(rooms.KINDS), chance)
        world = draw_world(goal, 10, chance)
        for thing, place in world.where.items():
            if kind_of(thing) == goal.thing:
                assert kind_of(place) != goal.place
                homes[kind_of(place) in rooms.THINGS[goal.thing].homes] += 1
    assert homes[True] / homes.total() == pytest.approx(rooms.AT_HOME, abs=0.03)


def test_the_table_of_things_is_consistent() -> None:
    for name, thing in rooms.THINGS.items():
        places = rooms.ROOMS[thing.room]
        assert sum(thing.homes.values()) == pytest.approx(rooms.AT_HOME), name
        assert set(thing.homes) <= set(places), name
        assert set(thing.destinations) <= set(places), name
        assert set(thing.destinations).isdisjoint(thing.homes), name
    for kind in rooms.KINDS:
        for name in rooms.things_for(kind):
            assert rooms.destinations_for(kind, name), (kind, name)
            assert rooms.APPLIANCES.get(kind, "Drawer") in rooms.ROOMS[rooms.THINGS[name].room], (kind, name)


def test_the_canary_knows_the_grammar_of_generated_games() -> None:
    check_grammar(games(receptacles=6), ["move mug 1 to desk 1"])
    with pytest.raises(ConfigError, match="grammar 'move'"):
        check_grammar(games(receptacles=6), ["put mug 1 in/on desk 1"])


def test_the_rules_in_python_are_those_of_the_planner() -> None:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    ours, planner, seen = GameEngine(PythonPlanner()), GameEngine(Planner()), set[str]()
    for seed, receptacles in ((0, 6), (1, 10), (2, 14)):
        source = games(seed=seed, receptacles=receptacles)
        for task in source.tasks()[:6]:
            game, chance = source.game(task), random.Random(task.id)
            assert ours.start(game) == planner.start(game)
            for turn in range(60 + len(game.walkthrough)):
                assert (ours.commands, ours.won) == (planner.commands, planner.won)
                # Nothing is taken before the walkthrough, so that it wins; afterwards anything may happen.
                harmless = [word for word in ours.commands if word.split()[0] in ("go", "look", "examine", "close")]
                knives = [
                    word for word in ours.commands if word.startswith(("slice", "take knife", "take butterknife"))
                ]
                action = chance.choice(harmless if turn < 8 else knives or ours.commands)
                if 8 <= turn < 8 + len(game.walkthrough):
                    action = game.walkthrough[turn - 8]
                seen.add(action.split()[0])
                assert ours.do(action) == planner.do(action)
                assert ours.won or turn != 7 + len(game.walkthrough)
    verbs = "clean close cool examine go heat help inventory look move open slice take use"
    assert seen == set(verbs.split())


@needs_stock_engine
def test_the_stock_engine_gives_the_same_answers() -> None:
    source = games(receptacles=6, grammar="move")
    for task in (source.tasks()[0], source.tasks()[5]):
        game = source.game(task)
        stock = StockEngine(game)
        engine = GameEngine(PythonPlanner())
        assert (engine.start(game), engine.commands) == (stock.feedback, stock.commands)
        chance = random.Random(task.id)
        detours = [chance.choice(engine.commands), "help", "look", "inventory", "fly away"]
        for action in (*detours, *game.walkthrough[:-1], "inventory", game.walkthrough[-1]):
            stock.do(action)
            assert (engine.do(action), engine.commands) == (stock.feedback, stock.commands)
            assert engine.won == stock.won
