"""Robustness tests: a household game answers any input as documented, and quickly."""

import time
from collections import Counter
from typing import Literal

import pytest
from hypothesis import given

from retroformer.environments.alfworld.engine import INVALID
from retroformer.environments.alfworld.environment import THOUGHT_ANSWER, Alfworld
from retroformer.environments.alfworld.generated_games import GeneratedGames
from tests.support.odd_actions import every_episode, odd_actions

pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")

VERBS = ("go to", "take", "open", "use", "inventory", "think", "think:", "put", "move")


def is_thought(action: str) -> bool:
    head, colon, _ = action.partition(":")
    return bool(colon) and head.strip().lower() == "think"


@pytest.mark.parametrize("grammar", ["move", "put"])
def test_odd_actions_have_documented_answers(grammar: Literal["put", "move"]) -> None:
    games = GeneratedGames(Alfworld(source="generated", receptacles=8, grammar=grammar, max_steps=40), 3)
    task, environment = games.tasks()[0], games.environment()
    kinds = Counter[str]()

    @every_episode
    @given(actions=odd_actions(VERBS, valid=environment.reset(task).choices))
    def play(actions: list[str]) -> None:
        before = environment.reset(task)
        for action in actions:
            if before.over:
                break
            seen = environment.step(action)
            if action.strip() in before.choices:
                kinds["done"] += 1
                assert seen.observation not in (INVALID, THOUGHT_ANSWER)
            else:
                kinds["thought" if is_thought(action) else "impossible"] += 1
                assert seen.observation == (THOUGHT_ANSWER if is_thought(action) else INVALID)
                assert seen.choices == before.choices
                assert (seen.reward, seen.terminated, seen.success) == (0.0, False, False)
            before = seen

    play()
    assert set(kinds) == {"done", "thought", "impossible"}


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
