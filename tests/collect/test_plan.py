"""`--dry-run`: what would be done and what it would cost, without doing any of it."""

import asyncio
from pathlib import Path

import pytest

from collect.plan import describe_plan
from collect.rate import rate_reflections
from retroformer.assembly import Page
from retroformer.config import Experiment
from retroformer.environments.sections import Alfworld
from tests.support.endpoint import Endpoint
from tests.support.runs import facts, open_page, run, write_page


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_plan_is_an_upper_bound_and_calls_nobody(tmp_path: Path) -> None:
    with Endpoint() as server:
        page = open_page(write_page(tmp_path, server.url), "collect.repeats=2")
        # Six tasks: 6 * (1 + 2 trials * 2 candidates * 2 repeats) rollouts, 6 * 2 * 2 reflections.
        said = describe_plan(page)
        assert server.requests == []
    assert said.startswith("6 tasks of split 'train'; the store holds 0 rollouts and 0 reflections of this run.\n")
    assert "At most 54 more rollouts and 24 more reflections" in said
    assert facts(page).counts == (0, 0)


def test_guesses_are_priced_and_called_guesses(tmp_path: Path) -> None:
    page = open_page(
        write_page(tmp_path, "http://127.0.0.1:1/v1"),
        *("actor.kind=react", "actor.endpoint.base_url=http://127.0.0.1:1/v1"),
        "actor.endpoint.dollars_per_million=[2.0, 10.0]",
        "collect.candidates=1",
    )
    # 6 * 3 rollouts of 9 calls of 1500 + 60 tokens: 243,000 * 2 / 1e6 + 9,720 * 10 / 1e6 = 0.5832.
    said = describe_plan(page)
    assert "actor     at most 243,000 prompt and 9,720 completion tokens, 0.58 dollars (guessed)" in said
    assert "reflector at most 18,000 prompt and 720 completion tokens, 0.00 dollars (guessed)" in said


def test_what_was_measured_replaces_the_guess_and_what_is_done_is_not_planned(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_page(tmp_path, server.url)
        asyncio.run(rate_reflections(open_page(path, "collect.tasks=3")))
        asked = len(server.requests)
        page = open_page(path)
        said = describe_plan(page)
        assert len(server.requests) == asked
    rollouts, reflections = facts(page).counts
    assert f"the store holds {rollouts} rollouts and {reflections} reflections" in said
    left = 24 - reflections
    assert f"At most {30 - rollouts} more rollouts and {left} more reflections" in said
    assert f"reflector at most {7 * left:,} prompt and {3 * left:,} completion tokens, 0.00 dollars (measured" in said


def test_the_command_line_knows_it_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    path = str(write_page(tmp_path, "http://127.0.0.1:1/v1"))
    planned = run(tmp_path, "collect", path, "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.startswith("6 tasks of split 'train'")
    refused = run(tmp_path, "collect", path, "--dryrun")
    assert refused.returncode == 1
    assert refused.stderr.startswith("--dryrun is not an option here. Usage:")


def test_a_plan_makes_no_store(tmp_path: Path) -> None:
    experiment = Experiment(run="planned", environment=Alfworld(name="alfworld", source="generated"))
    assert describe_plan(Page(tmp_path / "page.yaml", (), experiment)).startswith("2000 tasks of split 'train'")
    assert not (tmp_path / "runs").exists()
