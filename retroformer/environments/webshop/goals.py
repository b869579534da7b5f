"""Goals of customers with their instructions, made from products as in WebShop's get_goals.

    goal(number, asin, instruction, attributes, options, price_upper)   in the order of creation
    place(idx, number)                                                  order after WebShop's shuffle

WebShop draws prices and price limits anew at each start; here they are drawn once, from a fixed seed.
"""

import itertools
import json
import random
import sqlite3
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from retroformer.environments.webshop.data import Product
from retroformer.errors import UnknownTask

GoalKind = Literal["synthetic", "human"]
PRICE_SEED = 0
"""Seed for prices within a range, then for price limits."""
_SHUFFLE_SEED = 233
_LIMITS = tuple(10.0 * step for step in range(1, 100))
_NEXT_LIMITS = 4
_NO_LIMIT = 1_000_000.0
_TABLES = """
    CREATE TABLE goal(
        number INTEGER PRIMARY KEY, asin TEXT, instruction TEXT, attributes TEXT, options TEXT, price_upper REAL
    );
    CREATE TABLE place(idx INTEGER PRIMARY KEY, number INTEGER);
"""


class ShoppingGoal(NamedTuple):
    asin: str
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str] | str, ...]
    """Name and value for a synthetic goal, only the value for a human one."""
    price_upper: float


class GoalSource(NamedTuple):
    """Product from which goals are made, with its part of the data."""

    product: Product
    price: float
    texts: Any
    """{"instruction": ..., "instruction_attributes": [...]}, or a list of those with `instruction_options` added."""


def make_goals(kind: GoalKind, sources: Iterable[GoalSource], generator: random.Random) -> Iterator[ShoppingGoal]:
    """Yield all goals of these products, not yet shuffled."""
    for item in sources:
        yield from _synthetic(item, generator) if kind == "synthetic" else _human(item, generator)


def recorded_goal(row: Mapping[str, Any]) -> ShoppingGoal:
    """Return the goal of a row of a file."""
    options = row["goal_options"]
    return ShoppingGoal(
        asin=row["asin"],
        instruction=row["instruction_text"],
        attributes=tuple(row["attributes"]),
        options=tuple(options.items()) if isinstance(options, dict) else tuple(options),
        price_upper=row["price_upper"],
    )


def _synthetic(source: GoalSource, generator: random.Random) -> Iterator[ShoppingGoal]:
    """Yield one goal per combination of the product's options, all with the same price limit."""
    limit, limit_text = _price_limit(source.price, generator)
    named = sorted(source.product.options)
    for values in itertools.product(*(values for _, values in named)):
        options = tuple((name, value) for (name, _), value in zip(named, values, strict=True))
        option_text = ", and ".join(f"{name}: {value}" for name, value in options)
        instruction = source.texts["instruction"] + (f" with {option_text}" if options else "") + limit_text
        attributes = tuple(source.texts["instruction_attributes"])
        yield ShoppingGoal(source.product.asin, instruction, attributes, options, limit)


def _human(source: GoalSource, generator: random.Random) -> Iterator[ShoppingGoal]:
    """Yield one goal per instruction that names attributes."""
    for text in source.texts:
        if attributes := tuple(text["instruction_attributes"]):
            limit, limit_text = _price_limit(source.price, generator)
            instruction = text["instruction"].strip(".") + limit_text
            yield ShoppingGoal(source.product.asin, instruction, attributes, tuple(text["instruction_options"]), limit)


def _price_limit(price: float, generator: random.Random) -> tuple[float, str]:
    """Return the larger of two of the next four multiples of ten dollars, and its text; no limit from 980 dollars."""
    above = [limit for limit in _LIMITS if limit > price][:_NEXT_LIMITS]
    if len(above) < 2:
        return _NO_LIMIT, ""
    limit = max(generator.sample(above, 2))
    return limit, f", and price lower than {limit:.2f} dollars"


def write_goals(database: sqlite3.Connection, goals: Iterable[ShoppingGoal], *, shuffle: bool) -> None:
    """Store goals; a goal's idx is its position after WebShop's shuffle, or in an already shuffled file."""
    database.executescript(_TABLES)
    rows = (
        (number, goal.asin, goal.instruction, json.dumps(goal.attributes), json.dumps(goal.options), goal.price_upper)
        for number, goal in enumerate(goals)
    )
    database.executemany("INSERT INTO goal VALUES (?, ?, ?, ?, ?, ?)", rows)
    (count,) = database.execute("SELECT count(*) FROM goal").fetchone()
    order = list(range(count))
    if shuffle:
        # A shuffle depends only on the length, so shuffling numbers gives the order of the shuffled goals.
        random.Random(_SHUFFLE_SEED).shuffle(order)
    database.executemany("INSERT INTO place VALUES (?, ?)", enumerate(order))


def frozen(value: Any) -> Any:
    """Return a value of JSON with tuples for lists."""
    return tuple(map(frozen, value)) if isinstance(value, list) else value


class Goals:
    """Goals of a database, which is closed with this object."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        weakref.finalize(self, database.close)

    def goal(self, task_id: str) -> ShoppingGoal:
        """Return the goal at the index that a task's id is. Raises UnknownTask."""
        row = None
        if task_id.isdecimal() and len(task_id) < 10:
            find = "SELECT asin, instruction, attributes, options, price_upper FROM place JOIN goal USING (number)"
            row = self._database.execute(f"{find} WHERE idx = ?", (int(task_id),)).fetchone()
        if row is None:
            raise UnknownTask(f"No goal {task_id!r} in this WebShop data: --list prints the ids.")
        asin, instruction, attributes, options, price_upper = row
        return ShoppingGoal(asin, instruction, frozen(json.loads(attributes)), frozen(json.loads(options)), price_upper)

    def asins(self) -> list[str]:
        """Return the product of every goal, in order."""
        rows = self._database.execute("SELECT asin FROM place JOIN goal USING (number) ORDER BY idx")
        return [asin for (asin,) in rows]
