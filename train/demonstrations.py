"""Scripted play on train games, with and without advice: what an actor imitates to learn the games and to read.

The demonstrator is the rule-based actor, given the meaning of the advice in place of its words. Every demonstration
is a whole attempt in the compact text; only the demonstrator's own actions are to be learnt.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple

from retroformer.actors.advice import Advice
from retroformer.actors.rule import Turn
from retroformer.environments.alfworld import AlfworldTaskset, compact
from retroformer.environments.alfworld.environment import AlfworldEnvironment
from retroformer.environments.alfworld.reading import read_goal, read_steps
from retroformer.environments.alfworld.solution import read_solution
from retroformer.records import Step, Task
from train.dataset import IGNORED
from train.lessons import NO_LESSON, Game, Lesson, write_lesson

SLIPS = 0.03
"""Share of steps at which chance acts instead of the demonstrator; the way back is learnt, the slip is not."""
SHORTEST_FAILURE = 3
"""Steps of the failed attempt that a lesson looks back on, at least."""


class Demonstration(NamedTuple):
    """One attempt as text."""

    task_id: str
    kind: str
    """Of the lesson."""
    solved: bool
    pieces: tuple[tuple[str, bool], ...]
    """The text in pieces, each with whether it is the actor's own."""

    @property
    def text(self) -> str:
        return "".join(piece for piece, _ in self.pieces)


class Transcript(NamedTuple):
    """A demonstration in tokens."""

    ids: list[int]
    labels: list[int]


def demonstrations(games: AlfworldTaskset, count: int, actions: int, seed: int) -> Iterator[Demonstration]:
    """`count` attempts of at most `actions` actions; the types of tasks take turns, the games are drawn.

    The room line of every demonstration has an order of its own, and so the search.
    """
    random = Random(f"demonstrations {seed}")
    environment = games.environment()
    by_type: dict[str, list[Task]] = {}
    for task in games.tasks():
        by_type.setdefault(task.id.partition("-")[0], []).append(task)
    pools = [by_type[kind] for kind in sorted(by_type)]
    before: Game | None = None
    for number in range(count):
        task = random.choice(pools[number % len(pools)])
        told = task.model_copy(update={"id": f"{task.id} {number}"})
        game = _after_a_failure(games, environment, task, told, actions, random)
        lesson = write_lesson(game, before or game, random)
        yield _demonstrate(environment, task, told, game, lesson, actions, random)
        before = game


def transcript(tokenizer: Any, demonstration: Demonstration) -> Transcript:
    """The tokens of the whole text, with labels on those of the actor's own words."""
    encoded = tokenizer(demonstration.text, add_special_tokens=False, return_offsets_mapping=True)
    own = [is_own for piece, is_own in demonstration.pieces for _ in piece]
    labels = [
        token if own[start] else IGNORED
        for token, (start, _) in zip(encoded.input_ids, encoded.offset_mapping, strict=True)
    ]
    return Transcript(list(encoded.input_ids), labels)


def counts(made: Sequence[Demonstration]) -> dict[str, Any]:
    """How many of each kind there are, of how many games, and how many of each kind end solved."""
    return {
        "demonstrations": len(made),
        "games": len({one.task_id for one in made}),
        "kinds": dict(sorted(Counter(one.kind for one in made).items())),
        "solved": dict(sorted(Counter(one.kind for one in made if one.solved).items())),
    }


def _after_a_failure(
    games: AlfworldTaskset, environment: AlfworldEnvironment, task: Task, told: Task, actions: int, random: Random
) -> Game:
    """What is known after an attempt without advice, cut short where that solves the game."""
    sentence, places = compact.read_opening(environment.reset(task).observation)
    order = compact.room_order(told, places)
    game = Game(read_goal(sentence), order, read_solution(games.walkthrough(task)), read_steps(()))
    attempt = _attempt(environment, task, game, NO_LESSON.advice, actions, None)
    steps = attempt.steps
    if attempt.solved:
        steps = steps[: random.randint(min(SHORTEST_FAILURE, len(steps) - 1), len(steps) - 1)]
    return replace(game, seen=read_steps(steps))


def _demonstrate(
    environment: AlfworldEnvironment,
    task: Task,
    told: Task,
    game: Game,
    lesson: Lesson,
    actions: int,
    random: Random,
) -> Demonstration:
    attempt = _attempt(environment, task, game, lesson.advice, actions, random)
    between = compact.header(told, attempt.opening, lesson.texts)
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
    """Steps at which chance acted."""


def _attempt(
    environment: AlfworldEnvironment, task: Task, game: Game, advice: Advice, actions: int, chance: Random | None
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
