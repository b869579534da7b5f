"""Tests that a user's function is imported from the folder where the command runs, and its files are listed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retroformer.config.imports import function_of, module_files
from retroformer.errors import ConfigError


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    for name in ("own_rules", "own_package", "own_package.rules"):
        sys.modules.pop(name, None)


def test_a_function_in_the_working_folder_is_imported(tmp_path: Path) -> None:
    (tmp_path / "own_rules.py").write_text("def double(number):\n    return 2 * number\n")
    assert function_of("own_rules:double")(21) == 42
    assert module_files("own_rules:double") == [tmp_path / "own_rules.py"]


def test_all_files_of_a_package_count(tmp_path: Path) -> None:
    (tmp_path / "own_package").mkdir()
    for name in ("__init__.py", "rules.py", "words.py"):
        (tmp_path / "own_package" / name).write_text("def rule():\n    return 1\n")
    assert function_of("own_package.rules:rule")() == 1
    assert [path.name for path in module_files("own_package.rules:rule")] == ["__init__.py", "rules.py", "words.py"]


def test_all_files_of_a_folder_without_init_count(tmp_path: Path) -> None:
    (tmp_path / "own_package" / "words").mkdir(parents=True)
    for name in ("rules.py", "words/short.py"):
        (tmp_path / "own_package" / name).write_text("def rule():\n    return 1\n")
    assert function_of("own_package.rules:rule")() == 1
    assert [path.name for path in module_files("own_package.rules:rule")] == ["rules.py", "short.py"]


@pytest.mark.parametrize("address", ["json", "nowhere_at_all:f", "sys:f", ":f"])
def test_a_module_without_files_has_none(address: str) -> None:
    assert [path for path in module_files(address) if path.parent == Path.cwd()] == []


@pytest.mark.parametrize(
    ("text", "address", "words"),
    [
        ("", "own_rules", "write it as package.module:function"),
        ("", "own_rules:double", "has no attribute 'double'"),
        ("1 / 0", "own_rules:double", "cannot be imported: ZeroDivisionError: division by zero."),
        ("raise SystemExit(0)", "own_rules:double", "cannot be imported: SystemExit: 0."),
        ("double = 2", "own_rules:double", "own_rules:double is a int: name a function."),
    ],
)
def test_a_function_that_is_not_there_is_one_sentence(tmp_path: Path, text: str, address: str, words: str) -> None:
    (tmp_path / "own_rules.py").write_text(text)
    with pytest.raises(ConfigError) as refused:
        function_of(address)
    assert words in str(refused.value)
