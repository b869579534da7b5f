"""Tests of the attempts that led to an attempt."""

from retroformer.method.ancestors import ancestors
from retroformer.method.records import Key
from retroformer.run.store import StoredReflection
from tests.support.characters import CAPITAL, advice, attempt_at


def key(trial: int) -> Key:
    return Key(arm="collect", task_id=CAPITAL.id, trial=trial)


def test_an_imported_chain_may_be_longer_than_the_calls_that_python_allows() -> None:
    trials = range(3, 2000)
    attempts = {key(trial): attempt_at(rewards=(0.0,)) for trial in trials}
    stored = {key(trial): StoredReflection(key(trial), 0, advice(f"Advice {trial}.")) for trial in trials}
    lessons = ancestors(key(1999), attempts, stored)
    assert [lesson.advice for lesson in lessons] == [f"Advice {trial}." for trial in trials[1:]]
