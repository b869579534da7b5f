"""The environment of docs/own-environment.md, saved and installed as its readers do, and models that play it well."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.support.endpoint import Body, Endpoint, prompt_of
from tests.support.runs import ROOT

FILES = ("pyproject.toml", "guessing.py", "guessing.yaml", "guessing-prompts.yaml", "test_guessing.py")
SECTION = (ROOT / "docs/own-environment.md").read_text()
BLOCKS = re.findall(r"^```\w+\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
_ANSWER = re.compile(r"Action \d+: guess (\d+)\nObservation \d+: (Higher|Lower)")
_NOTE = re.compile(r"- It is from (\d+) to (\d+)\.")


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of the project in `source` in an empty folder, and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def save_project(folder: Path, site: Path) -> None:
    """Save the files in `folder`, and unpack their wheel in `site`, as pip does."""
    for name, text in zip(FILES, BLOCKS, strict=True):
        (folder / name).write_text(text)
    zipfile.ZipFile(build_wheel(folder, folder / "dist")).extractall(site)
    # Only the installed module may be imported.
    (folder / "guessing.py").unlink()


def halve(body: Body) -> str:
    """Reply as an actor that guesses the middle of the remaining numbers, or as a reflector that names them."""
    prompt = prompt_of(body)
    attempt = prompt.rpartition("Find a number from 1 to 100.")[2]
    note = _NOTE.search(prompt)
    low, high = (int(note[1]), int(note[2])) if note else (1, 100)
    for guess, answer in _ANSWER.findall(attempt):
        low, high = (max(low, int(guess) + 1), high) if answer == "Higher" else (low, min(high, int(guess) - 1))
    if thought := re.search(r"Thought (\d+):$", prompt):
        return f" In the middle.\nAction {thought[1]}: guess {(low + high) // 2}"
    return f"It is from {low} to {high}."


def addresses(models: Endpoint) -> tuple[str, ...]:
    """Return overrides that set the endpoint of actor and reflector."""
    return tuple(f"{role}.endpoint.base_url={models.url}" for role in ("actor", "reflector"))
