"""A folder for Ray's sockets."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def ray_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give Ray a folder that is removed; its path must be short, as sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        # A killed worker cannot remove the sockets of its environments.
        monkeypatch.setenv("TMPDIR", folder)
        yield
