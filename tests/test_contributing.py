"""The environment that CONTRIBUTING shows is installed as its readers would install it, and played by every command."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.store import Store
from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import ROOT, facts_of

FILES = ("pyproject.toml", "guessing.py", "guessing.yaml", "guessing-prompts.yaml", "test_guessing.py")
SECTION = (ROOT / "CONTRIBUTING.md").read_text().partition("## Adding an environment")[2]
BLOCKS = re.findall(r"^```\w+\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
ANSWER = re.compile(r"Action \d+: guess (\d+)\nObservation \d+: (Higher|Lower)")
NOTE = re.compile(r"- It is from (\d+) to (\d+)\.")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files as a reader would save them, and `site`, a folder where their wheel is unpacked as pip does it."""
    folder = tmp_path_factory.mktemp("guessing")
    for name, text in zip(FILES, BLOCKS, strict=True):
        (folder / name).write_text(text)
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"]
    subprocess.run(build, cwd=folder, check=True, capture_output=True)
    (wheel,) = folder.glob("dist/*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    # What runs must be what was installed.
    (folder / "guessing.py").unlink()
    return folder


def run(project: Path, *words: str, actions: str = "") -> subprocess.CompletedProcess[str]:
    """`python -m WORDS` beside the page, with the package installed. The rooms are those of this checkout."""
    environment = os.environ | {"PYTHONPATH": f"{project / 'site'}{os.pathsep}{ROOT}", "no_proxy": "127.0.0.1"}
    command = [sys.executable, "-m", *words]
    return subprocess.run(
        command, cwd=project, env=environment, input=actions, capture_output=True, text=True, check=False
    )


def halve(body: Body) -> str:
    """A careful actor that guesses the middle of what is left, and a reflector that says what is left."""
    prompt = prompt_of(body)
    attempt = prompt.rpartition("Find a number from 1 to 100.")[2]
    note = NOTE.search(prompt)
    low, high = (int(note[1]), int(note[2])) if note else (1, 100)
    for guess, answer in ANSWER.findall(attempt):
        low, high = (max(low, int(guess) + 1), high) if answer == "Higher" else (low, min(high, int(guess) - 1))
    if thought := re.search(r"Thought (\d+):$", prompt):
        return f" In the middle.\nAction {thought[1]}: guess {(low + high) // 2}"
    return f"It is from {low} to {high}."


@pytest.fixture
def models() -> Iterator[Endpoint]:
    with Endpoint(halve) as server:
        yield server


def addresses(models: Endpoint) -> tuple[str, ...]:
    return tuple(f"{role}.endpoint.base_url={models.url}" for role in ("actor", "reflector"))


def test_the_example_is_complete_and_short() -> None:
    assert sum(block.count("\n") for block in BLOCKS) < 100
    assert all(f"`{name}`" in SECTION for name in FILES)


def test_it_is_played_from_the_command_line(project: Path) -> None:
    listed = run(project, "retroformer", "play", "guessing.yaml", "--list", "environment.split=held_out")
    assert listed.stdout.split() == [f"held_out/{number}" for number in range(100)], listed.stderr
    play = ("retroformer", "play", "guessing.yaml", "--task", "train/7", "--jsonl", "environment.largest=2")
    played = run(project, *play, actions="?\nguess 1\nguess 2\n")
    lines = [json.loads(line) for line in played.stdout.splitlines()]
    assert lines[0]["observation"] == "Find a number from 1 to 2. Say: guess NUMBER"
    assert lines[1]["observation"] == "Say: guess NUMBER"
    assert (lines[-1]["observation"], lines[-1]["terminated"], lines[-1]["return"]) == ("Right.", True, 1.0)


def test_a_misspelt_key_is_told_the_keys_of_the_packages_section(project: Path) -> None:
    refused = run(project, "retroformer", "play", "guessing.yaml", "--list", "environment.larges=3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "environment.larges" in refused.stderr
    assert refused.stderr.rstrip().endswith("Did you mean `largest`?")


def test_advice_is_collected_and_rated_in_worker_processes(project: Path, models: Endpoint) -> None:
    page = ("guessing.yaml", "collect.tasks=6", "collect.candidates=1", "loop.trials=2", *addresses(models))
    collected = run(project, "collect", *page)
    assert collected.returncode == 0, collected.stderr
    with closing(Store(f"sqlite:///{project}/runs/guessing/experience.db", "guessing")) as store:
        found = facts_of(store, "collect")
    first = {key.task_id: one for key, one in found.trajectories.items() if key.trial == 0}
    retries = {key.task_id: one for key, one in found.trajectories.items() if key.trial == 1}
    assert set(first) == {f"train/{number}" for number in range(6)}
    # Four guesses find 15 of 100 numbers; what is left of the others is found by four more.
    assert set(retries) == {task for task, attempt in first.items() if attempt.episode_return == 0}
    assert retries
    assert all(attempt.episode_return == 1.0 for attempt in retries.values())
    assert len(found.reflections) == len(retries)
    assert found.invalid == 0


def test_the_report_says_that_advice_helps(project: Path, models: Endpoint) -> None:
    arms = "eval.arms={no reflection: {kind: none}, advice: {kind: model, model: reflector}}"
    compared = run(project, "eval", "guessing.yaml", "run=compared", "eval.tasks=3", arms, *addresses(models))
    assert compared.returncode == 0, compared.stderr
    report = (project / "runs" / "compared" / "eval" / "report.md").read_text()
    assert "**advice** solves more tasks than *no reflection*: 1.000" in report


def test_its_own_test_passes(project: Path) -> None:
    tested = run(project, "pytest", "-q", "-p", "no:cacheprovider", "test_guessing.py")
    assert "1 passed" in tested.stdout, tested.stdout + tested.stderr
