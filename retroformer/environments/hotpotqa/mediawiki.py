"""Polite client of a MediaWiki's API: it sends a name and a contact, limits its rate, and repeats no request.

A failed request raises EnvironmentFailure, so the attempt counts as invalid: a page is reported as not found only if
the wiki itself says so.
"""

import http.client
import json
import sqlite3
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import weakref
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retroformer.endpoint.retries import TRIES, asked_pause, is_temporary, pause_after
from retroformer.errors import EnvironmentFailure
from retroformer.secrets.url import SecretUrl

_COMMON = {"action": "query", "format": "json", "formatversion": "2"}
# A background program should yield while the wiki's replicas lag: the wiki then asks it to retry later.
_MANNERS = {"maxlag": "5"}
_BUSY_CODES = frozenset({"maxlag", "ratelimited", "readonly"})
_LARGEST_ANSWER = 16_000_000
"""Maximum size of an answer in bytes, unpacked."""
_CHUNK = 65_536
_LOCK_SECONDS = 10.0
_FARTHEST_SECONDS = 3600.0
"""Maximum wait of one hour, even if a server asks for more or a clock was set back."""


class Answers:
    """Answers to requests in a file, for all processes and later runs. Each is written atomically and never changes."""

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


class Turns:
    """Turns at one server, shared by all processes of this machine, which also share the clock.

    A row of a file holds the time of the next turn; a process that takes it advances it, then waits until it comes.
    """

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


_COMMON = {"action": "query", "format": "json", "formatversion": "2"}
# A background program should yield while the wiki's replicas lag: the wiki then asks it to retry later.
_MANNERS = {"maxlag": "5"}
_BUSY_CODES = frozenset({"maxlag", "ratelimited", "readonly"})
_TRIES = 3
_BACKOFF_SECONDS = 0.25
_LARGEST_ANSWER = 16_000_000
"""Maximum size of an answer in bytes, unpacked."""
_CHUNK = 65_536


class MediaWiki:
    """One wiki, through its `api.php`; files in `folder` share answers and rate limit between all processes."""

    def __init__(
        self, address: str | SecretUrl, contact: str, per_second: float, folder: Path, patience_seconds: float = 20.0
    ) -> None:
        self._address, self._folder, self._patience = SecretUrl(address), folder, patience_seconds
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        agent = f"Retroformer/{version('retroformer')} ({contact}) Python-urllib/{python}"
        self._connecting, authorization = self._address.split_user()
        self._headers = {"User-Agent": agent, "Accept-Encoding": "gzip"} | authorization
        with self._files():
            folder.mkdir(parents=True, exist_ok=True)
            self._answers = Answers(folder / "wikipedia.sqlite")
            self._turns = Turns(
                folder / "wikipedia-turns.sqlite", urllib.parse.urlsplit(self._connecting).netloc, per_second
            )

    def query(self, **parameters: str) -> dict[str, Any]:
        """Return the `query` object that answers `action=query` with these parameters, from the cache if stored.

        Raises:
            EnvironmentFailure: the wiki cannot be reached, allows no request within the patience, or answers with an
                error or an invalid response. Errors that a retry may fix get three tries.
        """
        request = json.dumps([str(self._address), sorted(parameters.items())])
        with self._files():
            kept = self._answers.get(request)
            if kept is None:
                kept = self._ask(parameters, request)
        return kept

    def _ask(self, parameters: dict[str, str], request: str) -> dict[str, Any]:
        deadline, why = time.monotonic() + self._patience, ""
        for tried in range(1, TRIES + 1):
            if wait := self._turns.take(deadline - time.monotonic()):
                raise self._failure(f"may not be asked for another {wait:.0f} s{why}")
            # Another process may have sent the same request meanwhile.
            if (kept := self._answers.get(request)) is not None:
                return kept
            try:
                answer = self._fetch(_COMMON | parameters | _MANNERS, deadline)
            except _TryLater as later:
                self._turns.postpone(later.seconds or pause_after(tried))
                if tried == TRIES:
                    raise self._failure(later.what) from None
                why = f": it {later.what}"
            else:
                self._answers.keep(request, answer)
                return answer
        raise AssertionError("the last try returns or raises")

    def _fetch(self, parameters: dict[str, str], deadline: float) -> dict[str, Any]:
        """Send one request. Raises _TryLater, EnvironmentFailure."""
        url = f"{self._connecting}?{urllib.parse.urlencode(parameters)}"
        seconds = max(0.05, deadline - time.monotonic())
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=self._headers), timeout=seconds) as answer:
                body, headers = _body(answer, deadline), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                what = f"answered {error.code} {error.reason}"
                if is_temporary(error.code):
                    raise _TryLater(what, asked_pause(error.headers)) from None
            raise self._failure(what) from None
        except (OSError, http.client.HTTPException, zlib.error, EOFError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise _TryLater(f"could not be asked ({type(error).__name__}: {reason})") from None
        return self._read(body, asked_pause(headers))

    def _read(self, body: bytes, pause: float | None) -> dict[str, Any]:
        """Parse an answer, which may be any JSON or none. Raises _TryLater, EnvironmentFailure."""
        try:
            answer = json.loads(body)
        except ValueError:
            raise _TryLater(f"did not answer with JSON: {body[:100]!r}") from None
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            what = f"answered with the error {error.get('code')!r}: {str(error.get('info'))[:200]}"
            if error.get("code") in _BUSY_CODES:
                raise _TryLater(what, pause)
            raise self._failure(what)
        # If nothing is left to query, such as for the title of a page of another wiki, the answer has no `query`.
        is_answer = isinstance(answer, dict) and ("query" in answer or "batchcomplete" in answer)
        query = answer.get("query", {}) if is_answer else None
        if not isinstance(query, dict):
            raise self._failure(f"did not answer as a MediaWiki does: {body[:100]!r}")
        return query

    def _failure(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"The wiki at {self._address} {what}.")

    @contextmanager
    def _files(self) -> Iterator[None]:
        """Convert errors of the cache files. Raises EnvironmentFailure if the files cannot be used."""
        try:
            yield
        except (OSError, sqlite3.Error, zlib.error) as error:
            raise EnvironmentFailure(
                f"The wiki's files in {self._folder} cannot be used ({error}): delete those that begin with "
                "`wikipedia`, or make room."
            ) from error


class _TryLater(Exception):
    """Temporary failure; retry after `seconds` if the server gave a number."""

    def __init__(self, what: str, seconds: float | None = None) -> None:
        super().__init__(what)
        self.what, self.seconds = what, seconds


def _body(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """Return the whole body, unpacked. Raises OSError if it is too long or too slow."""
    body = bytearray()
    while chunk := answer.read1(_CHUNK):
        body += chunk
        if len(body) > _LARGEST_ANSWER or time.monotonic() > deadline:
            raise TimeoutError("the answer has no end")
    if answer.length:
        raise http.client.IncompleteRead(bytes(body), answer.length)
    if answer.headers.get("Content-Encoding") != "gzip":
        return bytes(body)
    gzip = zlib.decompressobj(wbits=31)
    unpacked = gzip.decompress(bytes(body), _LARGEST_ANSWER)
    if not gzip.eof:
        raise http.client.IncompleteRead(unpacked)
    return unpacked
