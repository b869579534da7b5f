"""ALFWorld's own engine beside ours, and the released games if they are installed."""

import random
import sys
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from retroformer.environments.alfworld.engine import Game, GameEngine
from retroformer.environments.alfworld.planner import Planner
from retroformer.method.records import Task
from tests.support.data import DATA

SHARED = DATA / "alfworld"

HELP, HELP_TEXTS = "(:action help", "\naction help {"
"""Beginning of the action that alfworld 0.4 added, in the domain and in the grammar."""

_DETOURS = 3
_HARMLESS = ("go to ", "open ", "close ", "examine ", "inventory", "look", "help")

needs_stock_engine = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="TextWorld evaluates names that it puts into locals(), which Python 3.13 no longer allows (PEP 667)",
)


def game_task(task_id: str, split: str = "train") -> Task:
    """Return the task of a game by its id."""
    return Task(id=task_id, environment="alfworld", split=split)


class Answer(NamedTuple):
    """Answer of an engine to one command; the command is None at the start of a game."""

    command: str | None
    feedback: str
    possible: tuple[str, ...]
    won: bool


class Compared(NamedTuple):
    """Result of one game on both engines."""

    answers: int
    won: bool
    different: list[tuple[Answer, Answer]]
    """Pairs of their answer and ours that differ."""


class StockEngine:
    """ALFWorld's own engine, unchanged."""

    def __init__(self, game: Game) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import textworld
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
            from textworld.envs import PddlEnv
        self._environment = AlfredDemangler(PddlEnv(textworld.EnvInfos(won=True, admissible_commands=True)))
        config = {"pddl_domain": game.domain, "grammar": game.grammar, "pddl_problem": game.problem}
        self._environment.load(config)
        self._state = self._environment.reset()

    def do(self, action: str) -> None:
        self._state, _, _ = self._environment.step(action)

    @property
    def feedback(self) -> str:
        return str(self._state.feedback)

    @property
    def commands(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])

    @property
    def won(self) -> bool:
        return bool(self._state["won"])


def without_help(domain: str) -> str:
    """Return the domain of alfworld 0.3, which lacks the last action of 0.4."""
    actions, separator, _ = domain.partition(HELP)
    return f"{actions.rstrip()}\n)\n" if separator else domain


def play(game: Game, seed: str) -> Iterator[Answer]:
    """Yield our answers in a seeded game: harmless commands, an impossible one, a win, and three random commands."""
    engine, chance = GameEngine(Planner()), random.Random(seed)

    def one_of(*beginnings: str) -> str:
        return chance.choice([command for command in engine.commands if command.startswith(beginnings)])

    def answered(command: str) -> Answer:
        return Answer(command, engine.do(command), engine.commands, engine.won)

    yield Answer(None, engine.start(game), engine.commands, engine.won)
    # Nothing is taken before the walkthrough, so that it wins from wherever it begins.
    for _ in range(_DETOURS):
        yield answered(one_of(*_HARMLESS))
    for command in ("fly to the moon 1", *game.walkthrough):
        yield answered(command)
    for _ in range(_DETOURS):
        yield answered(one_of(""))


def compare(game: Game, seed: str) -> Compared:
    """Play a game on both engines, in its own grammar."""
    speaks_put = HELP_TEXTS not in game.grammar
    stock = StockEngine(game._replace(domain=without_help(game.domain)) if speaks_put else game)
    answers, won, different = 0, False, list[tuple[Answer, Answer]]()
    for ours in play(game, seed):
        if ours.command is not None:
            stock.do(ours.command)
        theirs = Answer(ours.command, stock.feedback, stock.commands, stock.won)
        answers, won = answers + 1, won or theirs.won
        if theirs != ours:
            different.append((theirs, ours))
    return Compared(answers, won, different)
