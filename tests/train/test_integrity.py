"""A full disk is reported as such, and a damaged checkpoint is found by its manifest."""

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.errors import DamagedFile
from train.integrity import newest_sound, verify, write_manifest, writing_to

_FILL = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from retroformer.errors import run_command
from train.integrity import writing_to
def fill(arguments):
    folder, weights = Path(arguments[0]), {"weights": torch.zeros(2**22)}
    with writing_to(folder / "not-there-yet"):
        {"torch": torch.save, "safetensors": save_file}[arguments[1]](weights, folder / "unfinished")
run_command(fill)
"""


@pytest.mark.parametrize("library", ["torch", "safetensors"])
def test_a_full_disk_is_reported_in_one_sentence(tmp_path: Path, library: str) -> None:
    """The disk is a file system of 4 MiB, mounted for this process only."""
    mount = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*mount, f"mount -t tmpfs none {tmp_path}"], capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a small disk")
    script = f"mount -t tmpfs -o size=4m none {tmp_path} && exec {sys.executable} -c '{_FILL}' {tmp_path} {library}"
    done = subprocess.run([*mount, script], capture_output=True, text=True, timeout=300)
    sentence = f"The disk is full ({tmp_path}/not-there-yet): free space and run the same command again.\n"
    assert (done.returncode, done.stderr.splitlines(keepends=True)[-1:]) == (1, [sentence])
    assert "Traceback" not in done.stderr


def test_an_error_on_a_disk_with_room_is_not_changed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), writing_to(tmp_path / "folder"):
        raise RuntimeError("shapes differ")


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
