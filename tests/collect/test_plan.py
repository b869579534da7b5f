"""`--dry-run` prints the work left and its cost, and does none of it."""

import asyncio
from pathlib import Path

import pytest

from collect.plan import describe_plan
from collect.rate import rate_reflections
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.environments.alfworld.environment import Alfworld
from tests.support.endpoint import Endpoint
from tests.support.runs import facts, open_config, run, write_config

pytestmark = pytest.mark.usefixtures("workplace")


def test_a_plan_is_an_upper_bound_and_makes_no_calls(tmp_path: Path) -> None:
    with Endpoint() as server:
        config = open_config(write_config(tmp_path, server.url), "collect.repeats=2")
        # Six tasks: 6 * (1 + 2 trials * 2 candidates * 2 repeats) rollouts, 6 * 2 * 2 reflections.
        output = describe_plan(config)
        assert server.requests == []
    assert output.startswith("6 tasks of split 'train'; the store holds 0 rollouts and 0 reflections of this round.\n")
    assert "At most 54 more rollouts and 24 more reflections" in output
    assert facts(config).counts == (0, 0)


def test_a_plan_says_whether_its_retries_can_show_ten_points(tmp_path: Path) -> None:
    path = write_config(tmp_path, "http://127.0.0.1:1/v1")
    # 12 retries: the standard error is sqrt(.5 / 12) = .204, and .1 / .204 - 1.96 = -1.47 standard errors are 7%.
    assert describe_plan(open_config(path)).endswith(
        "At most 6 of 6 tasks fail at first, and 12 retries show a difference of 10 points between two reflectors with "
        "a power of 7%; 393 retries have 80%: raise collect.tasks or collect.candidates to compare, not only to train."
    )
    assert "power" not in describe_plan(open_config(path, "collect.candidates=64", "collect.repeats=2"))


def test_assumed_usage_is_priced_and_marked_as_assumed(tmp_path: Path) -> None:
    config = open_config(
        write_config(tmp_path, "http://127.0.0.1:1/v1"),
        *("actor.kind=react", "actor.endpoint.base_url=http://127.0.0.1:1/v1"),
        "actor.endpoint.dollars_per_million=[2.0, 10.0]",
        "collect.candidates=1",
    )
    # 6 * 3 rollouts of 9 calls of 1500 + 60 tokens: 243,000 * 2 / 1e6 + 9,720 * 10 / 1e6 = 0.5832.
    output = describe_plan(config)
    assert "actor     at most 243,000 prompt and 9,720 completion tokens, 0.58 dollars (guessed)" in output
    assert "reflector at most 18,000 prompt and 720 completion tokens, 0.00 dollars (guessed)" in output


def test_measured_usage_replaces_the_assumption_and_finished_work_is_not_planned(tmp_path: Path) -> None:
    with Endpoint() as server:
        path = write_config(tmp_path, server.url)
        asyncio.run(rate_reflections(open_config(path, "collect.tasks=3")))
        requests_before = len(server.requests)
        config = open_config(path)
        output = describe_plan(config)
        assert len(server.requests) == requests_before
    rollouts, reflections = facts(config).counts
    assert f"the store holds {rollouts} rollouts and {reflections} reflections" in output
    left = 24 - reflections
    assert f"At most {30 - rollouts} more rollouts and {left} more reflections" in output
    assert f"reflector at most {7 * left:,} prompt and {3 * left:,} completion tokens, 0.00 dollars (measured" in output


def test_the_command_line_accepts_the_option_and_refuses_unknown_ones(tmp_path: Path) -> None:
    path = str(write_config(tmp_path, "http://127.0.0.1:1/v1"))
    planned = run(tmp_path, "collect", path, "--dry-run")
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.startswith("6 tasks of split 'train'")
    refused = run(tmp_path, "collect", path, "--dryrun")
    assert refused.returncode == 2
    assert refused.stderr.startswith("No such option: --dryrun (Possible options: --dry-run)\nUsage:")


def test_a_plan_creates_no_store(tmp_path: Path) -> None:
    experiment = Experiment(run="planned", environment=Alfworld(name="alfworld", source="generated"))
    assert describe_plan(Config(tmp_path / "config.yaml", (), experiment)).startswith("4000 tasks of split 'train'")
    assert not (tmp_path / "runs").exists()
