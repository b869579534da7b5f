"""Shop in one SQLite file that is built once: its products with prices, and the search index over them.

    product(id, asin, price, record, instruction, human)   record is a Product as JSON; the last two make goals
    drawn(state)                                           state of the generator once all prices are drawn
    posting, length, place                                 the index (search.py)

Nothing is read before it is needed, so a shop of a thousand products and one of a million open equally fast. The file's
name has a key of the data: new data make a new file.
"""

import json
import random
import sqlite3
import weakref
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from retroformer.environments.webshop import data
from retroformer.environments.webshop.data import Product, approximate_nouns, is_listed, product
from retroformer.environments.webshop.goals import (
    PRICE_SEED,
    GoalKind,
    Goals,
    GoalSource,
    ShoppingGoal,
    frozen,
    make_goals,
    recorded_goal,
    write_goals,
)
from retroformer.environments.webshop.search import IndexWriter, SearchIndex
from retroformer.errors import MissingInput
from retroformer.files.cache import build_once, cache_folder, key_of, open_read_only

FORMAT = 1
"""Format version, part of the files' names; raise it when the tables change."""
NO_ATTRIBUTES = ("DUMMY_ATTR",)
_TABLES = """
    CREATE TABLE product(
        id INTEGER PRIMARY KEY, asin TEXT UNIQUE, price REAL, record TEXT, instruction TEXT, human TEXT
    );
    CREATE TABLE drawn(state TEXT);
    CREATE TEMP TABLE attribute(asin TEXT PRIMARY KEY, entry TEXT);
"""


class Shop:
    """Products of a folder, and the goals made from them."""

    def __init__(self, folder: Path) -> None:
        """Build the file of the products unless it exists, and open it. Raises MissingInput."""
        self._folder = folder
        sources = [data.require(folder, data.PRODUCTS), data.require(folder, data.ATTRIBUTES)]
        optional = (data.HUMAN_INSTRUCTIONS, data.PRICES)
        self._sources = sources + [path for names in optional if (path := data.find(folder, names))]
        self._database = self._open(self._path("shop", self._sources), lambda database: _write_shop(database, folder))
        weakref.finalize(self, self._database.close)
        self.product = lru_cache(maxsize=10_000)(self._product)

    @cached_property
    def index(self) -> SearchIndex:
        return SearchIndex(self._database)

    def search(self, keywords: str) -> tuple[str, ...]:
        """Return the ASINs of the first 50 products for these words."""
        find = "SELECT asin FROM product WHERE id = ?"
        return tuple(self._database.execute(find, (number,)).fetchone()[0] for number in self.index.search(keywords))

    def nouns(self, item: Product) -> tuple[str, ...]:
        tagged = self._title_nouns.get(item.asin)
        return approximate_nouns(item.title) if tagged is None else tuple(tagged)

    def goals(self, kind: GoalKind) -> Goals:
        """Return the goals of a kind. Raises MissingInput."""
        recorded = data.find(self._folder, data.goals_of(kind))
        path = self._path(f"{kind}-goals", self._sources + ([recorded] if recorded else []))
        return Goals(self._open(path, lambda database: self._write_goals(database, kind, recorded)))

    @cached_property
    def _title_nouns(self) -> Mapping[str, list[str]]:
        path = data.find(self._folder, data.TITLE_NOUNS)
        return dict(data.items(path)) if path else {}

    def _path(self, name: str, sources: list[Path]) -> Path:
        return cache_folder() / "webshop" / f"{name}-{key_of(sources)}-{FORMAT}.sqlite"

    def _open(self, path: Path, write: Any) -> sqlite3.Connection:
        try:
            return open_read_only(build_once(path, write))
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError, sqlite3.ProgrammingError) as error:
            raise MissingInput(
                f"The data in {str(self._folder)!r} are JSON of another shape ({type(error).__name__}: {error}): "
                "environment.data must name a folder with WebShop's own files."
            ) from error

    def _product(self, asin: str) -> tuple[Product, float]:
        """Return a product and its price; `product` remembers it. Raises KeyError if no product has this ASIN."""
        row = self._database.execute("SELECT record, price FROM product WHERE asin = ?", (asin,)).fetchone()
        if row is None:
            raise KeyError(asin)
        return _from_json(row[0]), row[1]

    def _write_goals(self, database: sqlite3.Connection, kind: GoalKind, recorded: Path | None) -> None:
        if recorded:
            write_goals(database, self._with_product(recorded_goal(row) for row in data.rows(recorded)), shuffle=False)
            return
        (state,) = self._database.execute("SELECT state FROM drawn").fetchone()
        version, internal, gauss = json.loads(state)
        generator = random.Random()
        generator.setstate((version, tuple(internal), gauss))
        write_goals(database, make_goals(kind, self._wanted(kind), generator), shuffle=True)

    def _wanted(self, kind: GoalKind) -> Iterator[GoalSource]:
        column = "instruction" if kind == "synthetic" else "human"
        rows = self._database.execute(
            f"SELECT record, price, {column} FROM product WHERE {column} IS NOT NULL ORDER BY id"
        )
        return (GoalSource(_from_json(record), price, json.loads(texts)) for record, price, texts in rows)

    def _with_product(self, goals: Iterator[ShoppingGoal]) -> Iterator[ShoppingGoal]:
        for goal in goals:
            try:
                self.product(goal.asin)
            except KeyError:
                raise MissingInput(
                    f"A goal in {str(self._folder)!r} asks for the product {goal.asin!r}, which is not among the "
                    "products: its file belongs to other data."
                ) from None
            yield goal


def _write_shop(database: sqlite3.Connection, folder: Path) -> None:
    database.executescript(_TABLES)
    entries = data.items(data.require(folder, data.ATTRIBUTES))
    database.executemany("INSERT OR REPLACE INTO attribute VALUES (?, ?)", ((k, json.dumps(v)) for k, v in entries))
    human_file, price_file = data.find(folder, data.HUMAN_INSTRUCTIONS), data.find(folder, data.PRICES)
    human = dict(data.items(human_file)) if human_file else {}
    prices = dict(data.items(price_file)) if price_file else {}
    generator, index = random.Random(PRICE_SEED), IndexWriter(database)
    for number, (row, entry) in enumerate(_listed_rows(database, folder)):
        item = product(row, tuple(entry.get("attributes", NO_ATTRIBUTES)))
        if item.asin in prices:
            price = prices[item.asin]
        else:
            price = generator.uniform(*item.pricing) if len(item.pricing) == 2 else item.pricing[0]
        instruction = json.dumps(entry) if entry.get("instruction") is not None else None
        texts = human.get(item.asin) or row.get("instructions")
        values = (number, item.asin, price, json.dumps(item), instruction, json.dumps(texts) if texts else None)
        database.execute("INSERT INTO product VALUES (?, ?, ?, ?, ?, ?)", values)
        index.add(item.asin, item.contents)
    index.finish()
    database.execute("INSERT INTO drawn VALUES (?)", (json.dumps(generator.getstate()),))


def _listed_rows(database: sqlite3.Connection, folder: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each product's row with its attribute entry; of rows with the same ASIN only the first."""
    seen = set[str]()
    for row in data.rows(data.require(folder, data.PRODUCTS)):
        if is_listed(row) and row["asin"] not in seen:
            seen.add(row["asin"])
            stored = database.execute("SELECT entry FROM attribute WHERE asin = ?", (row["asin"],)).fetchone()
            yield row, json.loads(stored[0]) if stored else {}


def _from_json(record: str) -> Product:
    return Product._make(frozen(json.loads(record)))
