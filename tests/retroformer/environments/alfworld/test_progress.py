"""Graded returns of household games, on texts written by hand and on attempts at generated and released games."""

from collections.abc import Iterator, Sequence

import pytest

from retroformer.environments.alfworld import AlfworldTaskset, taskset
from retroformer.environments.alfworld.attempt_reader import share_of_subgoals
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.errors import ConfigError
from retroformer.method.records import Ending, Outcome, Step, Task, Trajectory
from tests.support.data import DATA, needs_data

OPENING = "You are in the middle of a room. Looking quickly around you, you see {places}.\n\nYour task is to: {task}."
PLACES = "a cabinet 1, a countertop 1, a fridge 1, a shelf 1, and a desk 1"


def attempt(task: str, *steps: tuple[str, str], outcome: Outcome = Outcome.FAILURE) -> Trajectory:
    return Trajectory(
        task=Task(id="game", environment="alfworld", split="train"),
        opening=OPENING.format(places=PLACES, task=task),
        steps=tuple(Step(action=action, observation=answer) for action, answer in steps),
        outcome=outcome,
        ending=Ending.SOLVED if outcome is Outcome.SUCCESS else Ending.STEP_LIMIT,
    )


GO = ("go to countertop 1", "On the countertop 1, you see a mug 1, and a mug 2.")
TAKE = ("take mug 1 from countertop 1", "You pick up the mug 1 from the countertop 1.")
COOL = ("cool mug 1 with fridge 1", "You cool the mug 1 using the fridge 1.")
PUT = ("put mug 1 in/on shelf 1", "You put the mug 1 in/on the shelf 1.")
MOVE = ("move mug 1 to shelf 1", "You move the mug 1 to the shelf 1.")
TAKE_2 = ("take mug 2 from countertop 1", "You pick up the mug 2 from the countertop 1.")
LIGHT = ("use desklamp 1", "You turn on the desklamp 1.")


@pytest.mark.parametrize(
    ("task", "steps", "expected"),
    [
        ("put a mug in shelf", (), 0.0),
        ("put a mug in shelf", (GO,), 0.0),
        ("put a mug in shelf", (GO, TAKE), 1 / 2),
        ("put a cool mug in shelf", (GO, TAKE), 1 / 3),
        ("put a cool mug in shelf", (GO, TAKE, COOL), 2 / 3),
        # Put without cooling: taken only. Heated instead of cooled: the same.
        ("put a cool mug in shelf", (GO, TAKE, PUT), 1 / 3),
        ("put a hot mug in shelf", (GO, TAKE, COOL, PUT), 1 / 3),
        ("put two mug in shelf", (GO, TAKE), 1 / 4),
        ("put two mug in shelf", (GO, TAKE, PUT), 2 / 4),
        ("put two mug in shelf", (GO, TAKE, MOVE, TAKE_2), 3 / 4),
        # The second mug was on the shelf before: taken and put without the agent.
        ("put two mug in shelf", (("go to shelf 1", "On the shelf 1, you see a mug 2."),), 2 / 4),
        (
            "put two mug in shelf",
            (GO, TAKE, MOVE, ("take mug 1 from shelf 1", "You pick up the mug 1 from the shelf 1.")),
            1 / 4,
        ),
        ("look at mug under the desklamp", (GO, TAKE), 1 / 3),
        ("look at mug under the desklamp", (LIGHT,), 1 / 3),
        ("look at mug under the desklamp", (LIGHT, GO, TAKE), 2 / 3),
        (
            "put a mug in shelf",
            (GO, ("take egg 1 from countertop 1", "You pick up the egg 1 from the countertop 1.")),
            0.0,
        ),
        ("put a mug in shelf", (("take mug 1 from desk 1", "Nothing happens."),), 0.0),
    ],
)
def test_the_share_of_subgoals_is_that_counted_by_hand(
    task: str, steps: Sequence[tuple[str, str]], expected: float
) -> None:
    assert share_of_subgoals(attempt(task, *steps)) == pytest.approx(expected)
    assert share_of_subgoals(attempt(task, *steps, outcome=Outcome.SUCCESS)) == 1.0


def test_an_attempt_without_a_household_goal_is_refused_in_one_sentence() -> None:
    other = attempt("win").model_copy(update={"opening": "What is it?"})
    with pytest.raises(ConfigError, match=r"the stored attempt at 'game' names no goal of ALFWorld's"):
        share_of_subgoals(other)


def prefixes(source: AlfworldTaskset, task: Task) -> Iterator[Trajectory]:
    """Play a game by its solution; yield the attempt after each action."""
    world = source.environment()
    opening, steps = world.reset(task).observation, list[Step]()
    for action in source.walkthrough(task):
        answer = world.step(action)
        steps.append(Step(action=action, observation=answer.observation, reward=answer.reward))
        yield Trajectory(
            task=task,
            opening=opening,
            steps=tuple(steps),
            outcome=Outcome.SUCCESS if answer.success else Outcome.FAILURE,
            ending=Ending.SOLVED if answer.success else Ending.STEP_LIMIT,
        )


def require_progress(source: AlfworldTaskset, tasks: Sequence[Task]) -> None:
    """Check that solutions climb from 0 to 1, and that only their last action reaches 1."""
    for task in tasks:
        shares = [share_of_subgoals(attempt) for attempt in prefixes(source, task)]
        assert shares == sorted(shares), task.id
        assert shares[-1] == 1.0
        assert max(shares[:-1]) < 1.0
        # The action before the last has left one subgoal, or that and the way to it.
        assert len(set(shares)) >= 3 - (shares[0] > 0), (task.id, shares)


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_the_solutions_of_generated_games_reach_one_subgoal_after_another(grammar: str) -> None:
    section = Alfworld.model_validate({"source": "generated", "split": "train", "grammar": grammar})
    source = taskset(section, 0)
    kinds = dict[str, Task]()
    for task in source.tasks():
        kinds.setdefault(task.id.rsplit("/", 1)[-1].split("-")[0], task)
    assert len(kinds) >= 4
    require_progress(source, list(kinds.values()))


@pytest.mark.slow
@needs_data("alfworld/valid_unseen.tar.zst")
@pytest.mark.parametrize("grammar", ["move", "put"])
def test_the_solutions_of_released_games_of_every_kind_do_so_too(grammar: str) -> None:
    section = Alfworld.model_validate({"data": DATA / "alfworld", "split": "valid_unseen", "grammar": grammar})
    source = taskset(section, 0)
    kinds = dict[str, list[Task]]()
    for task in source.tasks():
        kinds.setdefault(task.id.partition("-")[0], []).append(task)
    assert len(kinds) == 6
    require_progress(source, [task for tasks in kinds.values() for task in tasks[:4]])
