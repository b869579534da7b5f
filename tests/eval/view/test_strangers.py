"""A run from a stranger opens without harm, or is refused in one sentence, in the terminal and in the viewer."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from eval.report.files import FILE, read_report
from retroformer.__main__ import main
from retroformer.errors import MissingInput, StoreError
from retroformer.run.stage_metrics import METRICS, read_metrics

ENDLESS = "WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number)"
REFUSED = {
    "a table is a view that never ends": (
        ["ALTER TABLE trajectories RENAME TO hidden", f"CREATE VIEW trajectories AS {ENDLESS} SELECT * FROM number"],
        "trajectories is a view",
    ),
    "a trigger deletes facts when a story is marked": (
        ["CREATE TRIGGER harm AFTER INSERT ON marks BEGIN DELETE FROM trajectories; END"],
        "harm is a trigger",
    ),
    "a virtual table": (["DROP TABLE leases", "CREATE VIRTUAL TABLE leases USING fts5(experiment)"], "virtual table"),
    "a computed column": (
        ["ALTER TABLE invalids ADD COLUMN more AS (replace(hex(zeroblob(9)), '0', 'long'))"],
        "invalids.more is computed",
    ),
    "a return is a word": (["UPDATE trajectories SET episode_return = 'x'"], "trajectories.episode_return holds"),
    "a candidate is a word": (["UPDATE reflections SET previous_candidate = 'x'"], "reflections.previous_candidate"),
    "a cause is no text": (["UPDATE invalids SET cause = x'ff00'"], "invalids.cause holds a value of another type"),
    "usage is a word": (["UPDATE accounts SET dollars = 'much'"], "accounts.dollars holds a value of another type"),
    "a column is missing": (
        ["ALTER TABLE trajectories DROP COLUMN split"],
        "lacks the table .trajectories. or a column of it",
    ),
    "an attempt is no JSON": (["UPDATE trajectories SET record = '['"], "holds a text that is no trajectory"),
    "advice lacks its text": (["UPDATE reflections SET record = '{}'"], r"no reflection \(Field required\)"),
    "a time is none": (["UPDATE reflections SET stored_at = 'noon'"], "holds a text that is no time"),
    "conditions are no JSON": (["UPDATE condition_records SET record = '['"], "holds a text that is no conditions"),
    "an enormous attempt": (["UPDATE trajectories SET record = hex(zeroblob(40000000))"], "longer than 64 MiB"),
}


@pytest.fixture
def stranger(run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return run_folder


def change(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "experience.db")) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


@pytest.mark.parametrize("name", REFUSED)
def test_a_store_that_no_stage_wrote_is_refused_in_one_sentence(name: str, stranger: Path, tmp_path: Path) -> None:
    statements, sentence = REFUSED[name]
    change(stranger, *statements)
    for command in (["show", "--task", "door-1"], ["view", "--export", str(tmp_path / "out.html")]):
        with pytest.raises(StoreError, match=sentence) as caught:
            main([command[0], str(stranger), *command[1:]])
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.html").exists()


def test_a_mark_of_another_verdict_is_refused(stranger: Path) -> None:
    change(stranger, "INSERT INTO marks VALUES (9, 'doors', 'collect', 'door-1', 'owned', '', '2026-01-01')")
    with pytest.raises(StoreError, match="holds a text that is no mark"):
        main(["view", str(stranger), "--export", "out.html"])


def test_views_of_other_names_are_allowed(stranger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(stranger, "CREATE VIEW solved AS SELECT task_id FROM trajectories WHERE outcome = 'success'")
    main(["show", str(stranger)])
    assert "door-1" in capsys.readouterr().out


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def link_to_a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_a_file_outside(path: Path) -> None:
    outside = path.parents[2] / "secret.txt"
    outside.write_text("the secret of someone else")
    path.symlink_to(outside)


@pytest.mark.parametrize("make", [make_fifo, link_to_a_device, link_to_a_file_outside, Path.mkdir])
def test_files_that_are_none_neither_hang_nor_show_what_is_outside(
    make: Callable[[Path], None], stranger: Path, tmp_path: Path
) -> None:
    for name in (f"sft/{METRICS}", f"eval/{FILE}", "ppo/adapter_config.json", "reward/checkpoint"):
        (stranger / name).parent.mkdir(exist_ok=True)
        make(stranger / name)
        if make is link_to_a_file_outside:
            assert (stranger / name).exists()
    (stranger / "loop").symlink_to(stranger)
    (stranger / "outside").symlink_to("/etc")
    main(["view", str(stranger), "--export", str(tmp_path / "out.html")])
    html = (tmp_path / "out.html").read_text()
    assert "Look for a key." in html
    assert "secret" not in html
    assert "outside" not in html


def test_files_beyond_their_limit_are_refused(tmp_path: Path) -> None:
    for name in (METRICS, FILE):
        with (tmp_path / name).open("wb") as file:
            file.truncate(300 << 20)
    with pytest.raises(MissingInput, match="holds more than 256 MiB"):
        read_metrics(tmp_path)
    with pytest.raises(MissingInput, match="holds more than 64 MiB"):
        read_report(tmp_path)
