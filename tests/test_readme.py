"""The README's commands are commands: targets exist, pages load with those overrides, modules can be run."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from retroformer.config_file import load

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^    (?=make |python |alfworld|printf )(.+)$", re.MULTILINE)
COMMANDS = [
    part.strip()
    for line in BLOCK.findall((ROOT / "README.md").read_text())
    for part in re.split(r"&&|\|(?= python)", re.split(r"\s{2,}|\s#\s", line)[0])
    if part.strip().startswith(("make ", "python "))
]


def test_the_readme_shows_commands() -> None:
    assert {"make demo", "make test"} <= set(COMMANDS)
    assert sum(command.startswith("python -m") for command in COMMANDS) >= 8


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("make ")])
def test_every_make_target_exists(command: str) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(command.removeprefix("make ").replace("|", " ").split()) <= set(targets)


@pytest.mark.parametrize("command", [one for one in COMMANDS if one.startswith("python ")])
def test_every_module_and_page_exists(command: str) -> None:
    words = shlex.split(command)
    if words[1] != "-m":
        assert (ROOT / words[1]).is_file()
        return
    assert importlib.util.find_spec(words[2]) is not None
    pages = [word for word in words if word.startswith("configs/")]
    overrides = [word for word in words if re.fullmatch(r"[a-z_.]+=\S+", word)]
    for page in pages:
        load(ROOT / page, overrides)
