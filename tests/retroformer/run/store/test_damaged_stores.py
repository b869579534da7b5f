"""Tests that the readable facts of a damaged store are saved."""

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.__main__ import main
from retroformer.endpoint.secrets.url import sqlite_url
from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.method.records import Key
from retroformer.run.store import Store
from retroformer.run.store.damage import recover
from tests.support.characters import advice, attempt_at, task
from tests.support.facts import add_trajectory


def filled(path: Path, attempts: int = 300) -> None:
    """Make a store with this many attempts and reflections."""
    with closing(Store(f"sqlite:///{path}", "riddles")) as store:
        store.declare("collect", {"seed": 0})
        for number in range(attempts):
            name = f"{number:04}"
            add_trajectory(store, Key(arm="collect", task_id=name), attempt_at(task(name)))
            store.add_reflection(Key(arm="collect", task_id=name, trial=1), 0, advice(f"Say {number}. " * 20))


def damage(path: Path, seed: int) -> None:
    """Overwrite several pages in the middle with noise."""
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    for _ in range(3):
        page = chance.randrange(len(content) // 4096 // 3, len(content) // 4096)
        content[page * 4096 : (page + 1) * 4096] = chance.randbytes(4096)
    path.write_bytes(content)


@pytest.mark.parametrize("seed", range(4))
def test_readable_facts_of_a_damaged_store_are_saved(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "experience.db"
    filled(path)
    damage(path, seed)
    broken = path.read_bytes()
    saved = recover(f"sqlite:///{path}")
    assert path.read_bytes() == broken
    assert 150 <= saved.trajectories <= 300
    assert 0 < saved.lost <= 600 - saved.trajectories - saved.reflections
    with closing(Store(f"sqlite:///{saved.path}", "riddles")) as store:
        assert store.arm_counts()["collect"].attempts == saved.trajectories
        attempts = dict(store.stream_trajectories("collect"))
        assert all(attempt == attempt_at(task(key.task_id)) for key, attempt in attempts.items())
        assert store.arm_counts()["collect"].advice == saved.reflections
        assert store.usage("collect").calls == saved.trajectories + saved.reflections
        assert store.conditions("collect") == {"seed": 0}


DECLARED = {"a": 1}


@pytest.mark.parametrize("filler", [random.Random(1).randbytes, bytes], ids=["noise", "zeros"])
def test_arms_with_facts_stay_bound_for_any_damaged_page(tmp_path: Path, filler: Callable[[int], bytes]) -> None:
    path = tmp_path / "experience.db"
    with closing(Store(f"sqlite:///{path}", "riddles")) as store:
        store.declare("collect", DECLARED)
        for number in range(3):
            name = f"{number:04}"
            add_trajectory(store, Key(arm="collect", task_id=name), attempt_at(task(name)))
            store.add_reflection(Key(arm="collect", task_id=name, trial=1), 0, advice(f"Say {number}. " * 1000))
    whole = path.read_bytes()
    recovered = set[int]()
    for page in range(len(whole) // 4096):
        content = bytearray(whole)
        content[page * 4096 : (page + 1) * 4096] = filler(4096)
        path.write_bytes(content)
        try:
            saved = recover(f"sqlite:///{path}")
        except StoreError:
            continue
        recovered.add(page)
        with closing(Store(f"sqlite:///{saved.path}", "riddles")) as store:
            require_whole_and_bound(store, saved.trajectories, saved.reflections)
        saved.path.unlink()
    assert len(recovered) >= len(whole) // 4096 - 3, "of the pages, only those with the names of the tables are vital"
    assert not files_besides(path)


def files_besides(path: Path) -> set[Path]:
    """List the files in the folder of a store except its own, two of which SQLite makes even for a reader."""
    return set(path.parent.iterdir()) - {path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))}


def require_whole_and_bound(store: Store, trajectories: int, reflections: int) -> None:
    assert store.arms() == ["collect"]
    attempts = dict(store.stream_trajectories("collect"))
    assert all(attempt == attempt_at(task(key.task_id)) for key, attempt in attempts.items())
    assert len(attempts) == trajectories
    advised = list(store.stream_reflections("collect"))
    assert all(stored.reflection == advice(f"Say {int(stored.key.task_id)}. " * 1000) for stored in advised)
    assert len(advised) == reflections
    assert store.usage("collect").calls == trajectories + reflections
    with pytest.raises(ConfigError, match="already holds 'collect' facts made with a="):
        store.declare("collect", {"a": 2})
    new = Key(arm="collect", task_id="new")
    assert store.conditions("collect") in (DECLARED, {}), "their page may be the damaged one"
    if store.conditions("collect") == DECLARED:
        store.declare("collect", DECLARED)
        add_trajectory(store, new, attempt_at(task("new")))


def test_a_missing_table_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "experience.db"
    filled(path, 3)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("drop table arms; drop table invalids; drop table reflections;")
    saved = recover(f"sqlite:///{path}")
    assert (saved.trajectories, saved.reflections) == (3, 0)
    with closing(Store(f"sqlite:///{saved.path}", "riddles")) as store:
        assert store.conditions("collect") == {"seed": 0}
        assert store.usage("collect").calls == 3


@pytest.mark.parametrize("folder", ["a#b", "a?b", "a%41b", "a b"])
def test_a_store_is_recovered_in_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / folder)
    filled(Path("experience.db"), 2)
    for url in ("sqlite:///experience.db", sqlite_url(tmp_path / folder / "experience.db")):
        saved = recover(url)
        assert (saved.trajectories, saved.reflections) == (2, 2)
        assert saved.path.resolve() == tmp_path / folder / "experience.recovered.db"
        saved.path.unlink()
    assert [path.name for path in tmp_path.iterdir()] == [folder]


@pytest.mark.parametrize("url", ["nonsense", "postgresql://somebody:secret@localhost:port/facts"])
def test_an_invalid_address_of_a_store_is_reported(url: str) -> None:
    with pytest.raises(StoreError, match=r"A store is an SQLite file|check its port") as caught:
        recover(url)
    assert "secret" not in str(caught.value)


RECOVER_SLOWLY = """
import sys, threading
from pathlib import Path
from retroformer.run.store.damage import recover
path = Path(sys.argv[1])

def wait_before_the_end(event, arguments):
    if event == "os.rename" and str(arguments[1]).endswith("experience.recovered.db"):
        print("about to finish", flush=True)
        threading.Event().wait()

sys.addaudithook(wait_before_the_end)
recover(f"sqlite:///{path}")
"""


def test_a_recovery_succeeds_after_an_interrupted_one(tmp_path: Path) -> None:
    path = tmp_path / "experience.db"
    filled(path, 3)
    command = [sys.executable, "-c", RECOVER_SLOWLY, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "about to finish\n"
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "experience.recovered.db").exists()
    (leftover,) = files_besides(path)
    for suffix in ("-journal", "-wal", "-shm"):
        leftover.with_name(leftover.name + suffix).write_text("of a process that was killed earlier")
    saved = recover(f"sqlite:///{path}")
    assert saved.trajectories == 3
    assert files_besides(path) == {saved.path}


def test_a_damaged_store_is_one_sentence_that_names_the_recover_command(tmp_path: Path) -> None:
    path = tmp_path / "experience.db"
    filled(path, 20)
    content = bytearray(path.read_bytes())
    content[4096:] = random.Random(0).randbytes(len(content) - 4096)
    path.write_bytes(content)
    with (
        pytest.raises(StoreError, match=r"malformed.*retroformer recover EXPERIMENT.yaml"),
        closing(Store(f"sqlite:///{path}", "riddles")) as store,
    ):
        store.played_tasks("collect")
    with pytest.raises(StoreError, match=r"Nothing in .* can be read"):
        recover(f"sqlite:///{path}")
    path.write_text("Dear diary, " * 400)
    with pytest.raises(StoreError, match=r"Nothing in .* can be read"):
        recover(f"sqlite:///{path}")


def test_the_recover_command_says_to_move_the_log_of_the_damaged_file_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, config = tmp_path / "experience.db", tmp_path / "riddles.yaml"
    config.write_text("run: riddles\nenvironment: {name: alfworld}\n")
    filled(path, 2)
    main(["recover", str(config), f"store=sqlite:///{path}"])
    said = capsys.readouterr().out
    assert said.startswith(
        f"2 trajectories and 2 reflections could be read and are in {path.with_suffix('')}.recovered.db, "
        "and at least 0 facts are lost: move"
    )
    assert "with the -wal and -shm files beside it" in said, "SQLite would write an old log into the new file"


def test_an_unrecoverable_store_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="nothing to recover"):
        recover(f"sqlite:///{tmp_path / 'experience.db'}")
    with pytest.raises(ConfigError, match="backups of your server"):
        recover("postgresql+psycopg://somebody@127.0.0.1:1/postgres")
    filled(tmp_path / "experience.db", 1)
    recover(f"sqlite:///{tmp_path / 'experience.db'}")
    with pytest.raises(StoreError, match="exists already"):
        recover(f"sqlite:///{tmp_path / 'experience.db'}")
