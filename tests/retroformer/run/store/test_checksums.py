"""Test that a fact that was changed behind the store's back is noticed, and left out of a recovered store."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from retroformer.__main__ import main
from retroformer.config.file import load
from retroformer.errors import StoreError
from retroformer.method.records import Key, Usage
from retroformer.run.store import Store, open_store
from retroformer.run.store.damage import recover
from tests.support.characters import CAPITAL, PRICE, advice, attempt_at
from tests.support.facts import add_invalid, add_trajectory
from tests.support.runs import HOUSEHOLD, ROOT, write_config

CHANGES = {
    "return": "UPDATE trajectories SET episode_return = 1.0",
    "outcome": "UPDATE trajectories SET outcome = 'success'",
    "task": "UPDATE trajectories SET task_id = 'another'",
    "record": "UPDATE trajectories SET record = replace(record, 'capital', 'Capital')",
    "tokens": "UPDATE trajectories SET prompt_tokens = prompt_tokens + 1",
    "time": "UPDATE reflections SET stored_at = '2001-01-01T00:00:00+00:00'",
    "candidate": "UPDATE reflections SET previous_candidate = 1",
    "cause": "UPDATE invalids SET cause = 'no cause'",
    "conditions of an arm": "UPDATE arms SET conditions_sha256 = '%064d'" % 1,  # noqa: UP031, since SQL has braces
    "conditions": "UPDATE condition_records SET record = '{}'",
    "account": "UPDATE accounts SET calls = calls - 1",
    "account that is missing": "DELETE FROM accounts WHERE arm = 'baseline'",
}


def fill(url: str) -> None:
    with closing(Store(url, "riddles")) as store:
        store.declare("collect", {"seed": 0})
        key = Key(arm="collect", task_id=CAPITAL.id)
        add_trajectory(store, key, attempt_at())
        store.add_reflection(key.model_copy(update={"trial": 1}), 0, advice("Say Paris."))
        add_invalid(store, key, "It was spoiled.", PRICE)
        add_invalid(store, key.model_copy(update={"arm": "baseline"}), "It was spoiled.", Usage(calls=1))


def change(url: str, statement: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        assert connection.exec_driver_sql(statement).rowcount > 0
    engine.dispose()


def test_whole_facts_pass(url: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    fill(url)
    with closing(Store(url, "riddles")) as store:
        store.check()


@pytest.mark.parametrize("statement", CHANGES.values(), ids=CHANGES.keys())
def test_each_changed_column_is_noticed(url: str, tmp_path: Path, statement: str) -> None:
    (tmp_path / "run").mkdir()
    fill(url)
    change(url, statement)
    with closing(Store(url, "riddles")) as store, pytest.raises(StoreError, match=r"is damaged \(.*recover EXPERIMENT"):
        store.check()


def test_facts_of_other_experiments_are_not_asked(url: str, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    fill(url)
    change(url, CHANGES["return"])
    with closing(Store(url, "others")) as store:
        store.check()


COMMANDS = ("collect", "collect warm", "train warm", "train sft", "train reward", "train dpo", "eval", "export")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_decides_refuses_a_changed_fact(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_config(tmp_path, "http://127.0.0.1:1/v1", HOUSEHOLD | {"collect": {"written": 2}})
    with closing(open_store(load(config))) as store:
        add_trajectory(store, Key(arm="collect", task_id=CAPITAL.id), attempt_at())
    change("sqlite:///runs/toy/experience.db", CHANGES["return"])
    with pytest.raises(StoreError, match=r"is damaged \(the row of arm 'collect'"):
        main([*command.split(), str(config), *(["out.jsonl"] if command == "export" else [])])


def test_a_copy_of_a_store_in_use_is_made_as_the_guarantees_say(tmp_path: Path) -> None:
    (statement,) = re.findall(r'"(VACUUM INTO .*?)"', (ROOT / "docs/guarantees.md").read_text())
    url = f"sqlite:///{tmp_path / 'experience.db'}"
    with closing(Store(url, "riddles")) as store:
        add_trajectory(store, Key(arm="collect", task_id=CAPITAL.id), attempt_at())
        file = Path(shutil.copy(tmp_path / "experience.db", tmp_path / "file.db"))
        with closing(sqlite3.connect(tmp_path / "experience.db")) as connection:
            connection.execute(statement.replace("copy.db", str(tmp_path / "copy.db")))
    with (
        closing(Store(f"sqlite:///{tmp_path / 'copy.db'}", "riddles")) as copy,
        closing(sqlite3.connect(file)) as alone,
    ):
        copy.check()
        assert len(list(copy.stream_trajectories("collect"))) == 1
        tables = alone.execute("SELECT name FROM sqlite_master WHERE name = 'trajectories'").fetchall()
        assert not tables or not alone.execute("SELECT * FROM trajectories").fetchall()


def test_a_changed_fact_is_not_recovered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'experience.db'}"
    fill(url)
    change(url, CHANGES["return"])
    saved = recover(url)
    assert (saved.trajectories, saved.reflections, saved.lost) == (0, 1, 1)
    with closing(Store(f"sqlite:///{saved.path}", "riddles")) as store:
        store.check()
