"""Environments of installed packages: what a package may get wrong is one sentence, and names the package."""

from pathlib import Path

import pytest

from retroformer.config_file import load
from retroformer.environments import section_of, taskset
from retroformer.environments.sections import Alfworld
from retroformer.errors import ConfigError

MODULE = """
from retroformer.environments.sections import EnvironmentSection

class Section(EnvironmentSection):
    name: str = "silent"
    split: str = "all"
    max_steps: int = 1
    depth: int = 3

def taskset(section, seed):
    return (section.depth, seed)
"""


def install(site: Path, package: str, module: str, text: str, names: str) -> None:
    """What pip leaves of a package: its module, and metadata with its entry points."""
    (site / f"{module}.py").write_text(text)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[retroformer.environments]\n{names}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def refusal(folder: Path, name: str) -> str:
    """What a page is told that asks for this environment."""
    (folder / "page.yaml").write_text(f"run: toy\nenvironment: {{name: {name}}}\n")
    with pytest.raises(ConfigError) as refused:
        load(folder / "page.yaml")
    return str(refused.value).partition("\n")[2].strip()


def test_an_installed_environment_is_found_with_its_own_keys(site: Path) -> None:
    install(site, "silent-worlds", "silent_worlds", MODULE, "silent = silent_worlds")
    section = section_of({"name": "silent", "depth": 5})
    assert (section.name, section.depth) == ("silent", 5)
    made: object = taskset(section, seed=7)
    assert made == (5, 7)
    # As a worker process gets it.
    assert section_of(section.model_dump(mode="json")) == section


def test_a_misspelt_name_is_told_an_installed_one(site: Path) -> None:
    install(site, "silent-worlds", "silent_worlds_2", MODULE, "silent = silent_worlds_2")
    assert "No environment 'slient'. Did you mean `silent`?" in refusal(site, "slient")


def test_our_own_names_come_first(site: Path) -> None:
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
        ("empty", "", "has no `Section(EnvironmentSection)`."),
        ("plain", "class Section: pass", "has no `Section(EnvironmentSection)`."),
        ("idle", MODULE.partition("def taskset")[0], "has no `taskset(section, seed)`."),
    ],
)
def test_a_package_that_is_no_environment_is_named(site: Path, module: str, text: str, fault: str) -> None:
    install(site, f"{module}-worlds", module, text, f"silent = {module}")
    assert refusal(site, "silent") == f"environment: The environment 'silent' of the package {module}-worlds {fault}"


def test_an_entry_point_without_its_module_is_named(site: Path) -> None:
    install(site, "lost-worlds", "found", "", "silent = lost")
    assert "of the package lost-worlds cannot be imported: No module named 'lost'." in refusal(site, "silent")


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    install(site, "one-world", "one_world", MODULE, "silent = one_world")
    install(site, "other-world", "other_world", MODULE, "silent = other_world")
    told = "The packages one-world and other-world both have an environment 'silent': uninstall one of them."
    assert refusal(site, "silent") == f"environment: {told}"
