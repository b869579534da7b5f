"""`retroformer eval` killed at random moments ends with the facts and report numbers of an uninterrupted run."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import Store
from tests.support.endpoint import Endpoint
from tests.support.killing import finish, refused, run_and_kill
from tests.support.runs import Facts, facts_of, stored, write_config

ARMS = (FIRST_TRIAL, "eval/no reflection", "eval/remote reflector", "eval/placebo")


def arms_in(folder: Path, run: str) -> dict[str, Facts]:
    """Return the facts of each arm of a run."""
    store = Store(f"sqlite:///{folder / 'runs' / run / 'experience.db'}", run)
    try:
        return {arm: facts_of(store, arm) for arm in ARMS}
    finally:
        store.close()


def numbers_in(folder: Path, run: str) -> str:
    """Return the report without its time and its provenance section."""
    text = (folder / "runs" / run / "eval" / "report.md").read_text()
    text = re.sub("written .* UTC", "", text)
    return text.partition("## Where this comes from")[0].replace(f"# {run}", "# run")


@pytest.mark.slow
def test_a_killed_eval_continues_and_reports_the_same_numbers(tmp_path: Path) -> None:
    chance = random.Random(1)
    with Endpoint() as server:
        config = str(write_config(tmp_path, server.url))
        output = finish(tmp_path, "eval", [config, "run=unbroken"])
        assert output == "report: runs/unbroken/eval/report.html\n"
        price = len(server.requests)
        whole = arms_in(tmp_path, "unbroken")
        total = sum(sum(arm.counts) for arm in whole.values())
        server.requests.clear()
        server.latency_seconds = 0.03

        def made(count: int) -> Callable[[], bool]:
            return lambda: stored(tmp_path / "runs" / "killed" / "experience.db") >= count

        moments = [made(count) for count in sorted(chance.sample(range(1, total), 4))]
        killed = run_and_kill(tmp_path, "eval", [config, "run=killed"], moments)
        finish(tmp_path, "eval", [config, "run=killed"])
        assert killed >= 3
        broken = arms_in(tmp_path, "killed")
        assert {arm: made.counts for arm, made in broken.items()} == {arm: made.counts for arm, made in whole.items()}
        assert all(broken[arm].same_as(whole[arm]) and not broken[arm].invalid for arm in ARMS)
        # Each start sends the probe once more; otherwise only requests in flight are repeated.
        assert len(server.requests) <= price + killed * (1 + 8)
    assert numbers_in(tmp_path, "killed") == numbers_in(tmp_path, "unbroken")


@pytest.mark.slow
def test_a_spent_budget_stops_the_evaluation_and_a_larger_one_continues(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = str(write_config(tmp_path, server.url))
        finish(tmp_path, "eval", [config, "run=unbroken"])
        price = len(server.requests)
        server.requests.clear()
        output = refused(tmp_path, "eval", [config, "run=frugal", "eval.tokens=40", "loop.concurrency=1"])
        assert "The budget of 40 tokens is spent (40). " in output
        assert "raise eval.tokens and run the same command again to go on." in output
        assert len(server.requests) < price
        finish(tmp_path, "eval", [config, "run=frugal", "eval.tokens=100000"])
        assert len(server.requests) <= price + 1  # The second start sends the probe again.
    assert numbers_in(tmp_path, "frugal") == numbers_in(tmp_path, "unbroken")
