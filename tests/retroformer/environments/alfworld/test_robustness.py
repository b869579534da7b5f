"""Robustness tests: a household game answers any input as documented, and quickly."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Literal

import pytest

from retroformer.environments.alfworld.engine import INVALID
from retroformer.environments.alfworld.environment import THOUGHT_ANSWER, Alfworld
from retroformer.environments.alfworld.generated import GeneratedGames
from tests.support.alfworld import alfworld_at_home
from tests.support.malformed import malformed

pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")

VERBS = ("go to", "take", "open", "use", "inventory", "think", "put", "move")


@pytest.fixture(scope="module", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alfworld_at_home(tmp_path_factory.mktemp("alfworld")):
        yield


def is_thought(action: str) -> bool:
    head, colon, _ = action.partition(":")
    return bool(colon) and head.strip().lower() == "think"


def kinds_of_answers(count: int, seed: int, grammar: Literal["put", "move"]) -> Counter[str]:
    """Send `count` odd actions, check that each answer is documented, and return the number of each kind."""
    games = GeneratedGames(Alfworld(source="generated", receptacles=8, grammar=grammar, max_steps=40), seed)
    tasks, environment = games.tasks(), games.environment()
    kinds, episodes = Counter[str](), 0
    before = environment.reset(tasks[0])
    for action in malformed(count, seed, VERBS, valid=before.choices):
        if before.over:
            episodes += 1
            # Few rooms, so that spoilt actions come from the same room.
            before = environment.reset(tasks[episodes % 2 * 6])
        seen = environment.step(action)
        exchange = f"{action[:80]!r} -> {seen.observation[:80]!r}"
        if action.strip() in before.choices:
            kinds["done"] += 1
            assert seen.observation not in (INVALID, THOUGHT_ANSWER), exchange
        else:
            kinds["thought" if is_thought(action) else "impossible"] += 1
            assert seen.observation == (THOUGHT_ANSWER if is_thought(action) else INVALID), exchange
            assert seen.choices == before.choices
            assert (seen.reward, seen.terminated, seen.success) == (0.0, False, False)
        before = seen
    return kinds


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_a_thousand_odd_actions_have_documented_answers(grammar: Literal["put", "move"]) -> None:
    started = time.process_time()
    kinds = kinds_of_answers(1000, seed=3, grammar=grammar)
    assert time.process_time() - started < 10
    assert kinds.total() == 1000
    assert set(kinds) == {"done", "thought", "impossible"}


@pytest.mark.slow
def test_ten_thousand_odd_actions_have_documented_answers() -> None:
    assert kinds_of_answers(10_000, seed=4, grammar="move").total() == 10_000


@pytest.mark.parametrize("unit", ["a", " ", "[", "\x00", "\n", "\U0001f600", "\ud800", "go to ", "think ", "think:"])
def test_a_megabyte_takes_no_longer_than_a_command(unit: str) -> None:
    games = GeneratedGames(Alfworld(source="generated", receptacles=6), 0)
    environment = games.environment()
    opening = environment.reset(games.tasks()[0])
    long = unit * (1_000_000 // len(unit))
    started = time.process_time()
    answers = [environment.step(action) for action in (long, f"go to {long}", f"think{long}", f"{long}think: x")]
    assert time.process_time() - started < 1.0
    assert {answer.observation for answer in answers} <= {INVALID, THOUGHT_ANSWER}
    assert all(answer.choices == opening.choices for answer in answers)
