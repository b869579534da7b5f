"""Campaigns of `make faults` with the seeds that have shown a violation."""

import pytest

from tests.faults.campaigns import run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        # Evaluations that ended before they were killed were started once more.
        ("SIGKILL while evaluating", 11),
    ],
)
def test_a_seed_that_has_shown_a_violation_shows_none(name: str, seed: int) -> None:
    assert run(name, seed).violations == []
