"""Recorder of a program's disk calls, which still take effect."""

import os
from pathlib import Path
from typing import Any

import pytest


class DiskCalls:
    """Calls of `os.fsync` and renames, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[Any, ...]] = []
        fsync = os.fsync

        def noted(descriptor: int) -> None:
            self.made.append(("sync", Path(f"/proc/self/fd/{descriptor}").readlink()))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", noted)
        for name in ("rename", "replace"):
            self._note_renaming(monkeypatch, name)

    def _note_renaming(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(os, name)

        def noted(source: Any, target: Any, **options: Any) -> None:
            self.made.append(("rename", Path(source).absolute(), Path(target).absolute()))
            real(source, target, **options)

        monkeypatch.setattr(os, name, noted)

    def synced_before(self, source: Path, target: Path) -> set[Path]:
        """Return the paths that were synced when `source` was renamed to `target`."""
        place = self.made.index(("rename", source.absolute(), target.absolute()))
        return {call[1] for call in self.made[:place] if call[0] == "sync"}

    def synced_after(self, source: Path, target: Path) -> set[Path]:
        place = self.made.index(("rename", source.absolute(), target.absolute()))
        return {call[1] for call in self.made[place:] if call[0] == "sync"}
