"""Test that a bad file of a user is refused in one sentence, quickly and in little memory, whatever it contains."""

import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from retroformer.__main__ import main
from retroformer.config.file import load
from retroformer.environments.alfworld.engine import GameEngine
from retroformer.environments.alfworld.environment import Alfworld
from retroformer.environments.alfworld.generated_games import GeneratedGames
from retroformer.environments.alfworld.python_planner import PythonPlanner
from retroformer.environments.registry import taskset
from retroformer.errors import EnvironmentFailure, RetroformerError
from retroformer.method.prompts import load_pack
from tests.support.refused import refusal

SMALLEST = "run: toy\nenvironment: {name: alfworld, source: generated}\n"
LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{number}: &a{number} [{', '.join([f'*a{number - 1}'] * 10)}]\n" for number in range(1, 10)
)


def listed(folder: Path, config: str) -> str:
    """Return the refusal when a process with little memory lists the tasks of this config."""
    (folder / "config.yaml").write_text(config)
    return refusal("retroformer", "play", "config.yaml", "--list", cwd=folder)


def refused(command: Callable[[], object]) -> str:
    """Return the sentence of the error that this raises."""
    with pytest.raises(RetroformerError) as error:
        command()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to run commands in, with its own cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def listing(config: str, *overrides: str) -> str:
    """Return the same as `listed`, in this process."""
    Path("config.yaml").write_text(config)
    return refused(lambda: main(["play", "config.yaml", "--list", *overrides]))


def test_ten_lines_that_expand_to_ten_billion_values_are_refused_at_once(tmp_path: Path) -> None:
    assert "config.yaml is not a YAML file: more than 100000 values, aliases expanded" in listed(tmp_path, LAUGHS)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (SMALLEST + "eval: &eval {arms: *eval}\n", "config.yaml is not a YAML file: an alias"),
        (SMALLEST + f"train: {'[' * 900}{']' * 900}\n", "config.yaml is not a YAML file: more than 50 levels"),
        ("run: 2001-13-45\n", "config.yaml is not a YAML file: '2001-13-45' is no timestamp (month must be in 1..12)"),
        (SMALLEST + "seed: !!int abc\n", "config.yaml is not a YAML file: 'abc' is no int"),
        (SMALLEST + "#" * (1 << 20), "config.yaml is not a YAML file: config.yaml holds more than 1 MiB"),
        (SMALLEST + 'store: "\\ud800"\n', "half of a surrogate pair is not a character"),
    ],
    ids=["itself", "brackets", "date", "int", "long", "surrogate"],
)
def test_a_config_beyond_the_limits_is_refused(folder: Path, config: str, said: str) -> None:
    assert said in listing(config)


def test_a_config_must_be_a_regular_file_in_utf_8(folder: Path) -> None:
    os.mkfifo("fifo.yaml")
    assert "is a FIFO" in refused(lambda: load(Path("fifo.yaml")))
    Path("latin.yaml").write_bytes(b"run: toy\n# \xe9\n")
    assert "Line 2 of latin.yaml is not UTF-8" in refused(lambda: load(Path("latin.yaml")))
    assert "cannot be opened" in refused(lambda: load(Path("latin.yaml/below")))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (f"train={'[' * 900}{']' * 900}", "has more than 50 levels of nesting"),
        (f"{'a.' * 2000}a=1", "has more than 50 levels: no config has so many."),
        ("train={a: &a [*a]}", "an alias stands inside what it refers to"),
        ("store=\udce9", "is not UTF-8"),
    ],
    ids=["brackets", "dots", "itself", "latin-1"],
)
def test_an_override_beyond_the_limits_is_refused(folder: Path, override: str, said: str) -> None:
    assert said in listing(SMALLEST, override)


def test_an_override_that_is_not_a_yaml_value_is_a_text(folder: Path) -> None:
    Path("config.yaml").write_text(SMALLEST)
    assert load(Path("config.yaml"), ["run=2001-13-45"]).run == "2001-13-45"
    with pytest.raises(RetroformerError, match=r"seed: .*valid integer.* Found '!!int abc'\."):
        load(Path("config.yaml"), ["seed=!!int abc"])


def pack_of(folder: Path, *members: tuple[tarfile.TarInfo, int]) -> None:
    """Write `train.tar.zst` with these members, each as many zeros long as given."""
    with (folder / "train.tar.zst").open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for member, length in members:
            member.size = length
            packed.write(member.tobuf(tarfile.PAX_FORMAT))
            for _ in range(length >> 20):
                packed.write(bytes(1 << 20))
        packed.write(bytes(1024))


def game(name: str = "pick_and_place_simple-Mug-None-Desk-308/trial_1/game.tw-pddl") -> tarfile.TarInfo:
    return tarfile.TarInfo(name)


def header() -> tarfile.TarInfo:
    """Return a member that describes the next one, which tarfile reads into memory as a whole."""
    member = tarfile.TarInfo("pax")
    member.type = tarfile.XHDTYPE
    return member


RELEASED = "run: toy\nenvironment: {name: alfworld, data: .}\n"


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (game(), "/game.tw-pddl' in the pack 'train.tar.zst' is larger than 4 MiB, the limit for a game"),
        (game("a/b/picture.png"), "'train.tar.zst' has a member of more than 64 MiB"),
        (header(), "'train.tar.zst' has a member of more than 64 MiB"),
    ],
    ids=["game", "other", "header"],
)
def test_a_pack_that_decompresses_to_gigabytes_is_refused(tmp_path: Path, member: tarfile.TarInfo, said: str) -> None:
    pack_of(tmp_path, (member, 2200 << 20))
    assert (tmp_path / "train.tar.zst").stat().st_size < 1 << 20
    assert said in listed(tmp_path, RELEASED)


def test_a_link_or_a_fifo_in_a_pack_is_not_a_game(folder: Path) -> None:
    link, fifo = game(), game()
    link.type, link.linkname, fifo.type = tarfile.SYMTYPE, "/etc/passwd", tarfile.FIFOTYPE
    pack_of(folder, (link, 0), (fifo, 0))
    assert "The pack 'train.tar.zst' holds no game: copy it again." in listing(RELEASED)


def test_a_game_file_that_is_damaged_is_refused(folder: Path) -> None:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    task = "pick_and_place_simple-Mug-None-Desk-308/trial_1"
    Path("train", task).mkdir(parents=True)
    file = Path("train", task, "game.tw-pddl")
    Path("config.yaml").write_text(RELEASED)

    def played(content: bytes) -> str:
        file.write_bytes(content)
        return refused(lambda: main(["play", "config.yaml", "--task", task]))

    assert "is broken: The game file is nested deeper than 50 levels" in played(b"[" * 5000 + b"]" * 5000)
    assert "is broken: The game file holds half of a surrogate pair" in played(b'{"grammar": "\\ud800"}')
    texts = {"pddl_domain": 1, "grammar": "", "pddl_problem": "", "walkthrough": [], "solvable": True}
    assert "a text of the game is not a string" in played(json.dumps(texts).encode())
    with file.open("wb") as sparse:
        sparse.truncate(3 << 30)
    said = refusal("retroformer", "play", "config.yaml", "--task", task, cwd=folder)
    assert "is broken: " in said
    assert "game.tw-pddl holds more than 4 MiB" in said


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"intro": "[" * 5000}, "grammar cannot be read"),
        ({"intro": ["no rule"]}, "grammar cannot be read"),
        ({"intro": [{"rhs": "#intro#"}]}, "has a rule that needs itself"),
        (
            {"intro": [{"rhs": "#a0#"}], "a60": [{"rhs": "x"}]}
            | {f"a{number}": [{"rhs": f"#a{number + 1}##a{number + 1}#"}] for number in range(60)},
            "writes more than 100000 symbols at once",
        ),
    ],
    ids=["brackets", "shape", "itself", "doubling"],
)
def test_a_game_with_an_endless_grammar_is_refused(folder: Path, rules: dict[str, Any], said: str) -> None:
    source = GeneratedGames(Alfworld(source="generated", receptacles=6), 0)
    made = source.game(source.tasks()[0])
    text = rules["intro"] if isinstance(rules["intro"], str) else json.dumps(rules)
    with pytest.raises(EnvironmentFailure, match=said):
        GameEngine(PythonPlanner()).start(made._replace(grammar=f'grammar :: """{text}""";'))


HOTPOTQA = "run: toy\nenvironment: {name: hotpotqa, data: ., split: all, context: true}\n"
QUESTION = {"id": "a", "question": "Where?", "answer": "Bergen", "supporting_facts": [["Bergen", 0]]}


def zeros(path: Path) -> None:
    """Write a line that takes no space on the disk and 2 GiB in memory, as bytes and as text."""
    with path.open("wb") as file:
        file.truncate(640 << 20)


def test_a_line_of_gigabytes_is_refused(folder: Path) -> None:
    Path("questions.jsonl").write_text(json.dumps(QUESTION))
    zeros(Path("docstore.jsonl"))
    assert "Line 1 of docstore.jsonl is longer than 1 MiB" in listed(folder, HOTPOTQA)
    zeros(Path("questions.jsonl"))
    assert "Line 1 of questions.jsonl is longer than 1 MiB" in listed(folder, HOTPOTQA)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("[" * 900 + "]" * 900, "Line 2 of questions.jsonl is nested deeper than 50 levels"),
        (json.dumps(QUESTION | {"question": "\ud800"}), "Line 2 of questions.jsonl holds half of a surrogate pair"),
        (json.dumps(QUESTION | {"id": 5}), "Line 2 of questions.jsonl is JSON of another shape (TypeError"),
        (json.dumps(QUESTION | {"id": []}), "Line 2 of questions.jsonl is JSON of another shape (TypeError"),
        ('{"id": "b", "question": "?"}', "Line 2 of questions.jsonl is JSON of another shape (no 'answer')"),
    ],
    ids=["deep", "surrogate", "number", "list", "incomplete"],
)
def test_a_question_that_cannot_be_asked_is_refused_with_its_line(folder: Path, row: str, said: str) -> None:
    Path("questions.jsonl").write_text(f"{json.dumps(QUESTION)}\n{row}\n")
    assert said in listing(HOTPOTQA)


@pytest.mark.parametrize(
    ("splits", "said"),
    [
        ('{"one": [["a"]]}', "splits.json is JSON of another shape ('one' contains something that is not an id)"),
        ("[]", "splits.json is JSON of another shape (list)"),
        ("[" * 5000 + "]" * 5000, "splits.json is nested deeper than 50 levels"),
        ("{", "splits.json is not JSON (Expecting property name enclosed in double quotes at column 2)"),
    ],
)
def test_splits_of_another_shape_are_refused(folder: Path, splits: str, said: str) -> None:
    Path("questions.jsonl").write_text(json.dumps(QUESTION))
    Path("splits.json").write_text(splits)
    assert said in listing(HOTPOTQA)


WEBSHOP = "run: toy\nenvironment: {name: webshop, data: .}\n"


def test_a_file_of_webshop_must_be_regular_and_its_entries_are_bounded(folder: Path) -> None:
    products, attributes = Path("items_shuffle.json"), Path("items_ins_v2.json")
    attributes.write_text("{}")
    os.mkfifo(products)
    assert "items_shuffle.json' is a FIFO" in listing(WEBSHOP)
    products.unlink()
    products.write_text("[" * 900 + "]" * 900)
    assert "items_shuffle.json is damaged (entry 1 is nested deeper than 50 levels)" in listing(WEBSHOP)
    products.write_text('[{"asin": "\\ud800"}]')
    assert "items_shuffle.json is damaged (entry 1 holds half of a surrogate pair" in listing(WEBSHOP)
    with lzma.open("items_ins_v2.json.xz", "wb", preset=0) as bomb:
        bomb.write(b'{"B1": "')
        for _ in range(64):
            bomb.write(b"x" * (1 << 20))
    attributes.unlink()
    assert "items_ins_v2.json.xz is damaged (entry 1 is longer than 16 MiB" in listing(WEBSHOP)


PROGRAMMING = "run: toy\nenvironment: {name: programming, data: ., split: mine.jsonl}\nactor: {kind: programmer}\n"
PROBLEM = {"id": "a", "prompt": "def a():", "entry_point": "a", "tests": ["assert a()"]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (PROBLEM | {"tests": "\ud800"}, "Line 2 of mine.jsonl holds half of a surrogate pair"),
        (
            PROBLEM | {"tests": []},
            "Line 2 of mine.jsonl is JSON of another shape (ValueError: problem 'a' has no tests)",
        ),
        ({"id": "b"}, "Line 2 of mine.jsonl is JSON of another shape (no 'tests')"),
        (PROBLEM | {"prompt": "x" * (1 << 20)}, "Line 2 of mine.jsonl is longer than 1 MiB"),
    ],
    ids=["surrogate", "no tests", "incomplete", "long"],
)
def test_a_problem_that_cannot_be_used_is_refused_with_its_line(
    folder: Path, row: dict[str, object], said: str
) -> None:
    Path("mine.jsonl").write_text(f"{json.dumps(PROBLEM)}\n{json.dumps(row)}\n")
    assert said in listing(PROGRAMMING)


def test_a_prompt_pack_beyond_the_limits_is_refused(folder: Path) -> None:
    def loading(pack: str) -> str:
        Path("mine.yaml").write_text(pack)
        return refused(lambda: load_pack("mine.yaml", "alfworld"))

    assert "mine.yaml is not a prompt pack: more than 100000 values" in loading(LAUGHS)
    assert "mine.yaml is not a prompt pack: more than 50 levels" in loading("[" * 900)
    assert "mine.yaml is not a prompt pack: 'x' is no int" in loading("act: !!int x")
    assert "mine.yaml is not a prompt pack: examples: Field required; remember" in loading("act: a")
    Path("mine.yaml").unlink()
    os.mkfifo("mine.yaml")
    assert "is a FIFO" in refused(lambda: load_pack("mine.yaml", "alfworld"))
    assert "cannot be opened" in refused(lambda: load_pack(f"{'x' * 5000}.yaml", "alfworld"))


def test_actions_are_lines_of_utf_8(tmp_path: Path) -> None:
    pytest.importorskip("fast_downward", reason="the extra `alfworld` is not installed")
    (tmp_path / "config.yaml").write_text(SMALLEST)
    task = taskset(Alfworld(source="generated")).tasks()[0].id
    play = ("retroformer", "play", "config.yaml", "--task", task)
    said = refusal(*play, cwd=tmp_path, stdin=b"look\n\xff\n")
    assert said == "Line 2 of standard input is not UTF-8: send it in that encoding."
