"""Oracle advice: right about the game, in plain or unseen words, and enough to win."""

import asyncio
from random import Random

import pytest

from retroformer.environments.alfworld import taskset
from retroformer.environments.alfworld.actors import RuleActor
from retroformer.environments.alfworld.advice_writer import (
    UNSEEN,
    WrittenReflector,
    advice_from_solution,
    oracle_reflector,
    say,
)
from retroformer.environments.alfworld.compact import Grammar
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.method.protocols import Scene
from retroformer.method.records import Author, Ending, Memory, Message, Outcome, Step, Task, Trajectory

TASK = Task(id="mug/1", environment="alfworld", split="train")
CLEAN = (
    "go to shelf 2",
    "take mug 1 from shelf 2",
    "go to sinkbasin 1",
    "clean mug 1 with sinkbasin 1",
    "go to countertop 1",
    "move mug 1 to countertop 1",
)
TWO = (
    "go to desk 1",
    "take pen 2 from desk 1",
    "go to safe 1",
    "open safe 1",
    "move pen 2 to safe 1",
    "go to shelf 1",
    "take pen 1 from shelf 1",
    "go to safe 1",
    "move pen 1 to safe 1",
)
LOOK = ("go to bed 1", "take book 1 from bed 1", "go to desk 1", "use desklamp 1")


def failure(task: str) -> Trajectory:
    opening = f"Looking around you, you see a shelf 2, a sinkbasin 1, and a countertop 1.\n\nYour task is to: {task}."
    return Trajectory(task=TASK, opening=opening, outcome=Outcome.FAILURE, ending=Ending.TOO_MANY_ACTIONS)


def render(trajectory: Trajectory, memory: Memory) -> tuple[Message, ...]:
    return (Message(role="user", content=trajectory.task.id),)


@pytest.mark.parametrize(
    ("task", "walkthrough", "expected"),
    [
        (
            "put a clean mug in countertop",
            CLEAN,
            "The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.",
        ),
        ("put two pen in safe", TWO, "The pen 2 is in desk 1. The pen 1 is in shelf 1. Put it in safe 1."),
        ("look at book under the desklamp", LOOK, "The book 1 is in bed 1. The desklamp 1 is in desk 1."),
    ],
)
def test_oracle_advice_names_what_the_game_needs_and_nothing_else(
    task: str, walkthrough: tuple[str, ...], expected: str
) -> None:
    assert advice_from_solution(failure(task), walkthrough) == expected


def test_a_thing_that_is_taken_twice_is_at_its_first_place() -> None:
    again = (*CLEAN, "take mug 1 from countertop 1", "move mug 1 to countertop 1")
    assert advice_from_solution(failure("put a clean mug in countertop"), again) == advice_from_solution(
        failure("put a clean mug in countertop"), CLEAN
    )


def test_the_reflection_is_signed_and_draws_unseen_sentences_by_task_and_seed() -> None:
    def reflect(reflector: WrittenReflector, seed: int) -> str:
        return asyncio.run(reflector.reflect(failure("put a clean mug in countertop"), Memory(), seed)).text

    plain = oracle_reflector(render, lambda task: CLEAN)
    signed = asyncio.run(plain.reflect(failure("put a clean mug in countertop"), Memory(), 3))
    assert (signed.author, signed.prompt) == (
        Author(endpoint="rule", model="walkthrough"),
        render(failure(""), Memory()),
    )
    assert {reflect(plain, seed) for seed in range(5)} == {signed.text}
    attempt = failure("put a clean mug in countertop")
    texts = [advice_from_solution(attempt, CLEAN, UNSEEN, Random(seed)) for seed in range(20)]
    assert {text.partition(". ")[0] + "." for text in texts} == {
        say((sentence,), thing="mug 1", place="shelf 2") for sentence in UNSEEN.seen
    }
    assert all(text.endswith("Afterwards sinkbasin 1 will clean it. Its final home is countertop 1.") for text in texts)
    assert advice_from_solution(failure(""), CLEAN[:2], UNSEEN) == "Remember that shelf 2 holds the mug 1."


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_a_reader_of_it_wins_every_generated_game_it_can_reach(grammar: Grammar) -> None:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    games = taskset(Alfworld.model_validate({"name": "alfworld", "source": "generated", "grammar": grammar}))
    environment, won = games.environment(), 0
    for task in games.tasks()[:12]:
        answer, steps = environment.reset(task), list[Step]()
        opening = answer.observation
        attempt = Trajectory(task=task, opening=opening, outcome=Outcome.FAILURE, ending=Ending.TOO_MANY_ACTIONS)
        advice = advice_from_solution(attempt, games.walkthrough(task))
        while not answer.over and len(steps) < 12:
            memory = Memory(reflections=(advice,))
            now = Scene(task=task, opening=opening, steps=tuple(steps), memory=memory, choices=answer.choices)
            action = asyncio.run(RuleActor(grammar).act(now)).action
            answer = environment.step(action)
            steps.append(Step(action=action, observation=answer.observation))
        won += answer.success
    assert won >= 11
