"""The helper that lists reachable modules follows every form of import."""

import sys
from pathlib import Path

import pytest

from tests.reachable_modules import reachable_modules


@pytest.mark.parametrize(
    "statement",
    [
        "import household.solution",
        "import household.solution as other",
        "from household.solution import walkthrough",
        "from household import solution",
        "from .solution import walkthrough",
        "from . import solution",
        "def later():\n    from . import solution",
        "from household.between import passed_on",
    ],
)
def test_every_import_statement_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    package(tmp_path, monkeypatch, statement)
    assert "household.solution" in reachable_modules("household.writer")


@pytest.mark.parametrize("statement", ["import importlib", "from importlib import import_module"])
def test_an_import_by_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    package(tmp_path, monkeypatch, statement)
    with pytest.raises(ValueError, match=r"household\.writer imports by name"):
        reachable_modules("household.writer")


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Write a package whose module `writer` has this import statement."""
    (folder / "household").mkdir()
    texts = {"__init__": "", "writer": statement, "solution": "walkthrough = 1", "between": "from . import solution"}
    for name, text in texts.items():
        (folder / "household" / f"{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.split(".")[0] == "household"]:
        monkeypatch.delitem(sys.modules, name)  # `find_spec` imports what is above a module.
