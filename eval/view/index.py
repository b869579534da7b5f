"""Index of all stories, derived from the stores: what the table of stories sorts, filters and searches.

It is a SQLite file in the cache folder, never in the run. Facts are immutable, so a story is indexed again only when
the hash of its facts has changed. Losing the file costs only the time to build it again.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path

from retroformer.coach.stories.reading import story_arms, stream_stories
from retroformer.coach.stories.runs import OpenRun
from retroformer.coach.stories.story import Story, Turn
from retroformer.errors import StoreError
from retroformer.files.cache import cache_folder
from retroformer.method.records import Outcome
from retroformer.method.repetition import texts_of, words_of
from retroformer.run.store.rows import ArmCounts

SORTS = {
    "task": "task, run, arm",
    "attempts": "attempts DESC, task, run, arm",
    "first": "ifnull(first, -9e999) DESC, task, run, arm",
    "last": "ifnull(last, -9e999) DESC, task, run, arm",
    "best": "ifnull(best, -9e999) DESC, task, run, arm",
    "worst": "ifnull(worst, 9e999), task, run, arm",
    "actions": "actions DESC, task, run, arm",
    "tokens": "tokens DESC, task, run, arm",
}
"""Orders by the name of the column that a reader clicks; stories without a value come last."""

_VERSION = 6
"""Changes with the tables: a file of another version is built anew."""
_NAMES = ("story", "advice", "words")
_TABLES = """
CREATE TABLE story (
    id INTEGER PRIMARY KEY, run TEXT, arm TEXT, task TEXT, facts TEXT, attempts INTEGER, trials INTEGER,
    outcome TEXT, solved_at INTEGER, first REAL, last REAL, best REAL, worst REAL, flags TEXT, actions INTEGER,
    tokens INTEGER, mark TEXT DEFAULT '', advice TEXT
);
CREATE UNIQUE INDEX story_key ON story (run, arm, task);
CREATE INDEX story_outcome ON story (run, arm, outcome, solved_at, trials, task);
CREATE INDEX story_mark ON story (mark) WHERE mark != '';
CREATE TABLE advice (
    run TEXT, arm TEXT, task TEXT, model TEXT, rating REAL, words INTEGER, flags TEXT, written_at TEXT
);
CREATE INDEX advice_key ON advice (run, arm, task);
CREATE INDEX advice_model ON advice (run, arm, model, words, rating, flags, written_at);
CREATE VIRTUAL TABLE words USING fts5(task, advice, steps, content='', detail=none, tokenize='unicode61');
"""
"""`words` has no positions: a search needs none, and those of a frequent word would take longer to read than a page may
take."""


_OWN = "WHERE run = ? AND arm = ? AND task = ?"
_SHOWN_CHARACTERS = 300
"""Characters of the last advice in the table of stories."""
_WRITE_BATCH = 20
"""Stories that are written together: more take less time each, but a page may have to wait for them."""


class Index:
    """Index of the stories of some runs. Any thread may use it; one thread at a time updates it."""

    def __init__(self, sources: Sequence[OpenRun], path: Path | None = None) -> None:
        self._sources = sources
        self.path = path or _path_of(sources)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._updating = threading.Lock()
        self._indexed: dict[tuple[OpenRun, str], tuple[ArmCounts, ...]] = {}
        """Number of facts of each arm, and of the arm that it shares, when it was last indexed whole."""
        self.done, self.total = 0, 0
        """Number of changed stories that are indexed, and of all that have changed."""
        self._facts = ""
        with self.connect() as connection:
            if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
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
        return f"{sha256(self._facts.encode()).hexdigest()[:16]}.{self.done}"

    def update(self, stopped: threading.Event | None = None) -> int:
        """Index every story whose facts have changed; return their number. Stops early if `stopped` is set."""
        with self._updating:
            self.update_marks()
            arms = {(source, arm): names for source in self._sources for arm, names in story_arms(source.store).items()}
            by_source = {source: source.store.arm_counts() for source in self._sources}
            # While a store is open its facts never change, so their numbers are a version of them.
            counts = {
                (source, arm): tuple(by_source[source].get(name, ArmCounts()) for name in names)
                for (source, arm), names in arms.items()
            }
            self._facts = repr([(source.name, arm, arm_counts) for (source, arm), arm_counts in counts.items()])
            if not self._indexed:
                self._forget_missing_arms(arms)
            new = [key for key, arm_counts in counts.items() if self._indexed.get(key) != arm_counts]
            changed = {key: self._stale_stories(*key, arms[key]) for key in new}
            self.done, self.total = 0, sum(map(len, changed.values()))
            for (source, arm), facts in changed.items():
                stories = stream_stories(source.store, arm, list(facts), source.leaks)
                while batch := list(islice(stories, _WRITE_BATCH)):
                    if stopped is not None and stopped.is_set():
                        return self.done
                    with self.connect() as connection:
                        for story in batch:
                            _write_story(connection, story, facts[story.task.key])
                    self.done += len(batch)
                self._indexed[source, arm] = counts[source, arm]
            return self.done

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
            connection.executemany(f"UPDATE story SET mark = ? {_OWN}", changed)

    def holds(self, run: str, arm: str, task: str) -> bool:
        """Return True if there is a story of this task."""
        with self.connect() as connection:
            return connection.execute(f"SELECT 1 FROM story {_OWN}", (run, arm, task)).fetchone() is not None

    def _stale_stories(self, source: OpenRun, arm: str, names: Sequence[str]) -> dict[str, str]:
        """Return the hash of the facts of each story that is not indexed as it is now."""
        facts = dict[str, str]()
        for name in names:
            for task_id, version in source.store.fact_versions(name).items():
                facts[task_id] = facts.get(task_id, "") + version
        with self.connect() as connection:
            query = "SELECT task, facts FROM story WHERE run = ? AND arm = ?"
            indexed = {row["task"]: row["facts"] for row in connection.execute(query, (source.name, arm))}
            for task_id in indexed.keys() - facts.keys():
                _delete_story(connection, (source.name, arm, task_id))
        return {task_id: version for task_id, version in facts.items() if indexed.get(task_id) != version}

    def _forget_missing_arms(self, arms: Iterable[tuple[OpenRun, str]]) -> None:
        """Remove the stories of arms that are not in their store: it was replaced by another."""
        present = {(source.name, arm) for source, arm in arms}
        with self.connect() as connection:
            rows = connection.execute("SELECT DISTINCT run, arm FROM story").fetchall()
            for arm in {(row["run"], row["arm"]) for row in rows} - present:
                connection.execute("DELETE FROM story WHERE run = ? AND arm = ?", arm)
                connection.execute("DELETE FROM advice WHERE run = ? AND arm = ?", arm)


def _create(connection: sqlite3.Connection) -> None:
    query = f"SELECT type, name FROM sqlite_master WHERE name IN ({', '.join('?' * len(_NAMES))})"
    for kind, name in connection.execute(query, _NAMES).fetchall():
        connection.execute(f"DROP {kind} {name}")
    connection.executescript(_TABLES)
    for name, order in SORTS.items():
        connection.execute(f"CREATE INDEX story_by_{name} ON story ({order})")
    connection.execute(f"PRAGMA user_version = {_VERSION}")


def _path_of(sources: Iterable[OpenRun]) -> Path:
    """Return the index file of these runs: by their folders, and by whether a config offers a check for leaks."""
    named = "\n".join(
        sorted(
            f"{source.folder.absolute()} {source.store.url} {source.name} {source.experiment is not None}"
            for source in sources
        )
    )
    return cache_folder() / "view" / f"{sha256(named.encode()).hexdigest()[:16]}.db"


def _write_story(connection: sqlite3.Connection, story: Story, facts: str) -> None:
    """Replace a story, with this hash of its facts, and its advice."""
    key = (story.experiment, story.arm, story.task.key)
    mark = next((row["mark"] for row in connection.execute(f"SELECT mark FROM story {_OWN}", key)), "")
    _delete_story(connection, key)
    # Retries repeat much of what they read, so each text is kept once.
    steps = dict.fromkeys(text for turn in story.turns for attempt in turn.attempts for text in texts_of(attempt))
    texts = (story.task.key, "\n".join(turn.advice for turn in story.turns), "\n".join(steps))
    # The full-text entry of the earlier version stays under an id that no story has.
    identity = connection.execute("INSERT INTO words (task, advice, steps) VALUES (?, ?, ?)", texts).lastrowid
    run, arm, task = key
    columns = {"id": identity, "run": run, "arm": arm, "task": task, "facts": facts, "mark": mark, **_row(story)}
    places = ", ".join(f":{name}" for name in columns)
    connection.execute(f"INSERT INTO story ({', '.join(columns)}) VALUES ({places})", columns)
    for turn in story.turns:
        if turn.reflection is not None:
            _write_advice(connection, key, turn, turn.reflection.author.model)


def _delete_story(connection: sqlite3.Connection, key: tuple[str, str, str]) -> None:
    """Remove a story and its advice, if there is one."""
    connection.execute(f"DELETE FROM story {_OWN}", key)
    connection.execute(f"DELETE FROM advice {_OWN}", key)


def _write_advice(connection: sqlite3.Connection, key: tuple[str, str, str], turn: Turn, model: str) -> None:
    """Add a piece of advice."""
    written_at = turn.written_at.isoformat() if turn.written_at is not None else ""
    row = (*key, model, turn.rating, len(words_of(turn.advice)), _flag_list(turn.flags), written_at)
    connection.execute(f"INSERT INTO advice VALUES ({', '.join('?' * len(row))})", row)


def _row(story: Story) -> dict[str, object]:
    """Return the columns of the table of stories that are not its key."""
    attempts = [attempt for turn in story.turns for attempt in turn.attempts]
    advice = [turn.reflection for turn in story.turns if turn.reflection is not None]
    ratings = [turn.rating for turn in story.turns if turn.rating is not None]
    solved = [turn.key.trial for turn in story.turns if turn.solved]
    tried = [turn for turn in story.chain if turn.attempt is not None]
    return {
        "attempts": len(attempts),
        "trials": story.columns,
        "outcome": _outcome(story),
        "solved_at": min(solved, default=None),
        "first": tried[0].episode_return if tried else None,
        "last": tried[-1].episode_return if tried else None,
        "best": max(ratings, default=None),
        "worst": min(ratings, default=None),
        "flags": _flag_list(flag for turn in story.turns for flag in turn.flags),
        "actions": sum(len(attempt.steps) for attempt in attempts),
        "tokens": sum(attempt.usage.tokens for attempt in attempts) + sum(text.usage.tokens for text in advice),
        "advice": next((turn.advice[:_SHOWN_CHARACTERS] for turn in reversed(story.chain) if turn.advice.strip()), ""),
    }


def _flag_list(flags: Iterable[str]) -> str:
    return " ".join(f"[{flag}]" for flag in sorted(set(flags)))


def _outcome(story: Story) -> str:
    """Return how the story ended: solved at once, solved later, failed, or invalid if the infrastructure stopped it."""
    if any(turn.solved for turn in story.turns):
        return "solved at once" if any(turn.solved and not turn.key.trial for turn in story.turns) else "solved later"
    if story.blocked or any(attempt.outcome is Outcome.INVALID for turn in story.turns for attempt in turn.attempts):
        return "invalid"
    return "failed"
