"""Checkpoints without a manifest, or with a damaged one."""

import json
import logging
from pathlib import Path

import pytest

from retroformer.errors import DamagedFile
from train.integrity.manifest import newest_sound, verify, write_manifest


def checkpoint(folder: Path, number: int) -> Path:
    path = folder / f"update-{number:06d}.pt"
    path.write_bytes(bytes(100))
    return path


def load(path: Path) -> Path:
    verify(path.with_suffix(".json"))
    return path


def test_an_older_checkpoint_with_a_manifest_is_used_and_a_warning_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = (checkpoint(tmp_path, number) for number in (1, 2))
    write_manifest(older.with_suffix(".json"), {older.name: older})
    with caplog.at_level(logging.WARNING):
        assert newest_sound(tmp_path, [older, newest], load) == older
    assert "has no manifest update-000002.json" in caplog.text


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    damaged = checkpoint(tmp_path, 1)
    write_manifest(damaged.with_suffix(".json"), {damaged.name: damaged})
    damaged.write_bytes(bytes(99))
    with pytest.raises(DamagedFile, match=r"^Every checkpoint in .* is damaged .*: restore one from a copy, or delete"):
        newest_sound(tmp_path, [damaged], load)
    damaged.with_suffix(".json").write_text(json.dumps({"files": {}}))
    with pytest.raises(DamagedFile, match=r"its manifest update-000001\.json cannot be read"):
        newest_sound(tmp_path, [damaged], load)
