"""The rule-based household player wins every type of game, is deterministic, and changes course only on advice."""

import asyncio

import pytest

from retroformer.environments.alfworld import compact, taskset
from retroformer.environments.alfworld.actors import RuleActor
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.attempt_reader import read_goal, read_steps
from retroformer.environments.alfworld.environment import Alfworld, AlfworldEnvironment
from retroformer.method.protocols import Scene
from retroformer.method.records import Memory, Step, Task

ROOM = {"desk": 2, "shelf": 4, "drawer": 5, "cabinet": 6, "fridge": 1, "sinkbasin": 1, "sidetable": 2, "garbagecan": 1}
PLACES = tuple(f"{kind} {number}" for kind, most in ROOM.items() for number in range(1, most + 1))
TASK = Task(id="clean-mug-desk/1", environment="alfworld", split="train")
ORDER = compact.room_order(TASK, PLACES)
CLEAN = read_goal("clean some mug and put it in desk")
LAST = ORDER[-1]


def scene(*advice: str, task: str = "clean some mug and put it in desk", steps: tuple[Step, ...] = ()) -> Scene:
    room = ", ".join(f"a {place}" for place in PLACES)
    opening = (
        f"You are in the middle of a room. Looking quickly around you, you see {room}.\n\nYour task is to: {task}."
    )
    return Scene(task=TASK, opening=opening, steps=steps, memory=Memory(reflections=advice))


def act(moment: Scene, grammar: compact.Grammar = "move") -> str:
    return asyncio.run(RuleActor(grammar).act(moment)).action


def searched(*advice: str, times: int = 6) -> list[str]:
    """Return the places that it searches, in order, if each is empty."""
    steps: list[Step] = []
    for _ in range(times):
        action = act(scene(*advice, steps=tuple(steps)))
        steps.append(Step(action=action, observation=f"On the {action.removeprefix('go to ')}, you see nothing."))
    return [step.action.removeprefix("go to ") for step in steps]


def test_without_advice_it_searches_in_the_order_of_the_room_line() -> None:
    assert searched(times=len(ORDER)) == list(ORDER)
    assert act(scene(task="write a poem")) == f"go to {ORDER[0]}"


@pytest.mark.parametrize(
    "words",
    [
        "Look in drawer 3.",
        "I would open drawer 3 right away.",
        "Next time I should begin at drawer #3.",
        "My plan: first drawer 3, afterwards all the rest.",
        "Perhaps the mug is waiting in drawer 3.",
        "Remember that drawer 3 holds the mug 1.",
        "I never checked drawer 3!",
        "Drawer 3 has not been searched yet.",
        "The one place left to visit is drawer 3",
        "Don't forget to inspect DRAWER 3.",
        "You wasted your steps on cabinet 1-6; head for drawer 3 instead.",
        "I looked in the shelves, but I should have looked in drawer 3.",
        "Grab the mug 1 from drawer 3 and wash it in the sink.",
        "If the fridge is shut, never mind. Mug 1: drawer 3",
    ],
)
def test_a_place_named_in_words_of_any_kind_is_searched_first(words: str) -> None:
    assert "drawer 3" in searched(words, times=2)


def test_an_appliance_to_look_into_is_searched_and_not_used() -> None:
    room = ("microwave 1", "fridge 1", "sinkbasin 1", "desk 1")
    goal = read_goal("heat some plate and put it in desk")
    assert read_advice(["Look in microwave 1 and desk 1."], room, goal).first == ("microwave 1", "desk 1")
    assert read_advice(["Find the clean plate in sinkbasin 1."], room, goal).sightings == {"plate": ("sinkbasin 1",)}
    assert read_advice(["The plate 1 is in microwave 1."], room, goal).sightings == {"plate": ("microwave 1",)}
    assert read_advice(["Then microwave it and put it in desk 1."], room, goal).targets == ("desk 1",)
    assert read_advice(["Warm it in microwave 1."], room, goal).appliances == ("microwave 1",)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "Be careful and think step by step.",
        "I failed because I ran out of 15 steps in 2 trials.",
        "Look in drawer 9, safe 1 and bathtub basin 2.",
        "The plate 1 is in shelf 4.",
        "Take the plate 1 from shelf 4. Then heat it with microwave 1, then put it in shelf 1.",
        "The task was to clean a mug and put it in desk.",
        "Cabinet 7-9999999999 is next.",
        "1 2 3 - 4; 5, 6 and 7!",
        f"Look in cabinet {'9' * 5000}.",
        "The shelving was nice, deskwork too.",
    ],
)
def test_advice_about_other_rooms_and_tasks_changes_nothing(words: str) -> None:
    assert searched(words) == list(ORDER[:6])


@pytest.mark.parametrize(
    "words",
    [
        "Do not search {0} again.",
        "You already looked in {0}; do not go there again.",
        "{0}: already checked, no mug there.",
        "I searched {0} and the mug wasn't there.",
        "{0} is empty.",
        "Avoid {0}.",
        "There was nothing in {0}.",
        "I opened {0}.",
    ],
)
def test_a_place_ruled_out_is_searched_last(words: str) -> None:
    path = searched(words.format(ORDER[0]), times=len(ORDER))
    assert path == [*ORDER[1:], ORDER[0]]


@pytest.mark.parametrize(
    ("words", "places"),
    [
        ("Look in cabinet 1-3.", "cabinet 1, cabinet 2, cabinet 3"),
        ("Look in cabinets 2 through 4 and shelf 1", "cabinet 2, cabinet 3, cabinet 4, shelf 1"),
        ("Check drawers 1, 3 and 5, then shelf 2.", "drawer 1, drawer 3, drawer 5, shelf 2"),
        ("Search the shelves.", "shelf 1, shelf 2, shelf 3, shelf 4"),
        ("Search the drawers except drawer 2-4.", "drawer 1, drawer 5"),
        ("Drawer 2 is empty. Look in the drawers.", "drawer 1, drawer 3, drawer 4, drawer 5"),
        ("Look in drawer 1 and 2 mugs later.", "drawer 1"),
        ("Look in drawer 4 within 10 steps.", "drawer 4"),
        ("Try the side tables, not the fridge.", "sidetable 1, sidetable 2"),
        ("Go to the trash can.", "garbagecan 1"),
        ("Look in drawer 5-99999999999.", "drawer 5"),
        ("Look in shelf 2 for the plate.", "shelf 2"),
    ],
)
def test_numbers_ranges_and_plurals_are_understood(words: str, places: str) -> None:
    assert read_advice([words], PLACES, CLEAN).first == tuple(places.split(", "))


def test_a_sighting_directs_it_to_the_needed_thing() -> None:
    words = "The desklamp 1 is on sidetable 2. I saw the mug 1 on shelf 3."
    look = "examine the mug with the desklamp"
    assert act(scene(words, task=look)) == "go to shelf 3"
    sighting = Step(action="go to shelf 3", observation="On the shelf 3, you see a mug 1.")
    assert act(scene(words, task=look, steps=(sighting,))) == "take mug 1 from shelf 3"
    taken = Step(action="take mug 1 from shelf 3", observation="You pick up the mug 1 from the shelf 3.")
    assert act(scene(words, task=look, steps=(sighting, taken))) == "go to sidetable 2"
    lamp = Step(action="go to sidetable 2", observation="On the sidetable 2, you see a desklamp 1.")
    assert act(scene(words, task=look, steps=(sighting, taken, lamp))) == "use desklamp 1"


def test_appliance_and_destination_follow_the_advice() -> None:
    words = "Clean it in the sinkbasin 1, then put it in desk 2."
    steps = [
        Step(action="go to shelf 3", observation="On the shelf 3, you see a mug 1."),
        Step(action="take mug 1 from shelf 3", observation="You pick up the mug 1 from the shelf 3."),
        Step(action="go to sinkbasin 1", observation="On the sinkbasin 1, you see nothing."),
    ]
    assert act(scene(words, steps=tuple(steps[:2]))) == "go to sinkbasin 1"
    assert act(scene(words, steps=tuple(steps))) == "clean mug 1 with sinkbasin 1"
    steps.append(Step(action="clean mug 1 with sinkbasin 1", observation="You clean the mug 1 using the sinkbasin 1."))
    assert act(scene(words, steps=tuple(steps))) == "go to desk 2"
    assert act(scene("Put it in shelf 1.", steps=tuple(steps))) == "go to desk 1"
    assert act(scene("Put the plate in desk 2.", steps=tuple(steps))) == "go to desk 1"


def test_the_latest_reflection_wins() -> None:
    assert searched("Look in drawer 5.", "Look in shelf 4.", times=1) == ["shelf 4"]
    assert searched("The mug 1 is in drawer 5.", "Look in shelf 4.", times=2) == ["drawer 5", "shelf 4"]
    assert searched("The mug 1 is in drawer 5.", "Drawer 5 is empty.", times=len(ORDER))[-1] == "drawer 5"
    assert searched(f"Avoid {LAST}.", f"Look in {LAST}.", times=1) == [LAST]


def test_places_that_share_a_spot_are_used_without_walking() -> None:
    first, second = "drawer 1", "drawer 2"
    words = "Look in drawer 1 and drawer 2."
    here = Step(action=f"go to {first}", observation=f"On the {first}, you see nothing.")
    refused = Step(action=f"go to {second}", observation="Nothing happens.")
    shut = Step(action=f"open {second}", observation="Nothing happens.")
    moment = scene(words, steps=(here,))
    assert act(moment) == f"go to {second}"
    assert act(moment.model_copy(update={"choices": (f"open {second}", "look")})) == f"open {second}"
    assert act(scene(words, steps=(here, refused))) == f"open {second}"
    assert act(scene(words, steps=(here, refused, shut))) == f"examine {second}"


@pytest.mark.parametrize("opening", ["What is the capital of France?", "you see a cat.\nYour task is to: pet it"])
def test_in_another_environment_it_only_looks(opening: str) -> None:
    assert act(Scene(task=TASK, opening=opening, steps=(), memory=Memory())) == "look"


# ---- generated games, played for real


def played(
    environment: AlfworldEnvironment, task: Task, actions: int, *advice: str, grammar: compact.Grammar = "move"
) -> tuple[bool, Scene]:
    answer = environment.reset(task)
    now = Scene(task=task, opening=answer.observation, steps=(), memory=Memory(reflections=advice))
    while not answer.over and len(now.steps) < actions:
        action = act(now.model_copy(update={"choices": answer.choices}), grammar)
        answer = environment.step(action)
        now = now.model_copy(update={"steps": (*now.steps, Step(action=action, observation=answer.observation))})
    return answer.success, now


def generated(grammar: str, number: int) -> tuple[AlfworldEnvironment, tuple[Task, ...]]:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    games = taskset(Alfworld.model_validate({"name": "alfworld", "source": "generated", "grammar": grammar}))
    return games.environment(), games.tasks()[:number]


def test_every_type_of_game_is_won_with_time_in_both_grammars_with_the_same_moves() -> None:
    moving, tasks = generated("move", 24)
    putting, same = generated("put", 24)
    assert tasks == same
    for task in tasks:
        won, moves = played(moving, task, 40)
        won_too, puts = played(putting, task, 40, grammar="put")
        assert won, task.id
        assert won_too, task.id
        assert [step.action for step in moves.steps] == [compact.command(step.action) for step in puts.steps]


def test_with_few_actions_it_fails_repeatedly_and_wins_if_advised_where_things_are() -> None:
    environment, tasks = generated("move", 48)
    wins, failures = 0, 0
    for task in tasks:
        won, first = played(environment, task, 12)
        if won:
            continue
        failures += 1
        assert played(environment, task, 12) == (False, first)
        _, whole = played(environment, task, 40)
        seen = read_steps(whole.steps).first_seen
        words = " ".join(f"The {thing} is in {place}." for thing, place in seen.items())
        wins += played(environment, task, 12, words)[0]
    assert 0.4 < failures / len(tasks) < 0.85
    assert wins / failures > 0.85
