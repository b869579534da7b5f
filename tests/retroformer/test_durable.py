"""Files that a power cut must not leave half-written. Nobody cuts the power here: the calls to the system are noted,
and pass through.
"""

import errno
import os
from pathlib import Path

import pytest

from retroformer import durable
from retroformer.built_once import build_once
from tests.support.disk import DiskCalls


def test_a_text_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = DiskCalls(monkeypatch)
    path = tmp_path / "metrics.json"
    path.write_text("old")
    durable.write_text(path, "ä new one")
    assert path.read_text(encoding="utf-8") == "ä new one"
    unfinished = tmp_path / ".metrics.json.unfinished"
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


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("old")

    def fail() -> None:
        with durable.replacing(path) as unfinished:
            unfinished.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_folders_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As some network file systems."""
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(number, os.strerror(number))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    durable.write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def test_a_disk_that_refuses_a_files_bytes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
