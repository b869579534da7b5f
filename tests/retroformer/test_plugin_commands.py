"""Tests of commands of installed packages: they are listed and run, and a package's mistake is one sentence."""

from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.errors import MissingInput
from retroformer.plugin_commands import plugin_command, plugin_command_names

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
    assert "greet" in plugin_command_names()
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
    assert "Write the cases of a run to a file, or all its facts to a folder." in capsys.readouterr().out


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
            "The command 'greet' is plain_words:app, which is not a typer.Typer app.",
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


def test_there_is_no_command_that_nobody_installed() -> None:
    assert plugin_command("a-command-of-nobody") is None
