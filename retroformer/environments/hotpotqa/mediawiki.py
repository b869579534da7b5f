"""The API of a MediaWiki as a polite program asks it: with a name and a contact, slowly, and nothing twice.

What cannot be asked is an EnvironmentFailure, so the attempt counts as invalid: that a page was not found is said only
where the wiki itself has said so.
"""

import http.client
import json
import sqlite3
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retroformer.environments.hotpotqa.answers import Answers
from retroformer.environments.hotpotqa.turns import Turns
from retroformer.errors import EnvironmentFailure
from retroformer.secret_url import SecretUrl

_COMMON = {"action": "query", "format": "json", "formatversion": "2"}
# A program that nobody waits for should give way while the wiki's replicas lag: it is then told to come back later.
_MANNERS = {"maxlag": "5"}
_BUSY_CODES = frozenset({"maxlag", "ratelimited", "readonly"})
_TRIES = 3
_BACKOFF_SECONDS = 0.25
_LARGEST_ANSWER = 16_000_000
"""Bytes, unpacked."""
_CHUNK = 65_536


class MediaWiki:
    """One wiki, through its `api.php`; the answers and the turns of all processes are files in `folder`."""

    def __init__(
        self, address: str, contact: str, per_second: float, folder: Path, patience_seconds: float = 20.0
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
        """The `query` object that answers `action=query` with these parameters, maybe an old one of the cache.

        Raises:
            EnvironmentFailure: the wiki cannot be asked, may not be asked for longer than the patience, or gives
                an error or what is no answer, three times over where a later try might do better.
        """
        request = json.dumps([self._address, sorted(parameters.items())])
        with self._files():
            kept = self._answers.get(request)
            if kept is None:
                kept = self._ask(parameters, request)
        return kept

    def _ask(self, parameters: dict[str, str], request: str) -> dict[str, Any]:
        deadline, why = time.monotonic() + self._patience, ""
        for tried in range(1, _TRIES + 1):
            if wait := self._turns.take(deadline - time.monotonic()):
                raise self._failure(f"may not be asked for another {wait:.0f} s{why}")
            # Another process may have asked the same meanwhile.
            if (kept := self._answers.get(request)) is not None:
                return kept
            try:
                answer = self._fetch(_COMMON | parameters | _MANNERS, deadline)
            except _TryLater as later:
                self._turns.postpone(later.seconds if later.seconds is not None else _BACKOFF_SECONDS * 2**tried)
                if tried == _TRIES:
                    raise self._failure(later.what) from None
                why = f": it {later.what}"
            else:
                self._answers.keep(request, answer)
                return answer
        raise AssertionError("the last try returns or raises")

    def _fetch(self, parameters: dict[str, str], deadline: float) -> dict[str, Any]:
        """Raises _TryLater, EnvironmentFailure."""
        url = f"{self._connecting}?{urllib.parse.urlencode(parameters)}"
        seconds = max(0.05, deadline - time.monotonic())
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=self._headers), timeout=seconds) as answer:
                body, headers = _body(answer, deadline), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                what = f"answered {error.code} {error.reason}"
                if (
                    error.code == http.HTTPStatus.TOO_MANY_REQUESTS
                    or error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR
                ):
                    raise _TryLater(what, retry_after(error.headers.get("Retry-After"))) from None
            raise self._failure(what) from None
        except (OSError, http.client.HTTPException, zlib.error, EOFError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise _TryLater(f"could not be asked ({type(error).__name__}: {reason})") from None
        return self._read(body, headers.get("Retry-After"))

    def _read(self, body: bytes, told_to_wait: str | None) -> dict[str, Any]:
        """Any JSON or none may be inside. Raises _TryLater, EnvironmentFailure."""
        try:
            answer = json.loads(body)
        except ValueError:
            raise _TryLater(f"answered what is no JSON: {body[:100]!r}") from None
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            what = f"answered with the error {error.get('code')!r}: {str(error.get('info'))[:200]}"
            if error.get("code") in _BUSY_CODES:
                raise _TryLater(what, retry_after(told_to_wait))
            raise self._failure(what)
        # Where nothing is left of a question, such as the title of a page of another wiki, there is no `query` at all.
        is_answer = isinstance(answer, dict) and ("query" in answer or "batchcomplete" in answer)
        found = answer.get("query", {}) if is_answer else None
        if not isinstance(found, dict):
            raise self._failure(f"answered what is no answer of a MediaWiki: {body[:100]!r}")
        return found

    def _failure(self, what: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"The wiki at {self._address} {what}.")

    @contextmanager
    def _files(self) -> Iterator[None]:
        """Raises EnvironmentFailure where the files cannot be used."""
        try:
            yield
        except (OSError, sqlite3.Error, zlib.error) as error:
            raise EnvironmentFailure(
                f"The wiki's files in {self._folder} cannot be used ({error}): delete those that begin with "
                "`wikipedia`, or make room."
            ) from error


class _TryLater(Exception):
    """It might go better another time: after so many seconds, where the server has said it."""

    def __init__(self, what: str, seconds: float | None = None) -> None:
        super().__init__(what)
        self.what, self.seconds = what, seconds


def retry_after(said: str | None) -> float | None:
    """The seconds that a Retry-After header asks for, as a number or a date; None where it says nothing of the kind."""
    if said is None:
        return None
    if said.strip().isdecimal():
        return float(said)
    try:
        moment = parsedate_to_datetime(said)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _body(answer: http.client.HTTPResponse, deadline: float) -> bytes:
    """All of it, unpacked. Raises OSError where it is endless or does not come in time."""
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
