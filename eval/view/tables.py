"""Tables of the index, and the orders in which stories are listed: each has an SQL index."""

from typing import NamedTuple


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
