"""Product as returned by WebShop's load_products, without images and reviews (the released shop has none)."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

NO_PRICE = 100.0
"""Price of a product whose data have none."""
_NO_NUMBER = re.compile(r"[^\d.]")
_LONGEST_ASIN = 10


class Product(NamedTuple):
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
    bullets = row["small_description"]
    return Product(
        asin=row["asin"],
        title=row["name"],
        description=row["full_description"] or "",
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
