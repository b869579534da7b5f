"""Answers of a server, kept on disk for all processes and later runs: what was asked once is not asked again."""

import json
import sqlite3
import weakref
import zlib
from pathlib import Path
from typing import Any

_LOCK_SECONDS = 10.0


class Answers:
    """JSON objects by what was asked for. One is there whole or not at all, and stays until the file is deleted."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE IF NOT EXISTS answer(request TEXT PRIMARY KEY, json BLOB NOT NULL)")

    def get(self, request: str) -> dict[str, Any] | None:
        """The answer to this request, if there was one."""
        found = self._database.execute("SELECT json FROM answer WHERE request = ?", (request,)).fetchone()
        if found is None:
            return None
        answer: dict[str, Any] = json.loads(zlib.decompress(found[0]))
        return answer

    def keep(self, request: str, answer: dict[str, Any]) -> None:
        """The first answer to a request stays."""
        packed = zlib.compress(json.dumps(answer).encode())
        self._database.execute("INSERT OR IGNORE INTO answer VALUES (?, ?)", (request, packed))
