"""Test that the reflector's examples of the prompt pack `reflexion` are purchases that failed as printed."""

from pathlib import Path

import pytest

from retroformer.method.prompts import load_pack
from retroformer.method.records import Ending, Task
from tests.support.replay import advice_after, replayed
from tests.support.webshop import SHARED, index_of_the_data, make

PACK = load_pack("reflexion", "webshop")
GOALS = {"5002": 0.75, "1836": 0.0}
"""Returns of the examples, by goal, in the pack's order."""


@pytest.fixture
def real_data(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(index_of_the_data(tmp_path_factory)))
    return SHARED


@pytest.mark.parametrize(("example", "goal"), list(zip(PACK.reflect_examples, GOALS, strict=True)))
def test_the_reflector_s_examples_are_purchases_that_failed_as_printed(
    real_data: Path, example: str, goal: str
) -> None:
    source = make(real_data, split="train")
    task = Task(id=goal, environment="webshop", split="train")
    assert task in source.tasks(), "an example of a goal that is held out"
    attempt = replayed(example, source.environment(), task)
    assert (attempt.failed, attempt.ending) == (True, Ending.TERMINATED)
    assert attempt.episode_return == pytest.approx(GOALS[goal])
    assert advice_after(PACK, example, attempt)


def test_the_pack_is_the_default_one_with_two_examples_for_the_reflector() -> None:
    default = load_pack("default", "webshop")
    assert PACK.reflect.startswith(default.reflect.partition(" Write ")[0])
    assert PACK.ask.startswith("Reflection, and after it a new plan")
    own = {key: getattr(PACK, key) for key in ("reflect", "reflect_examples", "ask")}
    assert default.model_copy(update=own) == PACK
