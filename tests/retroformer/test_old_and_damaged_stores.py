"""A store of the version before is read, and of a damaged one what is readable is saved."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.rating import ratings
from retroformer.records import Key, Outcome, Usage
from retroformer.store import Store
from retroformer.store.recover import recover
from tests.support.characters import CAPITAL, PRICE, advice, attempt_at, task
from tests.support.postgres import PostgresDatabase

OLD = Path(__file__).parent / "data" / "store-0.1.0.sql"
"""Made by version 0.1.0: two failures of the run `old`, each with two reflections and retries; one invalid attempt."""


def fill(url: str) -> None:
    """Lay the old tables into an empty database."""
    engine = sa.create_engine(url)
    script = OLD.read_text().replace("BEGIN TRANSACTION;", "").replace("COMMIT;", "")
    if engine.dialect.name == "postgresql":
        script = script.replace("id INTEGER NOT NULL", "id SERIAL NOT NULL")
    with engine.begin() as connection:
        for statement in script.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement.replace("%", "%%"))
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("select setval('invalids_id_seq', 1)")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        made = f"sqlite:///{tmp_path / 'old.db'}"
    else:
        database: PostgresDatabase = request.getfixturevalue("postgres")
        made = database.url()
    fill(made)
    return made


@pytest.fixture
def old(url: str) -> Iterator[Store]:
    with closing(Store(url, "old")) as opened:
        yield opened


def test_the_facts_of_an_old_store_are_read_with_their_columns(old: Store) -> None:
    attempts = list(old.stream_trajectories("collect"))
    assert [row[:4] for row in old.attempt_rows("collect")] == [
        (key.task_id, key.trial, key.candidate, key.repeat) for key, _ in attempts
    ]
    assert len(attempts) == 6
    assert all(attempt.outcome is Outcome.FAILURE for _, attempt in attempts)
    assert [rating.rating for rating in ratings(old, "collect")] == [0.0] * 4
    assert old.usage("collect") == Usage(calls=5, prompt_tokens=33, completion_tokens=14)
    assert old.invalid_causes("collect") == ["It was spoiled."]


def test_an_old_store_takes_no_facts_whose_conditions_it_cannot_compare(old: Store) -> None:
    with pytest.raises(ConfigError, match=r"stored by version 0\.1\.0, .*give this experiment another name with run=N"):
        old.declare("collect", {"seed": 0})
    with pytest.raises(ConfigError, match="another name with run=NAME"):
        old.add_trajectory(Key(arm="collect", task_id=CAPITAL.id), attempt_at())


def test_an_old_store_takes_new_runs_and_counts_on(url: str, old: Store) -> None:
    with closing(Store(url, "new")) as new:
        new.declare("collect", {"seed": 0})
        new.add_trajectory(Key(arm="collect", task_id=CAPITAL.id), attempt_at())
        new.add_invalid(Key(arm="collect", task_id=CAPITAL.id), "It was spoiled again.", PRICE)
        assert new.usage("collect") == PRICE + PRICE
    assert len(old.trajectories("collect")) == 6


def test_an_old_store_is_brought_up_once(url: str) -> None:
    for _ in range(2):
        with closing(Store(url, "old")) as opened:
            assert opened.usage("collect").calls == 5


def filled(path: Path, attempts: int = 300) -> None:
    """A store with so many attempts and reflections."""
    with closing(Store(f"sqlite:///{path}", "riddles")) as store:
        store.declare("collect", {"seed": 0})
        for number in range(attempts):
            name = f"{number:04}"
            store.add_trajectory(Key(arm="collect", task_id=name), attempt_at(task(name)))
            store.add_reflection(Key(arm="collect", task_id=name, trial=1), 0, advice(f"Say {number}. " * 20))


def damage(path: Path, seed: int) -> None:
    """Overwrite some pages in the middle with noise."""
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(3):
        page = chance.randrange(len(content) // 4096 // 3, len(content) // 4096)
        content[page * 4096 : (page + 1) * 4096] = chance.randbytes(4096)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_what_is_readable_of_a_damaged_store_is_saved(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "experience.db"
    filled(path)
    damage(path, seed)
    broken = path.read_bytes()
    saved = recover(f"sqlite:///{path}")
    assert path.read_bytes() == broken
    assert 150 <= saved.trajectories <= 300
    with closing(Store(f"sqlite:///{saved.path}", "riddles")) as store:
        assert store.attempt_count("collect") == saved.trajectories
        attempts = store.trajectories("collect")
        assert all(attempt == attempt_at(task(key.task_id)) for key, attempt in attempts.items())
        assert store.advice_count("collect") == saved.reflections
        assert store.usage("collect").calls == saved.trajectories + saved.reflections
        assert store.conditions("collect") == {"seed": 0}


def test_a_damaged_store_is_one_sentence_that_names_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "experience.db"
    filled(path, 20)
    content = bytearray(path.read_bytes())
    content[4096:] = random.Random(0).randbytes(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"malformed.*python -m retroformer recover EXPERIMENT.yaml"):
        Store(f"sqlite:///{path}", "riddles").played_tasks("collect")
    with pytest.raises(StoreError, match=r"Nothing in .* can be read"):
        recover(f"sqlite:///{path}")
    path.write_text("Dear diary, " * 400)
    with pytest.raises(StoreError, match=r"Nothing in .* can be read"):
        recover(f"sqlite:///{path}")


def test_what_cannot_be_recovered_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="nothing to recover"):
        recover(f"sqlite:///{tmp_path / 'experience.db'}")
    with pytest.raises(ConfigError, match="backups of your server"):
        recover("postgresql+psycopg://somebody@127.0.0.1:1/postgres")
    filled(tmp_path / "experience.db", 1)
    recover(f"sqlite:///{tmp_path / 'experience.db'}")
    with pytest.raises(StoreError, match="is there already"):
        recover(f"sqlite:///{tmp_path / 'experience.db'}")
