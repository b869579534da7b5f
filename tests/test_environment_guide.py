"""The environment in docs/own-environment.md is installed as a reader would install it, and played by every command."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.run.store import Store
from tests.support.endpoint import Endpoint
from tests.support.guessing import BLOCKS, FILES, SECTION, addresses, halve, save_project
from tests.support.runs import ROOT, facts_of


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the files as a reader would, and unpack their wheel in `site`."""
    folder = tmp_path_factory.mktemp("guessing")
    save_project(folder, folder / "site")
    return folder


def run(project: Path, *words: str, actions: str = "") -> subprocess.CompletedProcess[str]:
    """Run `python -m WORDS` beside the config, with the package installed and the stages of this checkout."""
    environment = os.environ | {"PYTHONPATH": f"{project / 'site'}{os.pathsep}{ROOT}", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=project, env=environment, input=actions, capture_output=True, text=True, check=False
    )


@pytest.fixture
def models() -> Iterator[Endpoint]:
    with Endpoint(halve) as server:
        yield server


def test_the_example_environment_is_complete_and_short() -> None:
    assert sum(block.count("\n") for block in BLOCKS) < 100
    assert all(f"`{name}`" in SECTION for name in FILES)


def test_the_example_environment_is_played_from_the_command_line(project: Path) -> None:
    listed = run(project, "retroformer", "play", "guessing.yaml", "--list", "environment.split=held_out")
    assert listed.stdout.split() == [f"held_out/{number}" for number in range(100)], listed.stderr
    play = ("retroformer", "play", "guessing.yaml", "--task", "train/7", "--jsonl", "environment.largest=2")
    played = run(project, *play, actions="?\nguess 1\nguess 2\n")
    lines = [json.loads(line) for line in played.stdout.splitlines()]
    assert lines[0]["observation"] == "Find a number from 1 to 2. Say: guess NUMBER"
    assert lines[1]["observation"] == "Say: guess NUMBER"
    assert (lines[-1]["observation"], lines[-1]["terminated"], lines[-1]["return"]) == ("Right.", True, 1.0)


def test_a_misspelt_key_is_refused_with_a_suggestion_from_the_packages_section(project: Path) -> None:
    refused = run(project, "retroformer", "play", "guessing.yaml", "--list", "environment.larges=3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "environment.larges" in refused.stderr
    assert refused.stderr.rstrip().endswith("Did you mean `largest`?")


def test_advice_is_collected_and_rated_in_worker_processes(project: Path, models: Endpoint) -> None:
    config = ("guessing.yaml", "collect.tasks=6", "collect.candidates=1", "loop.trials=2", *addresses(models))
    collected = run(project, "collect", *config)
    assert collected.returncode == 0, collected.stderr
    with closing(Store(f"sqlite:///{project}/runs/guessing/experience.db", "guessing")) as store:
        facts = facts_of(store, "collect")
    first = {key.task_id: trajectory for key, trajectory in facts.trajectories.items() if key.trial == 0}
    retries = {key.task_id: trajectory for key, trajectory in facts.trajectories.items() if key.trial == 1}
    assert set(first) == {f"train/{number}" for number in range(6)}
    # Four guesses find 15 of 100 numbers; four more find all others.
    assert set(retries) == {task for task, attempt in first.items() if attempt.episode_return == 0}
    assert retries
    assert all(attempt.episode_return == 1.0 for attempt in retries.values())
    assert len(facts.reflections) == len(retries)
    assert facts.invalid == 0


def test_the_report_says_that_advice_helps(project: Path, models: Endpoint) -> None:
    arms = "eval.arms={no reflection: {kind: none}, advice: {kind: model, model: reflector}}"
    compared = run(project, "eval", "guessing.yaml", "run=compared", "eval.tasks=8", arms, *addresses(models))
    assert compared.returncode == 0, compared.stderr
    report = (project / "runs" / "compared" / "eval" / "report.md").read_text()
    assert re.search(r"\*\*advice\*\* solves .* points more than \*no reflection\*", report)


def test_the_examples_own_test_passes(project: Path) -> None:
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "test_guessing.py")
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
