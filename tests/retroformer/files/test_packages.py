"""Packages whose files are used without their dependencies."""

from pathlib import Path
from zipfile import ZipFile

import pytest

from retroformer.errors import MissingInput
from retroformer.files import packages
from retroformer.files.packages import fetch_packages, package_folder


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of wheels that pip takes for the registry; `twogames` is the package that is needed from it."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(packages, "REQUIREMENTS", {"twogames": "two-games==1.0"})
    return folder


def write_wheel(folder: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: two-games\nVersion: 1.0\nRequires-Dist: needs-a-compiler\n"
    with ZipFile(folder / "two_games-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("twogames/__init__.py", "raise ImportError('it is never imported')\n")
        wheel.writestr("twogames/data.txt", "words")
        wheel.writestr("two_games-1.0.dist-info/METADATA", metadata)
        wheel.writestr(
            "two_games-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("two_games-1.0.dist-info/RECORD", "")


def test_a_missing_package_is_fetched_once_without_its_dependencies(shelf: Path) -> None:
    write_wheel(shelf)
    said = list[str]()
    with pytest.raises(MissingInput, match=r"pip install --no-deps two-games==1\.0"):
        package_folder("twogames")
    fetch_packages(said.append)
    assert (package_folder("twogames") / "data.txt").read_text() == "words"
    fetch_packages(said.append)
    assert said == ["Fetching two-games==1.0 from the package registry ..."]
    assert [path.name for path in package_folder("twogames").parent.iterdir()] == ["twogames"]


def test_a_registry_without_the_package_is_one_sentence_and_leaves_nothing(shelf: Path) -> None:
    with pytest.raises(MissingInput, match=r"pip install --no-deps two-games==1\.0.*could not be asked.*No matching"):
        fetch_packages(lambda line: None)
    assert not list((shelf.parent / "cache" / "packages").iterdir())
