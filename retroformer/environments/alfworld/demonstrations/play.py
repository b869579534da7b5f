"""Scripted play on train games, with and without advice: data from which an actor learns the games and to read advice.

The demonstrator is the rule-based actor, given the meaning of the advice instead of its words. Every demonstration is a
whole attempt in the compact text; the loss covers only the demonstrator's own actions.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import NamedTuple

from retroformer.environments.alfworld.actors.rule_actor import Turn
from retroformer.environments.alfworld.advice.reader import Advice
from retroformer.environments.alfworld.advice.wording import DEMONSTRATED, Wording
from retroformer.environments.alfworld.demonstrations.lessons import NO_LESSON, Lesson, TeacherView, write_lesson
from retroformer.environments.alfworld.environment import AlfworldEnvironment
from retroformer.environments.alfworld.game.solution import read_solution
from retroformer.environments.alfworld.taskset import AlfworldTaskset
from retroformer.environments.alfworld.text import compact
from retroformer.environments.alfworld.text.reading import read_goal, read_steps
from retroformer.environments.extras import Demonstration
from retroformer.records import Step, Task

SLIPS = 0.03
"""Share of steps with a random action; the model learns the recovery, not the slip."""
SHORTEST_FAILURE = 3
"""Minimum number of steps of the failed attempt that a lesson looks back on."""


def demonstrations(
    games: AlfworldTaskset, count: int, actions: int, seed: int, wording: Wording = DEMONSTRATED
) -> Iterator[Demonstration]:
    """Yield `count` attempts of at most `actions` actions; task types alternate, games are drawn at random.

    Each demonstration has its own order of the room line, and so its own search order.
    """
    random = Random(f"demonstrations {seed}")
    environment = games.environment()
    by_type: dict[str, list[Task]] = {}
    for task in games.tasks():
        by_type.setdefault(task.id.partition("-")[0], []).append(task)
    pools = [by_type[kind] for kind in sorted(by_type)]
    before: TeacherView | None = None
    for number in range(count):
        task = random.choice(pools[number % len(pools)])
        variant = task.model_copy(update={"id": f"{task.id} {number}"})
        game = _after_a_failure(games, environment, task, variant, actions, random)
        game = replace(game, wording=wording)
        lesson = write_lesson(game, before or game, random)
        yield _demonstrate(environment, task, variant, game, lesson, actions, random)
        before = game


def _after_a_failure(
    games: AlfworldTaskset, environment: AlfworldEnvironment, task: Task, variant: Task, actions: int, random: Random
) -> TeacherView:
    """Return what an attempt without advice shows; an attempt that solves the game is cut short."""
    sentence, places = compact.read_opening(environment.reset(task).observation)
    order = compact.room_order(variant, places)
    game = TeacherView(read_goal(sentence), order, read_steps(()), read_solution(games.walkthrough(task)))
    attempt = _attempt(environment, task, game, NO_LESSON.advice, actions, None)
    steps = attempt.steps
    if attempt.solved:
        steps = steps[: random.randint(min(SHORTEST_FAILURE, len(steps) - 1), len(steps) - 1)]
    return replace(game, room=read_steps(steps))


def _demonstrate(
    environment: AlfworldEnvironment,
    task: Task,
    variant: Task,
    game: TeacherView,
    lesson: Lesson,
    actions: int,
    random: Random,
) -> Demonstration:
    attempt = _attempt(environment, task, game, lesson.advice, actions, random)
    between = compact.header(variant, attempt.opening, lesson.texts)
    pieces = list[tuple[str, bool]]()
    for number, step in enumerate(attempt.steps):
        pieces += [(f"{between}>", False), (f" {step.action}\n", number not in attempt.slips)]
        between = f"{compact.observation(step.action, step.observation)}\n"
    return Demonstration(task.id, lesson.kind, attempt.solved, tuple(pieces))


class _Attempt(NamedTuple):
    opening: str
    steps: tuple[Step, ...]
    solved: bool
    slips: frozenset[int]
    """Steps with a random action."""


def _attempt(
    environment: AlfworldEnvironment, task: Task, game: TeacherView, advice: Advice, actions: int, chance: Random | None
) -> _Attempt:
    seen, steps, slips = environment.reset(task), list[Step](), set[int]()
    opening = seen.observation
    while not seen.over and len(steps) < actions:
        action = Turn(game.goal, game.order, read_steps(steps), advice, seen.choices).action()
        if chance and chance.random() < SLIPS:
            action = f"go to {chance.choice(game.order)}"
            slips.add(len(steps))
        seen = environment.step(action)
        steps.append(Step(action=action, observation=seen.observation))
    return _Attempt(opening, tuple(steps), seen.success, frozenset(slips))
