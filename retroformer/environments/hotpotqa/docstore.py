"""Wikipedia's introductory paragraphs, searchable by title or BM25, in one SQLite file that is built once.

Its name has a key of its sources, so new data make a new file. The keys of pages are case-folded titles; the rows of
`word` have the ids of the pages.
"""

import html
import json
import re
import sqlite3
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from retroformer.environments.hotpotqa.metrics import ENGLISH
from retroformer.files.cache import build_once, open_read_only

FORMAT = 1
"""Format version, part of the file's name; raise it when the tables change."""
_TITLE_WEIGHT, _TEXT_WEIGHT = 3.0, 1.0
_MOST_WORDS, _MOST_STOP_WORDS = 64, 8
"""Maximum number of query words searched, and of stop words if there are no others; stop words are on every page."""
_TABLES = """
    CREATE TABLE page(
        id INTEGER PRIMARY KEY, title TEXT UNIQUE NOT NULL, title_key TEXT NOT NULL, bare_key TEXT,
        sentences TEXT NOT NULL
    );
    CREATE VIRTUAL TABLE word USING fts5(title, text, content='', tokenize='porter unicode61 remove_diacritics 2');
"""
_INDEXES = (
    "CREATE INDEX by_title ON page(title_key); CREATE INDEX by_bare ON page(bare_key) WHERE bare_key IS NOT NULL;"
)
_QUALIFIER = re.compile(r"(?P<bare>.*\S)\s*\([^()]*\)$")
_WORD = re.compile(r"\w+")


class EncyclopediaPage(NamedTuple):
    """Wikipedia page. Each sentence starts with the blank that separates it from the previous one."""

    title: str
    sentences: tuple[str, ...]
    shown: int | None = None
    """Number of sentences that a search shows; None shows all."""

    @property
    def paragraph(self) -> str:
        """Text that a search shows."""
        return "".join(self.sentences[: self.shown]).strip()


def page(title: str, sentences: Iterable[str]) -> EncyclopediaPage:
    """Return a page of the data: entities in the title are resolved (`&amp;TV` is &TV), lost blanks restored."""
    kept = [sentence for sentence in sentences if sentence.strip()]
    spaced = (text if not place or text[0].isspace() else f" {text}" for place, text in enumerate(kept))
    return EncyclopediaPage(html.unescape(title), tuple(spaced))


class Docstore:
    """Pages of one file, read only; cheap to open."""

    def __init__(self, path: Path) -> None:
        self._database = open_read_only(path)
        weakref.finalize(self, self._database.close)

    def find(self, entity: str) -> EncyclopediaPage | None:
        """Return the unique page of this title, else ignoring case, else by bare name (`Name` for `Name (film)`)."""
        key = _key(entity)
        return self.titled(entity) or self._only("title_key", key) or self._only("bare_key", key)

    def titled(self, title: str) -> EncyclopediaPage | None:
        """Return the page with exactly this title."""
        return self._only("title", title)

    def _only(self, column: str, value: str) -> EncyclopediaPage | None:
        rows = self._database.execute(f"SELECT title, sentences FROM page WHERE {column} = ? LIMIT 2", (value,))
        matches = rows.fetchall()
        return EncyclopediaPage(matches[0][0], tuple(json.loads(matches[0][1]))) if len(matches) == 1 else None

    def similar(self, query: str, count: int = 5) -> list[str]:
        """Return the titles of the best pages by BM25, best first; a word in the title counts three times.

        Only the first 64 words of a query count; if all of them are stop words, only the first 8.
        """
        words = [word.lower() for word in _WORD.findall(query)]
        content = [word for word in words if word not in ENGLISH][:_MOST_WORDS] or words[:_MOST_STOP_WORDS]
        if not content:
            return []
        rows = self._database.execute(
            "SELECT page.title FROM word JOIN page ON page.id = word.rowid WHERE word MATCH ? "
            "ORDER BY bm25(word, ?, ?), page.id LIMIT ?",
            (" OR ".join(f'"{word}"' for word in content), _TITLE_WEIGHT, _TEXT_WEIGHT, count),
        )
        return [title for (title,) in rows]


def build_docstore(pages: Iterable[EncyclopediaPage], path: Path) -> Path:
    """Write the file of these pages unless it exists; of several pages with one title, the first counts."""

    def write(database: sqlite3.Connection) -> None:
        database.executescript(_TABLES)
        titles = set[str]()
        for page in pages:
            if page.title in titles:
                continue
            titles.add(page.title)
            bare = _QUALIFIER.fullmatch(page.title)
            row = (len(titles), page.title, _key(page.title), bare and _key(bare["bare"]), json.dumps(page.sentences))
            database.execute("INSERT INTO page VALUES (?, ?, ?, ?, ?)", row)
            words = (len(titles), page.title, page.paragraph)
            database.execute("INSERT INTO word(rowid, title, text) VALUES (?, ?, ?)", words)
        database.executescript(_INDEXES)

    return build_once(path, write)


def _key(title: str) -> str:
    return " ".join(title.casefold().split())
