"""Index of all stories, derived from the stores: what the table of stories sorts, filters and searches.

It is a SQLite file in the cache folder, never in the run. Facts are immutable, so a story is indexed again only when
the number of its facts has changed. Losing the file costs only the time to build it again.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from retroformer.coach.stories.reading import shared_trial, story_arms, stream_stories
from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import StoreError
from retroformer.files.cache import cache_folder
from retroformer.run.store.rows import ArmCounts

from .entries import Entry, Piece, entry_of, word_counts, words_of


class Order(NamedTuple):
    """Order of stories by one value, then by task, run and arm, so that pages of a list do not overlap."""

    value: str
    """SQL expression that is never NULL; stories without a value come last."""
    descending: bool = False

    def sql(self, *, backwards: bool = False) -> str:
        """Return the ORDER BY clause."""
        ways = ("", " DESC")
        first = self.value + ways[self.descending != backwards]
        return ", ".join([first, *(name + ways[backwards] for name in _LAST if name != self.value)])

    def after(self, *, backwards: bool = False) -> str:
        """Return the condition for stories behind the one with the parameters `:value`, `:task`, `:run` and `:arm`."""
        way = "<" if self.descending != backwards else ">"
        key = f"(task, run, arm) {'<' if backwards else '>'} (:task, :run, :arm)"
        # The first part bounds the range of the SQL index that is read; OR alone does not.
        return f"{self.value} {way}= :value AND ({self.value} {way} :value OR {key})"


_LAST = ("task", "run", "arm")
SORTS = {
    "task": Order("task"),
    "attempts": Order("attempts", descending=True),
    "first": Order("ifnull(first, -9e999)", descending=True),
    "last": Order("ifnull(last, -9e999)", descending=True),
    "best": Order("ifnull(best, -9e999)", descending=True),
    "worst": Order("ifnull(worst, 9e999)"),
    "actions": Order("actions", descending=True),
    "tokens": Order("tokens", descending=True),
}
"""Orders by the name of the column that a reader clicks."""

VERSION = 4
"""Changes with the tables: a file of another version is built anew."""
NAMES = ("story", "advice", "author", "author_word", "words")
_TABLES = """
CREATE TABLE story (
    id INTEGER PRIMARY KEY, run TEXT, arm TEXT, task TEXT, facts INTEGER, attempts INTEGER, trials INTEGER,
    outcome TEXT, solved_at INTEGER, first REAL, last REAL, best REAL, worst REAL, flags TEXT, actions INTEGER,
    tokens INTEGER, mark TEXT DEFAULT '', advice TEXT
);
CREATE UNIQUE INDEX story_key ON story (run, arm, task);
CREATE INDEX story_outcome ON story (run, arm, outcome, solved_at, trials, task);
CREATE INDEX story_mark ON story (mark) WHERE mark != '';
CREATE TABLE author (id INTEGER PRIMARY KEY, run TEXT, arm TEXT, model TEXT, UNIQUE (run, arm, model));
CREATE TABLE advice (
    run TEXT, arm TEXT, task TEXT, author INTEGER, rating REAL, words INTEGER, flags TEXT, written_at TEXT, text TEXT
);
CREATE INDEX advice_key ON advice (run, arm, task);
CREATE INDEX advice_rating ON advice (run, arm, rating);
CREATE INDEX advice_author ON advice (author, words, rating, flags, written_at);
CREATE TABLE author_word (
    author INTEGER, word TEXT, pieces INTEGER, PRIMARY KEY (author, word)
) WITHOUT ROWID;
CREATE VIRTUAL TABLE words USING fts5(task, advice, steps, content='', detail=none, tokenize='unicode61');
"""
"""`author_word` has the number of pieces of advice of an author that hold a word. `words` has no positions: a search
needs none, and the positions of a frequent word in long texts would take longer to read than a page may take."""


def definitions() -> list[str]:
    """Return the statements that create all tables and their SQL indexes."""
    orders = [f"CREATE INDEX story_by_{name} ON story ({order.sql()})" for name, order in SORTS.items()]
    return [*filter(str.strip, _TABLES.split(";")), *orders]


_READ_AT_ONCE = 20
"""Stories read into memory at once."""
_WRITTEN_AT_ONCE = 200
"""Stories that are written together: more take less time each, but a page may have to wait for them."""
_CHARACTERS_AT_ONCE = 4_000_000
"""Most characters written in one transaction."""


@dataclass(frozen=True)
class Progress:
    """How much of the runs is indexed."""

    done: int
    total: int


class Index:
    """Index of the stories of some runs. Any thread may use it; one thread at a time updates it."""

    def __init__(self, sources: Sequence[OpenRun], path: Path | None = None) -> None:
        self._sources = sources
        self.path = path or _path_of(sources)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._updating = threading.Lock()
        self._indexed: dict[tuple[OpenRun, str], tuple[ArmCounts, ...]] = {}
        """Number of facts of each arm, and of the arm that it shares, when it was last indexed whole."""
        self.progress = Progress(0, 0)
        self._facts = ""
        with self.connect() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                _create(connection)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for the time of a `with` block, and commit at its end. Raises StoreError."""
        try:
            with closing(sqlite3.connect(self.path, timeout=30, isolation_level="IMMEDIATE")) as connection:
                connection.row_factory = sqlite3.Row
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=OFF")
                with connection:
                    yield connection
        except sqlite3.Error as error:
            raise StoreError(
                f"The index {self.path} cannot be used ({error}): free disk space, or delete the file, which is then "
                "rebuilt."
            ) from error

    @property
    def version(self) -> str:
        """Text that changes when the runs have new facts, or more of them are indexed."""
        return f"{sha256(self._facts.encode()).hexdigest()[:16]}.{self.progress.done}"

    def update(self, stopped: threading.Event | None = None) -> int:
        """Index every story whose facts have changed; return their number. Stops early if `stopped` is set."""
        with self._updating:
            self.update_marks()
            counts = {key: found for source in self._sources for key, found in _counts(source).items()}
            self._facts = repr([(source.name, arm, found) for (source, arm), found in counts.items()])
            new = [key for key, found in counts.items() if self._indexed.get(key) != found]
            changed = {(source, arm): self._changed(source, arm) for source, arm in new}
            total = sum(map(len, changed.values()))
            done = 0
            self.progress = Progress(done, total)
            for (source, arm), facts in changed.items():
                for entries in _batches(_entries(source, arm, facts)):
                    if stopped is not None and stopped.is_set():
                        return done
                    self._write(entries)
                    done += len(entries)
                    self.progress = Progress(done, total)
                self._indexed[source, arm] = counts[source, arm]
            return done

    def update_marks(self) -> None:
        """Copy the marks of all runs to the index; there are few."""
        wanted = {
            (source.name, arm, task): mark.verdict
            for source in self._sources
            for (arm, task), mark in source.store.marks.current().items()
        }
        with self.connect() as connection:
            rows = connection.execute("SELECT run, arm, task, mark FROM story WHERE mark != ''")
            shown = {(row["run"], row["arm"], row["task"]): row["mark"] for row in rows}
            changed = [(wanted.get(key, ""), *key) for key in {**shown, **wanted} if wanted.get(key) != shown.get(key)]
            connection.executemany("UPDATE story SET mark = ? WHERE run = ? AND arm = ? AND task = ?", changed)

    def holds(self, run: str, arm: str, task: str) -> bool:
        """Return True if there is a story of this task."""
        query = "SELECT 1 FROM story WHERE run = ? AND arm = ? AND task = ?"
        with self.connect() as connection:
            return connection.execute(query, (run, arm, task)).fetchone() is not None

    def _changed(self, source: OpenRun, arm: str) -> dict[str, int]:
        """Return the number of facts of each story that is not indexed as it is now."""
        facts = source.store.fact_counts(arm)
        shared = shared_trial(source.store, arm, source.store.arms())
        if shared is not None:
            for task_id, count in source.store.fact_counts(shared).items():
                facts[task_id] = facts.get(task_id, 0) + count
        with self.connect() as connection:
            query = "SELECT task, facts FROM story WHERE run = ? AND arm = ?"
            indexed = {row["task"]: row["facts"] for row in connection.execute(query, (source.name, arm))}
        return {task_id: count for task_id, count in facts.items() if indexed.get(task_id) != count}

    def _write(self, entries: Sequence[Entry]) -> None:
        with self.connect() as connection:
            for entry in entries:
                _write_story(connection, entry)
            for author, pieces in _by_author(entries).items():
                _write_advice(connection, author, pieces)


def arms_of(source: OpenRun) -> list[str]:
    """Return the arms of a run that have stories."""
    return story_arms(source.store)


def _counts(source: OpenRun) -> dict[tuple[OpenRun, str], tuple[ArmCounts, ...]]:
    """Return the number of facts of each arm and of the arm that it shares. Facts never change, so it is a version."""
    counts = source.store.arm_counts()
    arms = source.store.arms()
    return {
        (source, arm): tuple(
            counts.get(name, ArmCounts()) for name in (arm, shared_trial(source.store, arm, arms)) if name
        )
        for arm in story_arms(source.store)
    }


def _entries(source: OpenRun, arm: str, facts: Mapping[str, int]) -> Iterator[Entry]:
    task_ids = list(facts)
    for start in range(0, len(task_ids), _READ_AT_ONCE):
        for story in stream_stories(source.store, arm, task_ids[start : start + _READ_AT_ONCE], source.leaks):
            yield entry_of(story, facts[story.task.id])


def _batches(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    """Divide entries into those that are written together."""
    batch, characters = list[Entry](), 0
    for entry in entries:
        batch.append(entry)
        characters += len(entry.steps) + len(entry.advice)
        if len(batch) == _WRITTEN_AT_ONCE or characters > _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _create(connection: sqlite3.Connection) -> None:
    query = f"SELECT type, name FROM sqlite_master WHERE name IN ({', '.join('?' * len(NAMES))})"
    for kind, name in connection.execute(query, NAMES).fetchall():
        connection.execute(f"DROP {kind} {name}")
    for statement in definitions():
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")


def _path_of(sources: Iterable[OpenRun]) -> Path:
    """Return the index file of these runs: by their folders, and by whether a config offers a check for leaks."""
    named = "\n".join(
        sorted(
            f"{source.folder.absolute()} {source.store.url} {source.name} {source.experiment is not None}"
            for source in sources
        )
    )
    return cache_folder() / "view" / f"{sha256(named.encode()).hexdigest()[:16]}.db"


def _write_story(connection: sqlite3.Connection, entry: Entry) -> None:
    """Replace a story's row and remove its old advice."""
    mine = "WHERE run = ? AND arm = ? AND task = ?"
    marked = connection.execute(f"SELECT mark FROM story {mine}", entry.key)
    mark = next((row["mark"] for row in marked), "")
    connection.execute(f"DELETE FROM story {mine}", entry.key)
    # The full-text entry of the earlier version stays under an id that no story has.
    texts = (entry.row["task"], entry.advice, entry.steps)
    identity = connection.execute("INSERT INTO words (task, advice, steps) VALUES (?, ?, ?)", texts).lastrowid
    columns = {"id": identity, **entry.row, "mark": mark}
    places = ", ".join(f":{name}" for name in columns)
    connection.execute(f"INSERT INTO story ({', '.join(columns)}) VALUES ({places})", columns)
    for row in connection.execute(f"SELECT author, text FROM advice {mine}", entry.key).fetchall():
        less = [(row["author"], word) for word in word_counts([row["text"]])]
        connection.executemany("UPDATE author_word SET pieces = pieces - 1 WHERE author = ? AND word = ?", less)
    connection.execute(f"DELETE FROM advice {mine}", entry.key)


def _by_author(entries: Iterable[Entry]) -> dict[tuple[object, ...], list[tuple[Entry, Piece]]]:
    """Return the pieces of advice by run, arm and model."""
    by_author: dict[tuple[object, ...], list[tuple[Entry, Piece]]] = {}
    for entry in entries:
        for piece in entry.pieces:
            by_author.setdefault((entry.row["run"], entry.row["arm"], piece.model), []).append((entry, piece))
    return by_author


def _write_advice(
    connection: sqlite3.Connection, name: tuple[object, ...], pieces: Sequence[tuple[Entry, Piece]]
) -> None:
    """Add the advice of an author, and count its words."""
    connection.execute("INSERT OR IGNORE INTO author (run, arm, model) VALUES (?, ?, ?)", name)
    query = "SELECT id FROM author WHERE run = ? AND arm = ? AND model = ?"
    (author,) = connection.execute(query, name).fetchone()
    rows = [
        (*entry.key, author, piece.rating, len(words_of(piece.text)), piece.flags, piece.written_at, piece.text)
        for entry, piece in pieces
    ]
    connection.executemany(f"INSERT INTO advice VALUES ({', '.join('?' * 9)})", rows)
    more = "ON CONFLICT DO UPDATE SET pieces = pieces + excluded.pieces"
    counts = word_counts(piece.text for _, piece in pieces)
    connection.executemany(
        f"INSERT INTO author_word VALUES (?, ?, ?) {more}", [(author, *item) for item in sorted(counts.items())]
    )
