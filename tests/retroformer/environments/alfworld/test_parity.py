"""Parity tests with ALFWorld's own engine, in both grammars.

alfworld 0.4 uses `move`. The grammar `put` is that of alfworld 0.3, whose two files of game logic are identified here
by their hashes: a `put` game is the released game with those texts, played by TextWorld's unchanged engine.
"""

import hashlib
import importlib.util
import logging
from pathlib import Path
from typing import Literal

import pytest

from retroformer.environments.alfworld.engine import Game, in_grammar
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld.released_games import ReleasedGames
from retroformer.method.records import Task
from tests.support.alfworld import SHARED, compare, needs_stock_engine, without_help

pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")

needs_data = pytest.mark.skipif(
    not (SHARED / "valid_unseen.tar.zst").exists(), reason="the packs of ALFWorld games are not here"
)
_log = logging.getLogger(__name__)

GRAMMARS: tuple[Literal["put", "move"], ...] = ("put", "move")
SPLITS = {"valid_unseen": 34, "valid_seen": 33, "train": 33}
GAMES_AT_ONCE = 10
SMALL = "pick_and_place_simple-Mug-None-Desk-308/trial_T20190909_210238_431966"

# The files alfred.twl2 and alfred.pddl of alfworld 0.3.5, the last release before `move`.
TEXTS_OF_0_3_5 = "d955e6db384c68ac5797e881b795fd36d788e87a03547f9a87e48fbd7c5b361b"
DOMAIN_WORDS_OF_0_3_5 = "8a8b56e1d06229b564b808ee83c8d8a6c0e16f18ba1e949325e4551b39f3e007"


def game(task: Task, grammar: Literal["put", "move"]) -> Game:
    return ReleasedGames(Alfworld(data=SHARED, split=task.split, grammar=grammar)).game(task)


def hundred_games() -> list[Task]:
    """Return games of all splits, spread evenly over their lists, so that all types of task occur."""
    chosen = []
    for split, number in SPLITS.items():
        tasks = ReleasedGames(Alfworld(data=SHARED, split=split)).tasks()
        chosen += [tasks[index * len(tasks) // number] for index in range(number)]
    return chosen


def test_the_put_grammar_equals_that_of_the_last_alfworld_with_it() -> None:
    package = importlib.util.find_spec("alfworld")
    assert package is not None
    assert package.origin is not None
    logic = Path(package.origin).parent / "data"
    new = Game((logic / "alfred.pddl").read_text(), (logic / "alfred.twl2").read_text(), "", ())
    texts, words = in_grammar(new, "put").grammar, without_help(new.domain).split()
    assert hashlib.sha256(texts.encode()).hexdigest() == TEXTS_OF_0_3_5
    assert hashlib.sha256(" ".join(words).encode()).hexdigest() == DOMAIN_WORDS_OF_0_3_5


@needs_data
@needs_stock_engine
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_released_game_has_the_texts_of_the_stock_engine(grammar: Literal["put", "move"]) -> None:
    task = Task(id=SMALL, environment="alfworld", split="valid_unseen")
    compared = compare(game(task, grammar), seed=task.id)
    assert (compared.won, compared.different) == (True, [])
    assert compared.answers >= 10


@needs_data
@needs_stock_engine
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("first", range(0, 100, GAMES_AT_ONCE))
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_hundred_games_have_the_texts_of_the_stock_engine(grammar: Literal["put", "move"], first: int) -> None:
    answers = 0
    for task in hundred_games()[first : first + GAMES_AT_ONCE]:
        compared = compare(game(task, grammar), seed=task.id)
        assert not compared.different, f"{task.id}: {compared.different[0]}"
        assert compared.won
        answers += compared.answers
    # Shown with --log-cli-level=INFO.
    _log.info("%d answers of %d games in %r are the same", answers, GAMES_AT_ONCE, grammar)
