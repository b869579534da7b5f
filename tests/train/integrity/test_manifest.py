"""Checkpoints without a manifest, as earlier versions wrote them."""

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


@pytest.mark.parametrize("manifest_is_empty", [False, True], ids=["of ppo", "of sft"])
def test_checkpoints_of_an_earlier_version_are_not_called_damaged(tmp_path: Path, manifest_is_empty: bool) -> None:
    """Checkpoints of sft had an empty file in place of the manifest."""
    checkpoints = [checkpoint(tmp_path, number) for number in (1, 2)]
    if manifest_is_empty:
        for path in checkpoints:
            path.with_suffix(".json").touch()
    with pytest.raises(DamagedFile) as refusal:
        newest_sound(tmp_path, checkpoints, load)
    said = str(refusal.value)
    assert said == (
        f"No checkpoint in {tmp_path} can be used (update-000002.pt: it has no manifest update-000002.json (earlier "
        "versions wrote none), update-000001.pt: it has no manifest update-000001.json (earlier versions wrote none)): "
        "restore one from a copy with its manifest, finish the stage with the version that wrote them, or delete the "
        f"folder {tmp_path} to begin again, and run the same command."
    )


def test_an_older_checkpoint_with_a_manifest_is_used_and_a_warning_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older, newest = (checkpoint(tmp_path, number) for number in (1, 2))
    write_manifest(older.with_suffix(".json"), {older.name: older})
    with caplog.at_level(logging.WARNING):
        assert newest_sound(tmp_path, [older, newest], load) == older
    assert "has no manifest update-000002.json" in caplog.text
    assert "damaged" not in caplog.text


def test_a_damaged_checkpoint_beside_old_ones_is_called_damaged(tmp_path: Path) -> None:
    damaged = checkpoint(tmp_path, 1)
    write_manifest(damaged.with_suffix(".json"), {damaged.name: damaged})
    damaged.write_bytes(bytes(99))
    with pytest.raises(DamagedFile, match=r"^Every checkpoint in .* is damaged .*: restore one from a copy, or delete"):
        newest_sound(tmp_path, [damaged], load)
    damaged.with_suffix(".json").write_text(json.dumps({"files": {}}))
    with pytest.raises(DamagedFile, match=r"its manifest update-000001\.json cannot be read"):
        newest_sound(tmp_path, [damaged], load)
