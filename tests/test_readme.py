"""Tests of the README: its Python runs as printed, as that of the endpoint's page does; its tree shows real files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.config.parts import reflection_renderer
from retroformer.method.records import Ending, Memory, Outcome, Step, Task, Trajectory
from tests.support.endpoint import Endpoint
from tests.support.runs import ROOT
from train.data.inputs import rated

README = (ROOT / "README.md").read_text()
SERVING = (ROOT / "docs/serving.md").read_text()
TREE_LINE = re.compile(r"^    ( *)([a-z_]+(?:/|\.py)) {2,}\S", re.MULTILINE)
SERVED_AT = "http://127.0.0.1:8000/v1"
"""Address at which the README serves the reflector."""


def tree() -> list[Path]:
    """Return the paths in the README's tree; an indented line is inside the last folder that is not indented."""
    paths, folder = [], Path()
    for indent, name in TREE_LINE.findall(README):
        folder = folder if indent else Path(name)
        paths.append(folder / name if indent else folder)
    return paths


def example(page: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return str(code)


def test_the_agent_in_the_readme_prints_what_the_readme_shows_and_leaves_rated_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, output = re.findall(r"^```(?:python)?\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 15
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (output, 0), done.stderr
    monkeypatch.chdir(tmp_path)
    (advice,) = rated(load(ROOT / "configs/agent.yaml"))
    assert f"Advice: {advice.text}\n" in output
    assert advice.rating == 1


def test_the_results_are_those_of_the_page_on_the_ladder() -> None:
    row = re.compile(r"^\| \**([\w ]+\b)[^|]*\| ([\d,]+) (?:\| \.\d{3} )?\| \**(\.\d{3})", re.MULTILINE)
    names = {"none": "no reflection", "SmolLM2 as released": "untrained base"}
    shown = {(names.get(name, name), read, solved) for name, read, solved in row.findall(README)}
    assert len(shown) == 7
    assert shown <= set(row.findall((ROOT / "docs/results/ladder.md").read_text()))


def test_the_example_of_the_endpoint_uses_the_prompt_of_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    code = example(SERVING)
    assert code.count(SERVED_AT) == 1
    with Endpoint(reply=lambda body: "Look in fridge 1.") as server:
        exec(code.replace(SERVED_AT, server.url), {})
    assert capsys.readouterr().out == "Look in fridge 1.\n"
    (request,) = server.requests
    failure = Trajectory(
        task=Task(id="kitchen-1", environment="alfworld", split="mine"),
        opening="Looking around, you see a cabinet 1, a countertop 1, and a fridge 1.\n"
        "Your task is to: put a mug in cabinet.",
        steps=(Step(action="go to countertop 1", observation="On the countertop 1, you see a knife 1."),),
        outcome=Outcome.FAILURE,
        ending=Ending.STEP_LIMIT,
    )
    demo = load(ROOT / "configs/demo.yaml")
    assert request["messages"] == [turn.model_dump() for turn in reflection_renderer(demo)(failure, Memory())]
    assert "Not searched: cabinet 1, fridge 1" in request["messages"][-1]["content"]
    assert request["model"] == "reflector"
    assert request["max_tokens"] == demo.reflector.max_new_tokens
    assert request["temperature"] == demo.eval.temperature


def test_the_tree_shows_existing_files() -> None:
    paths = tree()
    assert {Path("retroformer/method"), Path("train/rl"), Path("configs")} <= set(paths)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_is_short_and_starts_with_its_commands() -> None:
    assert len(README.split()) <= 700
    first_screen = README.splitlines()[:20]
    assert [line.split("  #")[0].strip() for line in first_screen if line.startswith("    ")] == [
        "pip install '.[train,serve]'",
        "retroformer try",
        "make demo",
        "make test",
    ]
