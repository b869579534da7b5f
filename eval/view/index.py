"""Index of all stories, derived from the stores: what the table of stories sorts, filters and searches.

It is a SQLite file in the cache folder, never in the run. Facts are immutable, so a story is indexed again only when
the number of its facts has changed. Losing the file costs only the time to build it again.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path

from retroformer.files.cache import cache_folder
from retroformer.records import Outcome, Trajectory
from retroformer.stories.reading import shared_trial, story_arms, stream_stories
from retroformer.stories.story import Story

from .sources import Source

_VERSION = 2
"""Changes with the tables: a file of another version is built anew."""
_AT_ONCE = 20
"""Stories that are read and written together, so that a page waits for no more."""
_KEPT_CHARACTERS = 2000
"""Characters of a piece of advice in the index; the store has all."""
_TABLES = """
CREATE TABLE story (
    id INTEGER PRIMARY KEY, run TEXT, arm TEXT, task TEXT, facts INTEGER, attempts INTEGER, trials INTEGER,
    outcome TEXT, solved_at INTEGER, first REAL, last REAL, best REAL, worst REAL, flags TEXT, actions INTEGER,
    tokens INTEGER, mark TEXT DEFAULT '', advice TEXT
);
CREATE TABLE advice (
    run TEXT, arm TEXT, task TEXT, trial INTEGER, candidate INTEGER, model TEXT, text TEXT, rating REAL, flags TEXT,
    written_at TEXT
);
CREATE INDEX advice_key ON advice (run, arm, task);
CREATE UNIQUE INDEX story_key ON story (run, arm, task);
CREATE VIRTUAL TABLE words USING fts5(task, advice, steps, content='', tokenize='unicode61');
"""


@dataclass(frozen=True)
class Progress:
    """How much of the runs is indexed."""

    done: int
    total: int


class Index:
    """Index of the stories of some runs. Any thread may use it; one thread at a time updates it."""

    def __init__(self, sources: Sequence[Source], path: Path | None = None) -> None:
        self._sources = sources
        self.path = path or _path_of(sources)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._updating = threading.Lock()
        self.progress = Progress(0, 0)
        with self.connect() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                _create(connection)

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """Open a connection for the time of a `with` block, and commit at its end."""
        connection = sqlite3.connect(self.path, timeout=30, isolation_level="IMMEDIATE")
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=OFF")
            with connection:
                yield connection
        finally:
            connection.close()

    def update(self, stopped: threading.Event | None = None) -> int:
        """Index every story whose facts have changed; return their number. Stops early if `stopped` is set."""
        with self._updating:
            changed = {(source, arm): self._changed(source, arm) for source in self._sources for arm in arms_of(source)}
            total = sum(map(len, changed.values()))
            self.update_marks()
            done = 0
            self.progress = Progress(done, total)
            for (source, arm), counts in changed.items():
                task_ids = list(counts)
                for start in range(0, len(task_ids), _AT_ONCE):
                    if stopped is not None and stopped.is_set():
                        return done
                    chunk = task_ids[start : start + _AT_ONCE]
                    self._write(source, arm, chunk, counts)
                    done += len(chunk)
                    self.progress = Progress(done, total)
            return done

    def update_marks(self) -> None:
        """Take over the marks of all runs, which are few."""
        with self.connect() as connection:
            connection.execute("UPDATE story SET mark = '' WHERE mark != ''")
            for source in self._sources:
                marks = source.store.marks.current().values()
                connection.executemany(
                    "UPDATE story SET mark = ? WHERE run = ? AND arm = ? AND task = ?",
                    [(mark.verdict, source.name, mark.arm, mark.task_id) for mark in marks],
                )

    def holds(self, run: str, arm: str, task: str) -> bool:
        """Return True if there is a story of this task."""
        query = "SELECT 1 FROM story WHERE run = ? AND arm = ? AND task = ?"
        with self.connect() as connection:
            return connection.execute(query, (run, arm, task)).fetchone() is not None

    def _changed(self, source: Source, arm: str) -> dict[str, int]:
        """Return the number of facts of each story that is not indexed as it is now."""
        facts = source.store.fact_counts(arm)
        shared = shared_trial(arm, source.store.arms())
        if shared is not None:
            for task_id, count in source.store.fact_counts(shared).items():
                facts[task_id] = facts.get(task_id, 0) + count
        with self.connect() as connection:
            query = "SELECT task, facts FROM story WHERE run = ? AND arm = ?"
            indexed = {row["task"]: row["facts"] for row in connection.execute(query, (source.name, arm))}
        return {task_id: count for task_id, count in facts.items() if indexed.get(task_id) != count}

    def _write(self, source: Source, arm: str, task_ids: Sequence[str], counts: Mapping[str, int]) -> None:
        stories = list(stream_stories(source.store, arm, task_ids, source.leaks))
        entries = [
            (
                _row(story, counts[story.task.id]),
                (story.task.id, _advice_text(story), _step_text(story)),
                _pieces(story),
            )
            for story in stories
        ]
        with self.connect() as connection:
            for row, text, pieces in entries:
                key = (row["run"], row["arm"], row["task"])
                marked = connection.execute("SELECT mark FROM story WHERE run = ? AND arm = ? AND task = ?", key)
                mark = next((found["mark"] for found in marked), "")
                connection.execute("DELETE FROM story WHERE run = ? AND arm = ? AND task = ?", key)
                # The words of an earlier version stay under an id that no story has any more.
                identity = connection.execute("INSERT INTO words (task, advice, steps) VALUES (?, ?, ?)", text)
                columns = {"id": identity.lastrowid, **row, "mark": mark}
                names = ", ".join(columns)
                places = ", ".join(f":{name}" for name in columns)
                connection.execute(f"INSERT INTO story ({names}) VALUES ({places})", columns)
                connection.execute("DELETE FROM advice WHERE run = ? AND arm = ? AND task = ?", key)
                connection.executemany(f"INSERT INTO advice VALUES ({', '.join('?' * 10)})", pieces)


def arms_of(source: Source) -> list[str]:
    """Return the arms of a run that have stories."""
    return story_arms(source.store)


def _create(connection: sqlite3.Connection) -> None:
    for kind, name in connection.execute(
        "SELECT type, name FROM sqlite_master WHERE name IN ('story', 'advice', 'words')"
    ).fetchall():
        connection.execute(f"DROP {kind} {name}")
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _path_of(sources: Iterable[Source]) -> Path:
    named = "\n".join(sorted(f"{source.store.url} {source.name}" for source in sources))
    return cache_folder() / "view" / f"{sha256(named.encode()).hexdigest()[:16]}.db"


def _row(story: Story, facts: int) -> dict[str, object]:
    """Return the columns of a story."""
    attempts = [attempt for turn in story.turns for attempt in turn.attempts]
    ratings = [turn.rating for turn in story.turns if turn.rating is not None]
    solved = [turn.key.trial for turn in story.turns if turn.solved]
    return {
        "run": story.experiment,
        "arm": story.arm,
        "task": story.task.id,
        "facts": facts,
        "attempts": len(attempts),
        "trials": story.columns,
        "outcome": _outcome(story),
        "solved_at": min(solved, default=None),
        "first": story.chain[0].episode_return if story.chain else None,
        "last": story.chain[-1].episode_return if story.chain else None,
        "best": max(ratings, default=None),
        "worst": min(ratings, default=None),
        "flags": _joined(flag for turn in story.turns for flag in turn.flags),
        "actions": sum(len(attempt.steps) for attempt in attempts),
        "tokens": sum(attempt.usage.prompt_tokens + attempt.usage.completion_tokens for attempt in attempts),
        "advice": next((turn.advice[:300] for turn in reversed(story.chain) if turn.advice.strip()), ""),
    }


def _pieces(story: Story) -> list[tuple[object, ...]]:
    """Return the rows of the story's advice."""
    key = (story.experiment, story.arm, story.task.id)
    return [
        (
            *key,
            turn.key.trial,
            turn.key.candidate,
            turn.reflection.author.model,
            turn.advice[:_KEPT_CHARACTERS],
            turn.rating,
            _joined(turn.flags),
            turn.written_at.isoformat() if turn.written_at is not None else "",
        )
        for turn in story.turns
        if turn.reflection is not None
    ]


def _joined(flags: Iterable[str]) -> str:
    return " ".join(f"[{flag}]" for flag in sorted(set(flags)))


def _outcome(story: Story) -> str:
    """Return how the story ended: solved at once, solved after advice, failed, or invalid so far."""
    if any(turn.solved for turn in story.turns):
        return "solved at once" if story.turns[0].solved else "solved later"
    if story.causes or any(attempt.outcome is Outcome.INVALID for turn in story.turns for attempt in turn.attempts):
        return "invalid"
    return "failed"


def _advice_text(story: Story) -> str:
    return "\n".join(turn.advice for turn in story.turns)


def _step_text(story: Story) -> str:
    attempts: Iterable[Trajectory] = (attempt for turn in story.turns for attempt in turn.attempts)
    return "\n".join(chain.from_iterable(map(_texts, attempts)))


def _texts(attempt: Trajectory) -> Iterator[str]:
    yield attempt.opening
    for step in attempt.steps:
        yield from (step.thought, step.action, step.observation)
