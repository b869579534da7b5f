"""WebShop's files in a folder, each also as `.xz` and in UTF-8; of several matching files the first is read.

    items_shuffle*.json or products*_full.jsonl   products: a JSON array, or one object a line
    items_ins_v2*.json                            {asin: {"attributes": [...], "instruction": ..., ...}}
    items_human_ins*.json                         {asin: [{"instruction": ..., ...}, ...]}; optional
    goals_KIND*.jsonl                             goals in order, KIND is synthetic or human; optional
    product_prices*.json                          {asin: price}; optional
    title_nouns*.json                             {asin: [nouns of its title, ...]}; optional

The optional files of goals and prices hold what WebShop draws at random at each start; without them it is drawn from a
fixed seed. Arrays and objects are read entry by entry: the file of 1.18 million products has 5 GB.
"""

import io
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import IO, Any, NamedTuple

from retroformer.errors import MissingInput
from retroformer.files.bounded import GIB, MIB, json_fault, json_rows, open_limited, size

PRODUCTS = ("items_shuffle*.json", "products*_full.jsonl")
ATTRIBUTES = ("items_ins_v2*.json",)
HUMAN_INSTRUCTIONS = ("items_human_ins*.json",)
PRICES = ("product_prices*.json",)
TITLE_NOUNS = ("title_nouns*.json",)
_CHUNK = 1 << 20
_ENTRY_BYTES = 16 * MIB
"""Maximum size of one product. The longest of the thousand-product shop has 34 kB."""
_ROWS_BYTES = 64 * GIB
"""Maximum size of a file read row by row. The file of 1.18 million products has 5 GB."""
_ITEMS_BYTES = GIB
"""Maximum size of an object; some are held in memory. The nouns of 1.18 million titles would have 170 MB."""
_JSON = json.JSONDecoder()


def goals_of(kind: str) -> tuple[str, ...]:
    """Return the file name patterns of goals of this kind."""
    return (f"goals_{kind}*.jsonl",)


def find(folder: Path, patterns: tuple[str, ...]) -> Path | None:
    """Return the first file that matches a pattern, with or without `.xz`: by pattern, then alphabetically."""
    matches = [path for pattern in patterns for end in ("", ".xz") for path in sorted(folder.glob(pattern + end))]
    return matches[0] if matches else None


def require(folder: Path, patterns: tuple[str, ...]) -> Path:
    """Return the file as `find` does. Raises MissingInput if there is none."""
    path = find(folder, patterns)
    if path is None:
        raise MissingInput(
            f"Neither {' nor '.join(patterns)}, plain or as .xz, in {str(folder)!r}: "
            "set environment.data to a folder with WebShop's data."
        )
    return path


def rows(path: Path) -> Iterator[Any]:
    """Yield the objects of an array or of JSON lines. Raises MissingInput if the file is damaged or differs."""
    if path.name.removesuffix(".xz").endswith(".jsonl"):
        wanted = "environment.data must name a folder with WebShop's own files"
        for _, row in json_rows(path, lambda row: row, wanted, line_bytes=_ENTRY_BYTES, most_bytes=_ROWS_BYTES):
            yield row
        return
    with _reading(path, _ROWS_BYTES) as text:
        yield from (value for _, value in _entries(text, "["))


def items(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of an object. Raises MissingInput if the file is damaged or of another shape."""
    with _reading(path, _ITEMS_BYTES) as text:
        yield from _entries(text, "{")


@contextmanager
def _reading(path: Path, most_bytes: int) -> Iterator[IO[str]]:
    try:
        with open_limited(path, most_bytes) as stream, io.TextIOWrapper(stream, encoding="utf-8-sig") as text:
            yield text
    except (EOFError, ValueError) as error:
        raise MissingInput(f"{path} is damaged ({error}): get a fresh copy.") from error


def _entries(text: IO[str], opening: str) -> Iterator[tuple[str, Any]]:
    """Yield the entries of the one array (with empty keys) or object in a stream, decoded as they arrive."""
    waiting, number = _Waiting(text), 0
    if waiting.next_sign() != opening:
        raise ValueError(f"it does not begin with {opening!r}")
    while (sign := waiting.peek()) not in "]}":
        if sign == ",":
            waiting.next_sign()
            continue
        number += 1
        key = ""
        if opening == "{":
            key = waiting.value(number)
            if waiting.next_sign() != ":":
                raise ValueError(f"no value for {key!r}")
        yield key, waiting.value(number)


class _Waiting:
    """Text of a stream that is read and not yet decoded."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream, self._text, self._place = stream, "", 0

    def peek(self) -> str:
        """Return the next non-blank character without consuming it."""
        while True:
            while self._place < len(self._text) and self._text[self._place] in " \t\r\n":
                self._place += 1
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more():
                raise EOFError("it ends too early")

    def next_sign(self) -> str:
        sign = self.peek()
        self._place += 1
        return sign

    def value(self, number: int) -> Any:
        """Return the next value. An incomplete one is retried with twice the text, so that reading stays linear.

        Raises ValueError.
        """
        self.peek()
        wanted = _CHUNK
        while True:
            try:
                value, end = _JSON.raw_decode(self._text, self._place)
                if end < len(self._text) or not self._more():
                    if fault := json_fault(value, self._text[self._place : end]):
                        raise ValueError(f"entry {number} {fault}")
                    self._place = end
                    return value
            except RecursionError:
                raise ValueError(f"entry {number} is nested too deep") from None
            except json.JSONDecodeError as error:
                if len(self._text) - self._place > _ENTRY_BYTES:
                    raise ValueError(f"entry {number} is longer than {size(_ENTRY_BYTES)}, or is not JSON") from None
                if not self._more(wanted):
                    raise ValueError(f"entry {number} is not JSON: {error.msg}") from None
                wanted *= 2

    def _more(self, characters: int = _CHUNK) -> bool:
        """Read more text; return False at the end of the stream."""
        read = self._stream.read(characters)
        self._text, self._place = self._text[self._place :] + read, 0
        return bool(read)


NO_PRICE = 100.0
"""Price of a product whose data have none."""
_NO_NUMBER = re.compile(r"[^\d.]")
_LONGEST_ASIN = 10


class Product(NamedTuple):
    """Product as WebShop's load_products returns it, without images and reviews (the released shop has none)."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]
    """One price, or both ends of a range."""
    query: str
    """Search under which the product was found when the data were collected, in lower case."""
    category: str
    """Department, such as `beauty`."""
    product_category: str
    """Category names from broad to narrow, separated by the sign for `greater`."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Option names with their values, all in lower case, in page order."""
    attributes: tuple[str, ...]

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.product_category.split("\u203a"))

    @property
    def contents(self) -> str:
        """Text that the search indexes: title, description, first bullet and options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return " ".join((self.title, self.description, *(self.bullets[:1] or ("",)), options)).lower()


def is_listed(row: Mapping[str, Any]) -> bool:
    """Return True if a row of the data has a usable ASIN."""
    return row["asin"] != "nan" and len(row["asin"]) <= _LONGEST_ASIN


def product(row: Mapping[str, Any], attributes: tuple[str, ...]) -> Product:
    """Return the product of a row of WebShop's data. Raises KeyError, TypeError or AttributeError if malformed."""
    # JSON lines come without the fields that are null.
    bullets = row.get("small_description")
    return Product(
        asin=row["asin"],
        title=row["name"],
        description=row.get("full_description") or "",
        bullets=tuple(bullets) if isinstance(bullets, list) else (bullets or "",),
        pricing=_pricing(row.get("pricing")),
        query=row["query"].lower().strip(),
        category=row["category"],
        product_category=row["product_category"],
        options=_options(row.get("customization_options") or {}),
        attributes=attributes,
    )


def _pricing(price: str | list[float] | None) -> tuple[float, ...]:
    """Return at most two prices of a text such as `$1,299.00 - $1,499.00`, or of a list parsed from one."""
    if isinstance(price, list):
        return tuple(price[:2]) or (NO_PRICE,)
    try:
        prices = [float(Decimal(_NO_NUMBER.sub("", part))) for part in (price or "").split("$")[1:]]
    except InvalidOperation:
        prices = []
    return tuple(prices[:2]) or (NO_PRICE,)


def _options(customizations: Mapping[str, list[Mapping[str, Any]] | None]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return options by name; of names that differ only in case, the later values win, at the earlier position."""
    named = {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in customizations.items()
        if values is not None
    }
    return tuple(named.items())


_LETTERS = re.compile(r"[^\W\d_]+")
_WORDS = """
    a an and are as at be but by can for from has have in into is it its no not of off on or our out so such that the
    their them then there these they this through to up was we which will with without you your my i back down each
    other than too very over under per via plus only one two three etc s t d x e p r ml mp pcs full large
    include includes including included made make makes use used using wear wearing fits suitable designed based
"""
_NO_NOUNS = frozenset(_WORDS.split())


def approximate_nouns(title: str) -> tuple[str, ...]:
    """Return the words of a title that may be nouns, in lower case, repetitions included.

    WebShop gets nouns from spaCy's tagger, and title_nouns.json has those. For a product that is missing there, this is
    all words except function words and units. (The tagger takes most adjectives of a title for names.) On the 1,000
    products with a table, both give the same r_type for 97 of 100 random pairs of products, and for 94 of 100 pairs of
    a wanted product and a result of a search for it.
    """
    words = (word.lower() for word in _LETTERS.findall(title))
    return tuple(word for word in words if word not in _NO_NOUNS)
