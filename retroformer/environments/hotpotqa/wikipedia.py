"""Live Wikipedia, in place of the pages of the data, which are of 2017; its texts are CC BY-SA 4.0.

Search shows the first paragraph, as with the data; Lookup reads the whole article. The client of the API sends a name
and a contact, limits its rate, and stores each answer. After a failed request the attempt counts as invalid: a page is
reported as not found only if the wiki itself says so.
"""

import json
import re
import sqlite3
import time
import urllib.parse
import weakref
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

from retroformer.endpoint.http_client import NoAnswer, fetch_now
from retroformer.endpoint.retries import TRIES, is_temporary, pause_after, requested_pause
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.environments.hotpotqa.docstore import EncyclopediaPage
from retroformer.errors import EnvironmentFailure

# A background program should yield while the wiki's replicas lag (maxlag): the wiki then asks it to retry later.
_COMMON = {"action": "query", "format": "json", "formatversion": "2", "maxlag": "5"}
_BUSY_CODES = frozenset({"maxlag", "ratelimited", "readonly"})
_ANSWER_BYTES = 16_000_000
"""Maximum size of an answer, unpacked."""
_LOCK_SECONDS = 10.0
_MAX_PAUSE_SECONDS = 3600.0
"""Maximum wait, even if a server asks for more or a clock was set back."""


def _open_table(owner: object, path: Path, table: str) -> sqlite3.Connection:
    """Return a connection to a file with this table, which is closed with its owner."""
    database = sqlite3.connect(path, timeout=_LOCK_SECONDS, isolation_level=None, check_same_thread=False)
    weakref.finalize(owner, database.close)
    database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
    return database


class Turns:
    """Turns at one server, shared by all processes of this machine through a file with the time of the next turn."""

    def __init__(self, path: Path, server: str, per_second: float) -> None:
        self._server, self._interval = server, 1 / per_second
        self._database = _open_table(self, path, "turn(server TEXT PRIMARY KEY, next REAL NOT NULL)")

    def take(self, patience_seconds: float) -> float:
        """Wait for a turn, take it and return 0; if it is beyond the patience, return the seconds until it at once."""
        with self._next() as (cursor, now, following):
            turn = max(now, following)
            if turn - now > max(patience_seconds, 0.0):
                return turn - now
            self._set(cursor, turn + self._interval)
        time.sleep(turn - now)
        return 0.0

    def postpone(self, seconds: float) -> None:
        """Block the turns of all processes for this many seconds."""
        with self._next() as (cursor, now, following):
            self._set(cursor, max(following, now + min(seconds, _MAX_PAUSE_SECONDS)))

    @contextmanager
    def _next(self) -> Iterator[tuple[sqlite3.Cursor, float, float]]:
        """Yield a cursor in a transaction, the time now and that of the next turn."""
        with closing(self._database.cursor()) as cursor:
            cursor.execute("BEGIN IMMEDIATE")
            now = time.time()
            row = cursor.execute("SELECT next FROM turn WHERE server = ?", (self._server,)).fetchone()
            turn = float(row[0]) if row else 0.0
            yield cursor, now, turn if turn <= now + _MAX_PAUSE_SECONDS else 0.0
            cursor.execute("COMMIT")

    def _set(self, cursor: sqlite3.Cursor, turn: float) -> None:
        cursor.execute("INSERT OR REPLACE INTO turn VALUES (?, ?)", (self._server, turn))


class MediaWiki:
    """One wiki, through its `api.php`; files in `folder` share answers and rate limit between all processes.

    Each answer is stored atomically and never changes.
    """

    def __init__(
        self, address: str | SecretUrl, contact: str, per_second: float, folder: Path, patience_seconds: float = 20.0
    ) -> None:
        self._address, self._folder, self._patience = SecretUrl(address), folder, patience_seconds
        agent = f"Retroformer/{version('retroformer')} ({contact}) httpx/{version('httpx')}"
        self._connecting, authorization = self._address.split_user()
        self._headers = {"User-Agent": agent} | authorization
        server = urllib.parse.urlsplit(self._connecting).netloc
        with self._files():
            folder.mkdir(parents=True, exist_ok=True)
            table = "answer(request TEXT PRIMARY KEY, json BLOB NOT NULL)"
            self._answers = _open_table(self, folder / "wikipedia.sqlite", table)
            self._turns = Turns(folder / "wikipedia-turns.sqlite", server, per_second)

    def query(self, **parameters: str) -> dict[str, Any]:
        """Return the `query` object that answers `action=query` with these parameters, from the cache if stored.

        Errors that a retry may fix get three tries. Raises EnvironmentFailure if no answer comes within the patience.
        """
        request = json.dumps([str(self._address), sorted(parameters.items())])
        with self._files():
            stored = self._stored(request)
            return self._ask(parameters, request) if stored is None else stored

    def _stored(self, request: str) -> dict[str, Any] | None:
        row = self._answers.execute("SELECT json FROM answer WHERE request = ?", (request,)).fetchone()
        return json.loads(zlib.decompress(row[0])) if row else None

    def _ask(self, parameters: dict[str, str], request: str) -> dict[str, Any]:
        deadline, why = time.monotonic() + self._patience, ""
        for attempt in range(1, TRIES + 1):
            if wait := self._turns.take(deadline - time.monotonic()):
                raise self._failure(f"may not be asked for another {wait:.0f} s{why}")
            # Another process may have sent the same request meanwhile.
            if (stored := self._stored(request)) is not None:
                return stored
            try:
                answer = self._fetch(_COMMON | parameters, deadline)
            except _TryLater as later:
                self._turns.postpone(later.seconds or pause_after(attempt))
                if attempt == TRIES:
                    raise self._failure(later.fault) from None
                why = f": it {later.fault}"
            else:
                packed = zlib.compress(json.dumps(answer).encode())
                self._answers.execute("INSERT OR IGNORE INTO answer VALUES (?, ?)", (request, packed))
                return answer
        raise AssertionError("the last try returns or raises")

    def _fetch(self, parameters: dict[str, str], deadline: float) -> dict[str, Any]:
        """Send one request. Raises _TryLater, EnvironmentFailure."""
        seconds = max(0.05, deadline - time.monotonic())
        try:
            answer = fetch_now(
                "GET", self._connecting, seconds, headers=self._headers, params=parameters, largest=_ANSWER_BYTES
            )
        except NoAnswer as error:
            raise _TryLater(f"could not be asked (it {error})") from None
        pause = requested_pause(answer.headers)
        if answer.status == HTTPStatus.OK:
            return self._parse(answer.content, pause)
        fault = f"answered {answer.status}"
        if is_temporary(answer.status):
            raise _TryLater(fault, pause)
        raise self._failure(fault)

    def _parse(self, body: bytes, pause: float | None) -> dict[str, Any]:
        """Return the `query` of an answer, which may be any JSON or none. Raises _TryLater, EnvironmentFailure."""
        try:
            answer = json.loads(body)
        except ValueError:
            raise _TryLater(f"did not answer with JSON: {body[:100]!r}") from None
        error = answer.get("error") if isinstance(answer, dict) else None
        if isinstance(error, dict):
            fault = f"answered with the error {error.get('code')!r}: {str(error.get('info'))[:200]}"
            if error.get("code") in _BUSY_CODES:
                raise _TryLater(fault, pause)
            raise self._failure(fault)
        # If nothing is left to query, such as for the title of a page of another wiki, the answer has no `query`.
        is_answer = isinstance(answer, dict) and ("query" in answer or "batchcomplete" in answer)
        query = answer.get("query", {}) if is_answer else None
        if not isinstance(query, dict):
            raise self._failure(f"did not answer as a MediaWiki does: {body[:100]!r}")
        return query

    def _failure(self, fault: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"The wiki at {self._address} {fault}.")

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

    def __init__(self, fault: str, seconds: float | None = None) -> None:
        super().__init__(fault)
        self.fault, self.seconds = fault, seconds


_NOT_IN_TITLES = re.compile(r"[#<>\[\]{}|]")
_TITLE_BYTES, _QUERY_CHARACTERS = 255, 250
"""Maximum lengths of a title and of a query; the wiki refuses queries of more than 300 characters."""
_WORD = re.compile(r"\w+")
_HEADING = re.compile(r"^=+ .* =+$")
_HITS = 10
_ARTICLES = 0
"""Namespace of articles."""


class Wikipedia:
    """Encyclopedia behind the API of a MediaWiki with the extension TextExtracts."""

    def __init__(self, wiki: MediaWiki) -> None:
        self._wiki = wiki

    def find(self, entity: str) -> EncyclopediaPage | None:
        """Return the article of this title, ignoring case, or the target of a redirect of this title.

        An ambiguous title (a disambiguation page) is not found; `similar` names the candidates. Raises
        EnvironmentFailure.
        """
        entity = " ".join(entity.replace("_", " ").split())
        if not entity or _NOT_IN_TITLES.search(entity) or len(entity.encode()) > _TITLE_BYTES:
            return None
        article = self._article(entity)
        if article is None:
            key = entity.casefold()
            for title, redirect in self._search(entity):
                if key in (title.casefold(), (redirect or "").casefold()):
                    article = self._article(title)
                    break
        return _page(article) if article else None

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Return titles of the best articles by the wiki's own search, never the query itself: it leads nowhere.

        Raises EnvironmentFailure.
        """
        key = " ".join(query.split()).casefold()
        titles = [title for title, _ in self._search(query)]
        return [title for title in titles if title.casefold() not in (key, f"{key} (disambiguation)")][:count]

    def _article(self, title: str) -> dict[str, Any] | None:
        reply = self._wiki.query(
            prop="extracts|pageprops",
            ppprop="disambiguation",
            explaintext="1",
            exsectionformat="wiki",
            redirects="1",
            titles=title,
        )
        match reply.get("pages", []):
            case [{"ns": int(namespace), "pageid": int(), "title": str(), "extract": str()} as page]:
                return page if namespace == _ARTICLES else None
            case [] | [{"missing": True} | {"invalid": True} | {"special": True}]:
                return None
            case [{"ns": int(namespace)}] if namespace != _ARTICLES:
                return None
            case other:
                raise EnvironmentFailure(f"The wiki gave an invalid answer for the page {title!r}: {str(other)[:200]}")

    def _search(self, query: str) -> list[tuple[str, str | None]]:
        """Return the titles of the pages found, and the redirects through which they were found.

        It searches by words alone: signs such as `-` and `insource:/x/` are operators of the wiki's search.
        """
        words = " ".join(_WORD.findall(query[: 4 * _QUERY_CHARACTERS].lower()))[:_QUERY_CHARACTERS].strip()
        if not words:
            return []
        reply = self._wiki.query(list="search", srsearch=words, srlimit=str(_HITS), srinfo="", srprop="redirecttitle")
        hits = reply.get("search")
        if not isinstance(hits, list) or not all(isinstance(hit, dict) and "title" in hit for hit in hits):
            raise EnvironmentFailure(f"The wiki gave an invalid list of pages: {str(reply)[:200]}")
        return [(str(hit["title"]), hit.get("redirecttitle")) for hit in hits]


def _page(article: dict[str, Any]) -> EncyclopediaPage | None:
    """Return the page of an article's plain text; None if it is a disambiguation page or empty."""
    lines = [line.strip() for line in article["extract"].split("\n")]
    paragraphs = [sentences(line) for line in lines if line and not _HEADING.match(line)]
    if "disambiguation" in article.get("pageprops", {}) or not paragraphs:
        return None
    spaced = tuple(f" {sentence}" for paragraph in paragraphs for sentence in paragraph)
    return EncyclopediaPage(article["title"], spaced, len(paragraphs[0]))


_END = re.compile(r"([.!?])[\"'\u201d\u2019)\]]*\s+")
_LAST_WORD = re.compile(r"[\w.]*$")
_WORDS = "mr mrs ms dr st jr sr vs prof gen col lt sgt capt rev hon inc ltd co corp ca approx fl op vol pp ed feat"
_ABBREVIATIONS = frozenset(_WORDS.split())
_LONGEST_WORD = 20


def sentences(paragraph: str) -> list[str]:
    """Return the sentences in order, without the blanks between them, accurately enough for Lookup.

    A sentence ends with a full stop, question or exclamation mark before a blank, unless a small letter follows, or the
    stop belongs to an initial or an abbreviation (`J. K.`, `U.S.`, `Dr.`): joining two is better than cutting one.
    """
    pieces, start = list[str](), 0
    for end in _END.finditer(paragraph):
        next_character = paragraph[end.end() : end.end() + 1]
        word = _LAST_WORD.findall(paragraph[max(0, end.start() - _LONGEST_WORD) : end.start()])[0]
        is_short = (len(word) == 1 and word.isalpha()) or "." in word or word.lower() in _ABBREVIATIONS
        if not next_character or next_character.islower() or (end[1] == "." and is_short):
            continue
        pieces.append(paragraph[start : end.end()].strip())
        start = end.end()
    return [piece for piece in (*pieces, paragraph[start:].strip()) if piece]
