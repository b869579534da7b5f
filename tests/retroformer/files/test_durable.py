"""Test that a power cut cannot leave files half-written. The tests do not cut the power: they record the system calls
and pass them through.
"""

import errno
import os
import re
import shutil
import subprocess
import sys
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


PUBLISHER = """
import errno, os, signal, sys
from pathlib import Path
from retroformer.files import durable

folder, fault, number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
unfinished = folder.with_name("unfinished")
calls = 0

def failing(call):
    def counted(*arguments, **options):
        global calls
        calls += 1
        if calls == number and fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if calls == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return call(*arguments, **options)
    return counted

unfinished.mkdir()
(unfinished / "weights").write_text("new")
for name in ("fsync", "rename", "unlink", "rmdir"):
    setattr(os, name, failing(getattr(os, name)))
durable.publish(unfinished, folder)
print("calls", calls)
"""


@pytest.mark.parametrize("fault", ["kill", "disk is full"])
def test_a_fault_at_any_step_of_a_publication_leaves_the_old_or_the_new_folder(tmp_path: Path, fault: str) -> None:
    """Each process meets one real fault at one system call; the next publication goes through."""

    def publish(folder: Path, number: int) -> "subprocess.CompletedProcess[str]":
        shutil.rmtree(folder.with_name("unfinished"), ignore_errors=True)
        command = [sys.executable, "-c", PUBLISHER, str(folder), fault, str(number)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    for number in range(1, 20):
        folder = tmp_path / str(number) / "sft"
        folder.mkdir(parents=True)
        (folder / "weights").write_text("old")
        if "calls" in publish(folder, number).stdout and fault == "kill":
            break
        if fault != "kill":
            assert (folder / "weights").read_text() in ("old", "new"), "put back without another command"
        durable.put_back(folder)
        assert (folder / "weights").read_text() in ("old", "new"), number
        assert publish(folder, 0).returncode == 0
        assert (folder / "weights").read_text() == "new"
        assert [path.name for path in folder.parent.iterdir()] == ["sft"]
    assert number > 5, "no fault was met"


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    own, folder, unfinished = tmp_path / "own", tmp_path / "sft", tmp_path / "unfinished"
    own.mkdir()
    folder.symlink_to(own)
    for text in ("first", "second"):
        unfinished.mkdir()
        (unfinished / "weights").write_text(text)
        durable.publish(unfinished, folder)
        assert (folder / "weights").read_text() == text
    assert not list(own.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "sft"]
