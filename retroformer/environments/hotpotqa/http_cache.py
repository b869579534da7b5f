"""Cache of a server's answers on disk, for all processes and later runs: no request is sent twice."""

import json
import sqlite3
import weakref
import zlib
from pathlib import Path
from typing import Any

_LOCK_SECONDS = 10.0


class Answers:
    """JSON objects by request. Each is written atomically and stays until the file is deleted."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE IF NOT EXISTS answer(request TEXT PRIMARY KEY, json BLOB NOT NULL)")

    def get(self, request: str) -> dict[str, Any] | None:
        """Return the stored answer to this request, if any."""
        row = self._database.execute("SELECT json FROM answer WHERE request = ?", (request,)).fetchone()
        if row is None:
            return None
        answer: dict[str, Any] = json.loads(zlib.decompress(row[0]))
        return answer

    def keep(self, request: str, answer: dict[str, Any]) -> None:
        """Store the answer; the first answer to a request stays."""
        packed = zlib.compress(json.dumps(answer).encode())
        self._database.execute("INSERT OR IGNORE INTO answer VALUES (?, ?)", (request, packed))
