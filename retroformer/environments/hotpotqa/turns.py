"""Who may ask a server when: at most so many requests a second by all processes of this machine together.

A row of an SQLite file says when the next turn is; a process that takes it moves it on, then waits until it has come.
"""

import sqlite3
import time
import weakref
from contextlib import closing
from pathlib import Path

_LOCK_SECONDS = 10.0
_FARTHEST_SECONDS = 3600.0
"""Nobody waits longer than an hour, whatever a server says or a clock that was set back shows."""


class Turns:
    """Turns at one server. The times are of the machine's clock, which all processes share."""

    def __init__(self, path: Path, server: str, per_second: float) -> None:
        self._server, self._interval = server, 1 / per_second
        self._database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
        weakref.finalize(self, self._database.close)
        self._database.execute("CREATE TABLE IF NOT EXISTS turn(server TEXT PRIMARY KEY, next REAL NOT NULL)")

    def take(self, patience_seconds: float) -> float:
        """Wait for a turn and take it: 0. Where it is farther off than the patience, at once how many seconds it is."""
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
        """Nobody has a turn before so many seconds are over."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            now = time.time()
            self._set(cursor, max(self._next(cursor, now), now + min(seconds, _FARTHEST_SECONDS)))
            cursor.execute("COMMIT")

    def _next(self, cursor: sqlite3.Cursor, now: float) -> float:
        found = cursor.execute("SELECT next FROM turn WHERE server = ?", (self._server,)).fetchone()
        turn = float(found[0]) if found else 0.0
        return turn if turn <= now + _FARTHEST_SECONDS else 0.0

    def _set(self, cursor: sqlite3.Cursor, turn: float) -> None:
        cursor.execute("INSERT OR REPLACE INTO turn VALUES (?, ?)", (self._server, turn))
