"""Tests of help: every command explains its inputs and outputs quickly, and a wrong word gets the list of choices."""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.cases.files import write_cases
from retroformer.config.command_line import NEXT
from retroformer.config.file import load
from retroformer.errors import MissingInput
from tests.support.cases import case
from tests.support.commands import CONSOLE, commands

ROOT = Path(__file__).parents[1]
ALL = ", ".join(CONSOLE)
COMMANDS = sorted(commands("retroformer"))
EXAMPLE = re.compile(r"  Example: retroformer (.+?) (configs/\S+\.yaml)(.*)$", re.DOTALL)


def test_all_stages_and_commands_on_runs_are_listed() -> None:
    assert {words[0] for words in COMMANDS} == set(CONSOLE)
    assert {("collect", "rate"), ("collect", "listen"), ("train", "grpo"), ("train", "gguf")} < set(COMMANDS)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words not in {("init",), ("try",)}])
def test_help_says_what_a_command_reads_and_writes_and_gives_an_example(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    main([*words, "--help"])
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: python -m retroformer {' '.join(words)} ")
    assert re.search(r"\bReads\b.*\b[Ww]rites\b", shown.out, re.DOTALL)
    example = EXAMPLE.search(shown.out)
    assert example is not None
    named = [word for word in words if word != "rate"]  # It is the default.
    assert example[1].split()[: len(named)] == named
    load(ROOT / example[2], [word for word in example[3].split() if "=" in word])
    assert not shown.err


@pytest.mark.parametrize(
    ("example", "writes"),
    [("init mine", "agent.py, tasks.jsonl and agent.yaml to FOLDER."), ("try", "the attempts to runs/try.")],
)
def test_a_command_that_needs_no_config_says_what_it_writes(
    example: str, writes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main([example.split()[0], "--help"])
    shown = capsys.readouterr().out
    assert f"Writes {writes}" in " ".join(shown.split())
    assert f"Example: retroformer {example}" in shown
    assert "EXPERIMENT.yaml" not in shown


@pytest.mark.parametrize("command", ["collect --help", "collect warm -h", "train ppo -h", "train plan -h", "serve -h"])
def test_a_stage_is_a_command_of_its_own(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    stage, *words = command.split()
    stage_main: Callable[[list[str]], None] = import_module(f"{stage}.__main__").main
    stage_main(words)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: python -m {stage}")
    assert not shown.err


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("", f"Name a command: {ALL}."),
        ("colect", f"No such command: 'colect'. Choose from {ALL}."),
        ("collect wram x.yaml", "No such command: 'wram'. Choose from rate, warm, listen."),
        ("train stf x.yaml", "No such command: 'stf'. Choose from actor, warm, sft,"),
        ("train merge x.yaml stf", "'stf' is not one of 'actor', 'warm', 'sft',"),
        ("collect x.yaml --dryrun", "Usage: python -m retroformer collect rate [--dry-run] {EXPERIMENT.yaml}"),
        ("collect --dry-run", "Missing argument 'EXPERIMENT.yaml'."),
        ("eval", "Missing argument 'EXPERIMENT.yaml'."),
    ],
)
def test_a_wrong_word_gets_the_list_of_commands(words: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert answer in shown.err
    assert not shown.out


def test_the_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"retroformer {version('retroformer')}\n"


def test_a_config_may_be_called_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").write_text("run: mine\nenvironment: {name: alfworld, source: generated}\n")
    monkeypatch.chdir(tmp_path)
    for words in (["collect", "mine"], ["collect", "--dry-run", "mine"], ["collect", "rate", "mine", "--dry-run"]):
        main([*words, "run=planned", *({"--dry-run"} - {*words})])
    assert not (tmp_path / "runs").exists()


def test_help_imports_no_heavy_library() -> None:
    code = (
        "import sys\nfrom retroformer.__main__ import main\n"
        "for words in ('', 'collect', 'train', 'train sft', 'train plan', 'serve', 'eval', 'promotions', 'play'):\n"
        "    main([*words.split(), '--help'])\n"
        "heavy = {'torch', 'transformers', 'openai', 'pydantic', 'sqlalchemy', 'matplotlib', 'fastchat', 'rich'}\n"
        "sys.stderr.write(str(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == "set()"


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("try", "torch", "serve"),
        ("serve configs/agent.yaml", "uvicorn", "serve"),
        ("train sft configs/agent.yaml", "trl", "train"),
        ("train plan configs/agent.yaml", "torch", "train"),
        ("gepa configs/agent.yaml", "gepa", "gepa"),
    ],
)
def test_a_command_without_its_extra_says_in_one_sentence_which_one_to_install(
    command: str, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(ROOT / word) if word.startswith("configs/") else word for word in command.split()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingInput) as refused:
        main(words)
    assert str(refused.value) == f"{module} is not installed: run `pip install 'retroformer[{extra}]'`."


def test_every_command_that_ends_names_the_next_one() -> None:
    served = {"collect listen", "serve", "monitor", "view", "play", "gateway", "mcp", "pull"}
    told = {"init", "eval"}
    names = {" ".join(words) for words in commands("retroformer")}
    assert names == set(NEXT) - {"collect rate --dry-run"} | served | told
    assert {words.split()[0] for words in NEXT.values()} <= set(CONSOLE)
    for words, command in commands("retroformer").items():
        following = NEXT.get(" ".join(words), "")
        assert set(re.findall(r"{(\w+)}", following)) <= {parameter.name for parameter in command.params}


def test_the_next_command_keeps_config_and_overrides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = str(ROOT / "configs/agent.yaml")
    write_cases("cases.jsonl", [case()])
    main(["import", config, "cases.jsonl", "run=other"], program="retroformer")
    assert capsys.readouterr().out.splitlines()[-1] == f"Next: retroformer train sft {config} run=other"
    main(["import", config, "cases.jsonl", "run=other", "--json"], program="retroformer")
    assert "Next:" not in capsys.readouterr().out
