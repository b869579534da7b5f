"""Tests of the official games: counts, order, texts equal to the stock engine's, episodes as in the papers."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.engine import GameEngine
from retroformer.environments.alfworld.environment import Alfworld, check_grammar
from retroformer.environments.alfworld.planner import Planner
from retroformer.environments.alfworld.released_games import ROOMS, ReleasedGames, room_of
from retroformer.errors import ConfigError, EnvironmentFailure, MissingInput, UnknownTask
from retroformer.method.records import Task
from tests.support.alfworld import game_task
from tests.support.data import DATA, needs_data

pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")

SHARED = DATA / "alfworld"
TRACES = Path(__file__).parent / "data" / "alfworld_traces.jsonl"
MUG_ON_DESK = "pick_and_place_simple-Mug-None-Desk-308/trial_T20190909_210238_431966"

needs_games = needs_data("alfworld/valid_unseen.tar.zst")


def games(split: str = "valid_unseen", **options: Any) -> ReleasedGames:
    section = Alfworld(name="alfworld", **{"data": SHARED, "split": split, **options})
    return ReleasedGames(section)


def walkthrough(grammar: str) -> tuple[str, ...]:
    source = games(grammar=grammar)
    return source.walkthrough(game_task(MUG_ON_DESK, "valid_unseen"))


@needs_games
@pytest.mark.parametrize(
    ("split", "total", "by_type"),
    [
        ("valid_unseen", 134, {"look": 18, "pick": 24, "clean": 31, "cool": 21, "heat": 23, "two": 17}),
        ("valid_seen", 140, {"look": 13, "pick": 35, "clean": 27, "cool": 25, "heat": 16, "two": 24}),
        ("train", 3200, {}),
    ],
)
def test_each_split_has_the_official_games(split: str, total: int, by_type: dict[Any, int]) -> None:
    assert len(games(split).tasks()) == total
    for type_, count in by_type.items():
        assert len(games(split, task_types=(type_,)).tasks()) == count


@needs_data("alfworld/train.tar.zst")
def test_no_room_of_the_train_games_is_in_two_splits() -> None:
    tasks = {split: games(split).tasks() for split in ROOMS}
    rooms = {split: {room_of(task.id) for task in tasks[split]} for split in ROOMS}
    assert [len(rooms[split]) for split in ROOMS] == [54, 19, 35]
    assert len(set[int]().union(*rooms.values())) == 54 + 19 + 35
    ids = {task.id for split in ROOMS for task in tasks[split]}
    assert ids == {task.id for task in games("train").tasks()}
    first = tasks["test_rooms"][:300]
    assert len({room_of(task.id) for task in first}) >= 30
    assert len({task.id.partition("-")[0] for task in first}) == 6
    game = games("test_rooms").game(first[0])
    assert game == games("train").game(game_task(first[0].id, "train"))
    with pytest.raises(UnknownTask, match="in split 'train_rooms'"):
        games("train_rooms").game(game_task(first[0].id, "train_rooms"))


@needs_games
def test_tasks_are_sorted_by_id() -> None:
    ids = [task.id for task in games().tasks()]
    assert ids == sorted(ids)
    assert len(set(ids)) == 134
    assert ids[0] == "look_at_obj_in_light-AlarmClock-None-DeskLamp-308/trial_T20190908_222917_366542"


def test_listing_opens_no_game(tmp_path: Path) -> None:
    for trial in ("Mug-None-Desk-308/trial_1", "Mug-None-Desk-308/trial_2"):
        folder = tmp_path / "json_2.1.1" / "valid_unseen" / f"pick_and_place_simple-{trial}"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text("this is no game, and nobody looks")
    assert len(games(data=tmp_path).tasks()) == 2


def test_the_folder_of_a_game_without_a_room_is_named_where_rooms_are_chosen(tmp_path: Path) -> None:
    folder = tmp_path / "train" / "pick_and_place_simple-Mug-copy" / "trial_1"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").touch()
    assert len(games("train", data=tmp_path).tasks()) == 1
    with pytest.raises(MissingInput, match="Mug-copy' of ALFWorld games does not end with the number of a room"):
        games("train_rooms", data=tmp_path).tasks()


def test_the_games_of_a_folder_are_chosen_as_the_official_environment_does(tmp_path: Path) -> None:
    split = tmp_path / "json_2.1.1" / "valid_unseen"
    for name, files in {
        "pick_and_place_simple-Mug-None-Desk-308/trial_1": ["game.tw-pddl"],
        "pick_and_place_simple-AppleSliced-None-Fridge-1/trial_1": ["game.tw-pddl"],
        "pick_and_place_with_movable_recep-Mug-Bowl-Desk-308/trial_1": ["game.tw-pddl"],
        "pick_and_place_simple-Mug-None-Desk-308/trial_2": ["traj_data.json"],
    }.items():
        (split / name).mkdir(parents=True)
        for file in files:
            (split / name / file).write_text("{}")
    assert [task.id for task in games(data=tmp_path).tasks()] == ["pick_and_place_simple-Mug-None-Desk-308/trial_1"]


@needs_games
def test_a_folder_and_a_pack_hold_the_same_game(tmp_path: Path) -> None:
    packed = games()
    task = packed.tasks()[0]
    folder = tmp_path / "json_2.1.1" / "valid_unseen" / task.id
    folder.mkdir(parents=True)
    game = packed.game(task)
    content = {
        "pddl_domain": game.domain,
        "grammar": game.grammar,
        "pddl_problem": game.problem,
        "walkthrough": game.walkthrough,
        "solvable": True,
    }
    (folder / "game.tw-pddl").write_text(json.dumps(content))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ALFWORLD_DATA", str(tmp_path))
        assert games(data=None).game(task) == game
        patch.delenv("ALFWORLD_DATA")
        patch.setenv("HOME", str(tmp_path / "home"))
        (tmp_path / "home/.cache").mkdir(parents=True)
        (tmp_path / "home/.cache/alfworld").symlink_to(tmp_path)  # The folder of `alfworld-download`.
        assert games(data=None).game(task) == game


def test_the_error_for_missing_data_says_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()  # A folder of that name without any game.
    nowhere = tmp_path / "nowhere"
    for data, split in ((None, "train"), (nowhere, "train"), (tmp_path, "train"), (tmp_path, "valid_seen")):
        with pytest.raises(MissingInput, match=r"alfworld-download.*environment\.source=generated"):
            games(data=data, split=split).tasks()


@needs_games
def test_the_error_for_an_unknown_split_or_game_suggests_close_ones() -> None:
    with pytest.raises(UnknownTask, match="Did you mean 'valid_unseen'"):
        games("valid_unsen").tasks()
    with pytest.raises(UnknownTask, match=f"Did you mean .*{MUG_ON_DESK}"):
        games().game(game_task(MUG_ON_DESK[:-1] + "0", "valid_unseen"))
    with pytest.raises(UnknownTask):
        games().environment().reset(Task(id="../../etc/passwd", environment="alfworld", split="valid_unseen"))


def test_a_broken_or_unsolvable_game_is_an_environment_failure(tmp_path: Path) -> None:
    folder = tmp_path / "json_2.1.1" / "train" / "pick_and_place_simple-Mug-None-Desk-308" / "trial_1"
    folder.mkdir(parents=True)
    texts = {"pddl_domain": "", "grammar": "", "pddl_problem": "", "walkthrough": []}
    for content, cause in (("{", "broken"), ("{}", "broken"), (json.dumps({**texts, "solvable": False}), "unsolvable")):
        (folder / "game.tw-pddl").write_text(content)
        environment = games("train", data=tmp_path).environment()
        with pytest.raises(EnvironmentFailure, match=cause):
            environment.reset(games("train", data=tmp_path).tasks()[0])
    (folder / "game.tw-pddl").write_text(json.dumps({**texts, "solvable": True}))
    with pytest.raises(EnvironmentFailure, match="cannot read this game's problem"):
        games("train", data=tmp_path).environment().reset(games("train", data=tmp_path).tasks()[0])


@needs_games
@pytest.mark.parametrize("line", TRACES.read_text().splitlines(), ids=lambda line: json.loads(line)["task"][:24])
def test_every_answer_equals_the_stock_engines(line: str) -> None:
    trace = json.loads(line)
    task = Task(id=trace["task"], environment="alfworld", split=trace["split"])
    engine = GameEngine(Planner())
    for answer in trace["answers"]:
        action = answer["action"]
        observation = engine.start(games(task.split).game(task)) if action is None else engine.do(action)
        assert observation == answer["observation"]
        assert list(engine.commands) == answer["commands"]
        assert engine.won == answer["won"]


def test_the_recorded_traces_cover_all_types_and_both_endings() -> None:
    traces = [json.loads(line) for line in TRACES.read_text().splitlines()]
    assert len({trace["task"].split("-")[0] for trace in traces}) == 6
    assert Counter(trace["answers"][-1]["won"] for trace in traces) == {True: 6, False: 1}


@needs_games
@pytest.mark.parametrize("grammar", ["move", "put"])
def test_walkthroughs_win_in_both_grammars(grammar: str) -> None:
    source = games(grammar=grammar)
    environment = source.environment()
    of_each_type = {task.id.partition("-")[0]: task for task in source.tasks()}
    assert len(of_each_type) == 6
    for task in of_each_type.values():
        answer = environment.reset(task)
        for action in source.walkthrough(task):
            assert not answer.over
            assert action in answer.choices
            answer = environment.step(action)
        assert (answer.success, answer.terminated, answer.truncated, answer.reward) == (True, True, False, 1.0)


@needs_games
def test_the_two_grammars_differ_where_the_papers_do() -> None:
    def play(grammar: str, *actions: str) -> list[str]:
        source = games(grammar=grammar)
        environment = source.environment()
        environment.reset(game_task(MUG_ON_DESK, "valid_unseen"))
        return [environment.step(action).observation for action in actions]

    put, move = walkthrough("put"), walkthrough("move")
    assert [action.replace(" in/on ", " to ").replace("put ", "move ") for action in put] == list(move)
    assert play("put", *put)[-1].startswith("You put the mug")
    assert play("move", *move)[-1].startswith("You move the mug")
    assert play("put", *move)[-1] == "Nothing happens."
    assert play("move", *put)[-1] == "Nothing happens."
    assert play("put", "go to desk 1")[0].startswith("On the desk 1, you see")
    assert play("move", "go to desk 1")[0].startswith("You arrive at desk 1. On the desk 1, you see")
    assert play("put", "help")[0] == "Nothing happens."
    assert play("move", "help")[0].startswith("Available commands:")


@needs_games
def test_the_opening_has_no_banner() -> None:
    source = games()
    opening = source.environment().reset(game_task(MUG_ON_DESK, "valid_unseen"))
    room, _, task = opening.observation.partition("\n\n")
    assert room.startswith("You are in the middle of a room. Looking quickly around you, you see a bed 1, a desk 2")
    assert task.startswith("Your task is to: put ")
    assert "go to desk 1" in opening.choices


@needs_games
def test_thoughts_and_impossible_actions_change_nothing_and_use_up_steps() -> None:
    source = games(max_steps=4)
    environment = source.environment()
    opening = environment.reset(game_task(MUG_ON_DESK, "valid_unseen"))
    answers = [
        environment.step(action) for action in ("think: where is it?", "  Think : \u00fc?", "fly\0 to the moon", "")
    ]
    assert [answer.observation for answer in answers] == ["OK.", "OK.", "Nothing happens.", "Nothing happens."]
    assert all(answer.choices == opening.choices and answer.reward == 0 for answer in answers)
    assert [answer.truncated for answer in answers] == [False, False, False, True]
    assert not any(answer.terminated or answer.success for answer in answers)
    assert environment.step("go to desk 1") == answers[-1]


@needs_games
def test_winning_with_the_last_action_is_not_truncated_and_is_rewarded_once() -> None:
    actions = walkthrough("move")
    source = games(max_steps=len(actions))
    environment = source.environment()
    environment.reset(game_task(MUG_ON_DESK, "valid_unseen"))
    *before, last = [environment.step(action) for action in actions]
    assert [answer.reward for answer in (*before, last)] == [0.0] * len(before) + [1.0]
    assert (last.terminated, last.truncated, last.success) == (True, False, True)
    after = environment.step("look")
    assert after == last.model_copy(update={"reward": 0.0})


@needs_games
def test_environments_of_one_process_do_not_disturb_each_other() -> None:
    source = games()
    first, second = source.environment(), source.environment()
    tasks = (source.tasks()[0], source.tasks()[70])
    first.reset(tasks[0])
    second.reset(tasks[1])
    plans = [source.walkthrough(task) for task in tasks]
    ends = {}
    for index in range(max(map(len, plans))):
        for environment, plan in zip((first, second), plans, strict=True):
            if index < len(plan):
                ends[environment] = environment.step(plan[index])
    assert [answer.success for answer in ends.values()] == [True, True]


@needs_games
def test_an_episode_can_be_repeated_exactly() -> None:
    source = games()
    environment = source.environment()
    task = game_task(MUG_ON_DESK, "valid_unseen")
    once, again = ([environment.reset(task), *map(environment.step, source.walkthrough(task))] for _ in range(2))
    assert once == again


def test_a_step_before_any_game_is_an_environment_failure() -> None:
    with pytest.raises(EnvironmentFailure, match="reset comes before the first step"):
        games().environment().step("look")


@needs_games
def test_the_canary_refuses_prompts_of_the_other_grammar() -> None:
    source = games("valid_seen", grammar="put")
    check_grammar(source, ["go to desk 1", "think: hm", "put mug 1 in/on desk 1"])
    check_grammar(source, [])
    with pytest.raises(ConfigError, match=r"'move mug 1 to desk 1'.*environment\.grammar=move"):
        check_grammar(source, ["go to desk 1", "move mug 1 to desk 1"])


@needs_games
def test_playing_prints_nothing_and_leaves_the_arguments_alone() -> None:
    program = f"""
import sys
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld import taskset
heavy = {{"textworld", "alfworld", "fast_downward", "torch"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
source = taskset(Alfworld(name="alfworld", data={str(SHARED)!r}, split="valid_unseen"))
environment = source.environment()
environment.reset(source.tasks()[0])
for action in source.walkthrough(source.tasks()[0]):
    answer = environment.step(action)
assert answer.success
assert sys.argv == ["-c", "mine"], sys.argv
"""
    ended = subprocess.run([sys.executable, "-c", program, "mine"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@needs_games
def test_an_unusable_cache_is_rebuilt(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = games()
    task = source.tasks()[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(tmp_path))
        fresh = source.environment().reset(task)
        (cached,) = tmp_path.rglob("*.json.zst")
        cached.write_bytes(b"rubbish")
        assert source.environment().reset(task) == fresh
        assert "is made again" in caplog.text
        assert cached.read_bytes() != b"rubbish"


def test_the_taskset_follows_the_section() -> None:
    section = Alfworld(name="alfworld", source="generated")
    assert taskset(section).tasks()[0].id.startswith("generated/train/")
    assert isinstance(taskset(section.model_copy(update={"source": "released"})), ReleasedGames)


@needs_games
def test_an_invalid_pack_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.tar.zst").write_bytes(b"not compressed")
    with pytest.raises(MissingInput, match=r"train\.tar\.zst' is broken"):
        games("train", data=tmp_path).tasks()


@needs_games
def test_a_game_that_cannot_be_read_leaves_the_environment_usable(tmp_path: Path) -> None:
    source = games()
    engine = GameEngine(Planner())
    game = source.game(source.tasks()[0])
    opening = engine.start(game)
    with pytest.raises(EnvironmentFailure, match="grammar"):
        engine.start(game._replace(grammar='grammar :: """ { """;'))
    with pytest.raises(EnvironmentFailure, match="problem"):
        engine.start(game._replace(problem="(define"))
    assert engine.start(game) == opening
