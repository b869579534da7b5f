"""Test that a power cut cannot leave files half-written. The tests do not cut the power: they record the system calls
and pass them through.
"""

import errno
import os
import re
import time
from pathlib import Path

import pytest

from retroformer.files import durable
from retroformer.files.cache import build_once
from tests.support.disk import DiskCalls


def test_a_text_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DiskCalls(monkeypatch)
    path = tmp_path / "metrics.json"
    path.write_text("old")
    durable.write_text(path, "ä new one")
    assert path.read_text(encoding="utf-8") == "ä new one"
    unfinished = calls.made[0][1]
    assert unfinished.parent == tmp_path
    assert re.fullmatch(rf"\.metrics\.json\.{os.getpid()}-[0-9a-f]+\.unfinished", unfinished.name)
    assert calls.made == [("sync", unfinished), ("rename", unfinished, path), ("sync", tmp_path)]
    assert list(tmp_path.iterdir()) == [path]


def test_every_file_and_folder_below_is_on_the_disk_before_a_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = tmp_path / "unfinished"
    (unfinished / "ref").mkdir(parents=True)
    for name in ("weights", "ref/weights"):
        (unfinished / name).write_text(name)
    calls = DiskCalls(monkeypatch)
    durable.rename(unfinished, tmp_path / "sft")
    below = {unfinished, unfinished / "weights", unfinished / "ref", unfinished / "ref/weights"}
    assert {call[1] for call in calls.made[:4]} == below
    assert calls.made[4:] == [("rename", unfinished, tmp_path / "sft"), ("sync", tmp_path)]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")

    def fail() -> None:
        with durable.replace_file(path) as unfinished:
            unfinished.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_two_writers_of_one_file_both_finish_and_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    with durable.replace_file(path) as slow:
        slow.write_text("slow")
        durable.write_text(path, "fast")
        assert path.read_text() == "fast"
    assert path.read_text() == "slow"
    assert list(tmp_path.iterdir()) == [path]


def test_leftovers_of_killed_writers_are_removed_and_files_of_running_ones_are_not(tmp_path: Path) -> None:
    path, long_ago = tmp_path / "sft.gguf", time.time() - 2 * durable.ABANDONED_SECONDS
    left, alien = tmp_path / ".sft.gguf.1-00ff.unfinished", tmp_path / ".reward.gguf.1-00ff.unfinished"
    with durable.replace_file(path) as living:
        living.write_text("from a living writer")
        for leftover in (left, alien):
            leftover.write_text("half")
            os.utime(leftover, (long_ago, long_ago))
        with durable.replace_file(path) as unfinished:
            unfinished.write_text("whole")
        assert path.read_text() == "whole"
        assert set(tmp_path.iterdir()) == {path, living, alien}


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Fail as some network file systems do."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    durable.write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_failed_sync_of_a_files_bytes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="Input/output error"):
        durable.write_text(tmp_path / "file", "text")
    assert not list(tmp_path.iterdir())


def test_a_database_that_is_built_once_is_on_the_disk_before_it_counts_as_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, path = DiskCalls(monkeypatch), tmp_path / "shop.db"
    build_once(path, lambda database: database.executescript("CREATE TABLE products (name TEXT)"))
    ((_, scratch, target),) = [call for call in calls.made if call[0] == "rename"]
    assert target == path
    assert scratch in calls.synced_before(scratch, path)
    assert tmp_path in calls.synced_after(scratch, path)
