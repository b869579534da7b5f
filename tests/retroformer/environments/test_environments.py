"""Tests of environments from installed packages: a package's mistake gives one sentence that names it."""

from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.registry import section_of, taskset
from retroformer.errors import ConfigError

MODULE = """
from retroformer.environments.section import EnvironmentSection

class Section(EnvironmentSection):
    name: str = "silent"
    split: str = "all"
    max_steps: int = 1
    depth: int = 3

def taskset(section, seed):
    return (section.depth, seed)
"""


def install(site: Path, package: str, module: str, text: str, names: str) -> None:
    """Install a package as pip does: write its module, and metadata with its entry points."""
    (site / f"{module}.py").write_text(text)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[retroformer.environments]\n{names}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def refusal(folder: Path, name: str) -> str:
    """Return the error for a config that names this environment."""
    (folder / "config.yaml").write_text(f"run: toy\nenvironment: {{name: {name}}}\n")
    with pytest.raises(ConfigError) as refused:
        load(folder / "config.yaml")
    return str(refused.value).partition("\n")[2].strip()


def test_an_installed_environment_is_found_with_its_own_keys(site: Path) -> None:
    install(site, "silent-worlds", "silent_worlds", MODULE, "silent = silent_worlds")
    section = section_of({"name": "silent", "depth": 5})
    assert (section.name, section.depth) == ("silent", 5)
    made: object = taskset(section, seed=7)
    assert made == (5, 7)
    # As a worker process gets it.
    assert section_of(section.model_dump(mode="json")) == section


def test_the_error_for_a_misspelt_name_suggests_an_installed_one(site: Path) -> None:
    install(site, "silent-worlds", "silent_worlds_2", MODULE, "silent = silent_worlds_2")
    assert "No environment 'slient'. Did you mean `silent`?" in refusal(site, "slient")


def test_built_in_names_take_precedence(site: Path) -> None:
    install(site, "usurper", "usurper", "raise RuntimeError", "alfworld = usurper")
    assert isinstance(section_of({"name": "alfworld"}), Alfworld)


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        (
            "needy",
            "import a_module_that_is_not_there",
            "cannot be imported: No module named 'a_module_that_is_not_there'.",
        ),
        ("faulty", "1 / 0", "cannot be imported: ZeroDivisionError: division by zero."),
        ("empty", "", "has no `Section(EnvironmentSection)`."),
        ("plain", "class Section: pass", "has no `Section(EnvironmentSection)`."),
        ("idle", MODULE.partition("def taskset")[0], "has no `taskset(section, seed)`."),
    ],
)
def test_an_invalid_environment_package_is_named(site: Path, module: str, text: str, fault: str) -> None:
    install(site, f"{module}-worlds", module, text, f"silent = {module}")
    assert refusal(site, "silent") == f"environment: The environment 'silent' of the package {module}-worlds {fault}"


def test_an_entry_point_without_its_module_is_named(site: Path) -> None:
    install(site, "lost-worlds", "found", "", "silent = lost")
    assert "of the package lost-worlds cannot be imported: No module named 'lost'." in refusal(site, "silent")


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    install(site, "one-world", "one_world", MODULE, "silent = one_world")
    install(site, "other-world", "other_world", MODULE, "silent = other_world")
    message = "The packages one-world and other-world both have an environment 'silent': uninstall one of them."
    assert refusal(site, "silent") == f"environment: {message}"
