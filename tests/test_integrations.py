"""Tests of integrations: each is a folder behind an extra, and the core works without it."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "retroformer/integrations"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "gateway": ("gateway", ("multidict",)),
    "gepa": ("gepa", ("gepa",)),
    "inspect_ai": ("inspect", ("inspect_ai",)),
    "mcp": ("mcp", ("mcp",)),
    "openenv": ("openenv", ("websockets",)),
    "otlp": ("otlp", ("opentelemetry", "google.protobuf", "google.rpc")),
    "ray": ("ray", ("ray",)),
    "reasoning_gym": ("reasoning-gym", ("reasoning_gym",)),
    "remote": ("remote", ("fsspec",)),
    "verifiers": ("verifiers", ("verifiers",)),
}
"""Extra of an integration, by its folder, and the third-party modules that only integrations import."""
FOLDERS = sorted(path.name for path in FOLDER.iterdir() if (path / "__init__.py").is_file())
CORE = ("collect", "train", "serve", "eval", "retroformer")


def entry_points() -> dict[str, str]:
    """Return the addresses of all entry points of the project by group and name."""
    return {
        f"{group}/{name}": address
        for group, points in PROJECT["entry-points"].items()
        for name, address in points.items()
    }


@pytest.mark.parametrize("folder", FOLDERS)
def test_an_integration_has_an_extra_and_entry_points(folder: str) -> None:
    assert folder in PACKAGES, "add a row to PACKAGES for the new integration"
    extra = PACKAGES[folder][0]
    assert extra in PROJECT["optional-dependencies"]
    start = f"retroformer.integrations.{folder}"
    assert [address for address in entry_points().values() if address.startswith((f"{start}.", f"{start}:"))] or (
        start in entry_points().values()
    )


@pytest.mark.parametrize("folder", sorted({*PACKAGES} & {*FOLDERS}))
def test_only_the_integration_imports_its_package(folder: str) -> None:
    modules = PACKAGES[folder][1]
    intruders = [
        (str(path.relative_to(ROOT)), name)
        for top in CORE
        for path in (ROOT / top).rglob("*.py")
        if FOLDER not in path.parents
        for name in imported(path)
        if any(f"{name}.".startswith(f"{module}.") for module in modules)
    ]
    assert not intruders


def test_the_core_works_without_the_packages() -> None:
    named = sorted({"otlp", "inspect"} & {extra for folder, (extra, _) in PACKAGES.items() if folder in FOLDERS})
    blocked = sorted({module.partition(".")[0] for _, modules in PACKAGES.values() for module in modules} - {"google"})
    code = (
        f"import sys\nfor name in {blocked}:\n    sys.modules[name] = None\n"
        "import retroformer, retroformer.cases.import_cases, retroformer.coach.reflector\n"
        "import collect.__main__, retroformer.__main__\n"
        "from retroformer.errors import MissingInput\n"
        "from retroformer.config.imports import load_plugin\n"
        f"for name in {named}:\n"
        "    try:\n        load_plugin('retroformer.importers', name, 'format')\n"
        "    except MissingInput as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    for name in named:
        assert f"pip install 'retroformer[{name}]'" in done.stdout


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports anywhere."""
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names
