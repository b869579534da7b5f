"""Tests of commands of installed packages: they are listed and run, and a package's mistake is one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.config.imports import plugin_names
from retroformer.errors import MissingInput
from tests.support.runs import ROOT

MODULE = '''
import typer

app = typer.Typer(add_completion=False)


@app.command()
def greet(name: str) -> None:
    """Greet someone."""
    typer.echo(f"Hello, {name}.")
'''


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder in which packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, module: str, text: str, command: str) -> None:
    """Install a package as pip does: write its module, and metadata with its entry point."""
    (site / f"{module}.py").write_text(text)
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[retroformer.commands]\n{command}\n")


def test_a_command_of_an_installed_package_is_listed_and_runs(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "greetings", MODULE, "greet = greetings:app")
    assert "greet" in plugin_names("retroformer.commands")
    main(["--help"])
    assert "Greet someone." in capsys.readouterr().out
    main(["greet", "Ada"])
    assert capsys.readouterr().out == "Hello, Ada.\n"


def test_a_wrong_word_of_such_a_command_is_a_usage_error(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "more_greetings", MODULE, "greet = more_greetings:app")
    with pytest.raises(SystemExit) as ended:
        main(["greet"])
    assert ended.value.code == 2
    assert "Usage: python -m retroformer greet" in capsys.readouterr().err


def test_our_own_commands_take_precedence(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(site, "usurper_of_words", MODULE, "export = usurper_of_words:app")
    main(["export", "--help"])
    assert "Write the cases of a run to a file." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "text", "entry", "sentence"),
    [
        (
            "needy_words",
            "import a_module_that_is_not_there",
            "needy_words:app",
            "The command 'greet' of the package needy_words cannot be imported: No module named "
            "'a_module_that_is_not_there'.",
        ),
        (
            "empty_words",
            "",
            "empty_words:app",
            "The command 'greet' of the package empty_words cannot be imported: module 'empty_words' has no attribute "
            "'app'.",
        ),
        (
            "plain_words",
            "app = print",
            "plain_words:app",
            "The command 'greet' is no typer.Typer app with a command.",
        ),
    ],
)
def test_a_command_that_cannot_be_imported_is_one_sentence(
    site: Path, module: str, text: str, entry: str, sentence: str
) -> None:
    install(site, module, text, f"greet = {entry}")
    with pytest.raises(MissingInput) as refused:
        main(["greet", "Ada"])
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'."),
        ("app = 1 / 0", "ZeroDivisionError: division by zero."),
        ("raise SystemExit(3)", "SystemExit: 3."),
    ],
)
def test_help_lists_the_other_commands_and_says_which_plugin_cannot_be_loaded(
    site: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    module = f"broken_words_{len(text)}"
    install(site, "yet_more_greetings", MODULE, "greet = yet_more_greetings:app")
    install(site, module, text, f"farewell = {module}:app")
    main(["--help"])
    listed, sentence = capsys.readouterr().out.split("\n\n")[-2:]
    assert "Greet someone." in listed
    assert "Write a first experiment" in listed
    assert "farewell" not in listed
    shown = " ".join(sentence.split())
    assert shown.startswith(f"The command 'farewell' of the package {module} cannot be imported: {why[:40]}")


def test_a_package_that_pip_installed_does_not_break_help(tmp_path: Path) -> None:
    """The package's module imports a library that is not installed."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "farewells.py").write_text("import a_module_that_is_not_there\n")
    (project / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['hatchling']\nbuild-backend = 'hatchling.build'\n"
        "[project]\nname = 'farewells'\nversion = '1.0'\n"
        "[project.entry-points.'retroformer.commands']\nfarewell = 'farewells:app'\n"
    )
    target = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(project)], check=True)
    environment = os.environ | {"PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "retroformer", "--help"], capture_output=True, text=True, env=environment, check=True
    )
    assert "  init " in done.stdout
    assert "the package farewells cannot be imported: No module named" in " ".join(done.stdout.split())
    assert not done.stderr
