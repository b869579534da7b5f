"""torch and safetensors write to a disk that is really full."""

import subprocess
import sys
from pathlib import Path

import pytest

from train.integrity.disk import writing_to

_FILL = """
import sys, torch
from pathlib import Path
from safetensors.torch import save_file
from retroformer.errors import run_command
from train.integrity.disk import writing_to
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
