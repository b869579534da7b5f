"""A small wiki on loopback with the JSON of MediaWiki's API and TextExtracts; it can misbehave."""

import gzip
import json
import re
import threading
import time
import urllib.parse
from collections import deque
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

_HANG_SECONDS = 10.0
_INVALID = re.compile(r"[#<>\[\]{}|]|^$")
_WORD = re.compile(r"\w+")
_NAMESPACES = {"Talk": 1, "User": 2, "Category": 14}
_OTHER_WIKIS = ("fr", "commons")


class Behaviour(StrEnum):
    """Treatment of a request by the server."""

    WELL = "answers"
    TOO_MANY = "answers 429, with `retry_after` where it is set"
    UNAVAILABLE = "answers 503"
    LAGGED = "answers 200 with the error maxlag and a Retry-After"
    FORBIDDEN = "answers 403"
    REFUSED = "answers 200 with an error of the API"
    GARBAGE = "answers what is no JSON"
    OTHER_JSON = "answers JSON that is no answer"
    NO_EXTRACT = "answers a page without an extract"
    CUT = "closes in the middle of the answer"
    CUT_GZIP = "answers half of what it packed"
    SILENT = "accepts and never answers"


class Article(NamedTuple):
    """Page as plain text, or the target of its redirect."""

    extract: str = ""
    redirect: str | None = None
    disambiguation: bool = False


class Asked(NamedTuple):
    """Request that arrived."""

    at: float
    user_agent: str
    parameters: dict[str, str]


class Wiki:
    """Server in a thread of this process. As on Wikipedia, titles begin with a capital letter."""

    def __init__(self, articles: dict[str, Article]) -> None:
        self.articles = articles
        self.behaviour = Behaviour.WELL
        self.script: deque[Behaviour] = deque()
        """Behaviours for the next requests, one each; after that `behaviour` applies."""
        self.retry_after = ""
        self.asked: list[Asked] = []
        self.closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.wiki = self
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/w/api.php"

    def __enter__(self) -> "Wiki":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, parameters: dict[str, str]) -> dict[str, Any]:
        """Answer as api.php?action=query&format=json&formatversion=2 does."""
        if parameters.get("list") == "search":
            return {"batchcomplete": True, "query": {"search": self._search(parameters["srsearch"])}}
        title = parameters["titles"]
        if title.partition(":")[0] in _OTHER_WIKIS:
            return {"batchcomplete": True, "query": {"interwiki": [{"title": title, "iw": title.partition(":")[0]}]}}
        return {"batchcomplete": True, "query": {"pages": [self._page(title)]}}

    def _page(self, asked: str) -> dict[str, Any]:
        title = asked[:1].upper() + asked[1:]
        if _INVALID.search(title):
            return {"title": asked, "invalidreason": "The requested page title is not valid.", "invalid": True}
        namespace = _NAMESPACES.get(title.partition(":")[0], 0)
        if title.startswith("Special:"):
            return {"ns": -1, "title": title, "special": True}
        article = self.articles.get(title)
        if article is None:
            return {"ns": namespace, "title": title, "missing": True}
        if article.redirect:
            return self._page(article.redirect)
        numbered = {"pageid": 1 + list(self.articles).index(title), "ns": namespace, "title": title}
        properties = {"pageprops": {"disambiguation": ""}} if article.disambiguation else {}
        return numbered | properties | {"extract": article.extract}

    def _search(self, query: str) -> list[dict[str, Any]]:
        """Return articles with these words in title (counted twice) or text, each with a redirect that has them."""
        wanted = _words(query)
        scored = list[tuple[int, dict[str, Any]]]()
        for title, article in self.articles.items():
            if article.redirect or title.partition(":")[0] in _NAMESPACES:
                continue
            hit = {"ns": 0, "title": title}
            score = 2 * len(wanted & _words(title)) + len(wanted & _words(article.extract))
            for other, what in self.articles.items():
                if what.redirect == title and wanted & _words(other):
                    hit["redirecttitle"] = other
            if score:
                scored.append((score, hit))
        return [hit for _, hit in sorted(scored, key=lambda pair: -pair[0])]


def _words(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    wiki: Wiki


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        wiki, url = self.server.wiki, urllib.parse.urlsplit(self.path)
        parameters = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        wiki.asked.append(Asked(time.time(), self.headers["User-Agent"], parameters))
        behaviour = wiki.script.popleft() if wiki.script else wiki.behaviour
        if behaviour is Behaviour.SILENT:
            wiki.closing.wait(_HANG_SECONDS)
            return
        reply = _reply(behaviour, json.dumps(wiki.answer(parameters)).encode())
        self.send_response(reply.status)
        self.send_header("Content-Length", str(len(reply.body)))
        if reply.packed:
            self.send_header("Content-Encoding", "gzip")
        if reply.busy and wiki.retry_after:
            self.send_header("Retry-After", wiki.retry_after)
        self.end_headers()
        self.wfile.write(reply.body[: reply.sent])

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _Reply(NamedTuple):
    body: bytes
    status: int = 200
    packed: bool = False
    busy: bool = False
    sent: int | None = None
    """Number of bytes that are sent; None sends all."""


def _reply(behaviour: Behaviour, good: bytes) -> _Reply:
    replies = {
        Behaviour.WELL: _Reply(gzip.compress(good), packed=True),
        Behaviour.TOO_MANY: _Reply(b"", status=429, busy=True),
        Behaviour.UNAVAILABLE: _Reply(b"<html>", status=503, busy=True),
        Behaviour.LAGGED: _Reply(b'{"error": {"code": "maxlag", "info": "7 seconds lagged."}}', busy=True),
        Behaviour.FORBIDDEN: _Reply(b"Please set a user agent.", status=403),
        Behaviour.REFUSED: _Reply(b'{"error": {"code": "badvalue", "info": "Unrecognized value."}}'),
        Behaviour.GARBAGE: _Reply(b"<html>A gateway of the hotel's network.</html>"),
        Behaviour.OTHER_JSON: _Reply(b'{"pages": [1]}'),
        Behaviour.NO_EXTRACT: _Reply(b'{"batchcomplete": true, "query": {"pages": [{"pageid": 1, "ns": 0}]}}'),
        Behaviour.CUT: _Reply(good, sent=len(good) // 2),
        Behaviour.CUT_GZIP: _Reply(gzip.compress(good)[:-12], packed=True),
    }
    return replies[behaviour]
