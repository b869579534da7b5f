"""The rooms, and what may pass between them."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from retroformer.config_file import load

ROOT = Path(__file__).parents[1]
ROOMS = ("collect", "train", "serve", "eval")


def imported_names(source: str) -> set[str]:
    """Top-level packages that a module imports anywhere, also inside functions."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def trespasses(room: str, source: str) -> set[str]:
    """Rooms that a module of `room` imports although it may not."""
    return imported_names(source) & (set(ROOMS) - {room})


def modules(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found
    return found


@pytest.mark.parametrize("room", [*ROOMS, "retroformer"])
def test_a_room_imports_retroformer_and_itself_only(room: str) -> None:
    found = {str(path.relative_to(ROOT)): trespasses(room, path.read_text()) for path in modules(room)}
    assert not {path: names for path, names in found.items() if names}


def test_the_rule_would_see_a_trespass() -> None:
    assert trespasses("eval", "def f():\n    import train\n") == {"train"}
    assert trespasses("eval", "from collect.rate import ARM\n") == {"collect"}


@pytest.mark.parametrize("room", ["collect", "eval", "retroformer"])
def test_torch_stays_in_train_and_serve(room: str) -> None:
    assert not [path for path in modules(room) if "torch" in imported_names(path.read_text())]


def test_no_module_touches_the_search_path_and_tests_are_no_packages() -> None:
    touching = [path for room in (*ROOMS, "retroformer") for path in modules(room) if "sys.path" in path.read_text()]
    assert not touching
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_importing_costs_no_heavy_library() -> None:
    code = (
        "import sys, retroformer, collect, train, serve, eval, retroformer.records, retroformer.rollout;"
        "heavy = {'torch', 'transformers', 'openai', 'textworld', 'trl', 'fastchat', 'matplotlib', 'datasets'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_the_wheel_ships_retroformer_alone(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"retroformer"}
    assert any(name.startswith("retroformer/packs/") for name in names)
    assert "retroformer/py.typed" in names


def test_every_shipped_page_describes_an_experiment() -> None:
    pages = sorted((ROOT / "configs").rglob("*.yaml"))
    assert len(pages) >= 3
    for page in pages:
        load(page)
        assert page.read_text().startswith("# "), f"{page} does not begin with the command that runs it"


def test_every_module_is_short() -> None:
    long = {
        str(path): lines
        for room in (*ROOMS, "retroformer")
        for path in modules(room)
        if (lines := len(path.read_text().splitlines())) > 350
    }
    assert not long
