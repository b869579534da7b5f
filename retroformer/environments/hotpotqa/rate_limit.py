"""Rate limit of requests to a server, shared by all processes of this machine.

A row of an SQLite file holds the time of the next turn; a process that takes it advances it, then waits until it comes.
"""

import sqlite3
import time
import weakref
from contextlib import closing
from pathlib import Path

_LOCK_SECONDS = 10.0
_FARTHEST_SECONDS = 3600.0
"""Maximum wait of one hour, even if a server asks for more or a clock was set back."""


class Turns:
    """Turns at one server. Times come from the machine's clock, which all processes share."""

    def __init__(self, path: Path, server: str, per_second: float) -> None:
        self._server, self._interval = server, 1 / per_second
        self._database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE IF NOT EXISTS turn(server TEXT PRIMARY KEY, next REAL NOT NULL)")

    def take(self, patience_seconds: float) -> float:
        """Wait for a turn, take it and return 0; if it is beyond the patience, return the seconds until it at once."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            now = time.time()
            turn = max(now, self._next(cursor, now))
            is_taken = turn - now <= max(patience_seconds, 0.0)
            if is_taken:
                self._set(cursor, turn + self._interval)
            cursor.execute("COMMIT")
        if not is_taken:
            return turn - now
        time.sleep(turn - now)
        return 0.0

    def postpone(self, seconds: float) -> None:
        """Block the turns of all processes for this many seconds."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            now = time.time()
            self._set(cursor, max(self._next(cursor, now), now + min(seconds, _FARTHEST_SECONDS)))
            cursor.execute("COMMIT")

    def _next(self, cursor: sqlite3.Cursor, now: float) -> float:
        row = cursor.execute("SELECT next FROM turn WHERE server = ?", (self._server,)).fetchone()
        turn = float(row[0]) if row else 0.0
        return turn if turn <= now + _FARTHEST_SECONDS else 0.0

    def _set(self, cursor: sqlite3.Cursor, turn: float) -> None:
        cursor.execute("INSERT OR REPLACE INTO turn VALUES (?, ?)", (self._server, turn))
