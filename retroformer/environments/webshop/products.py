"""A product as WebShop's load_products leaves it, without images and reviews (the released shop has none)."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

NO_PRICE = 100.0
"""What a product without a price costs."""
_NO_NUMBER = re.compile(r"[^\d.]")
_LONGEST_ASIN = 10


class Product(NamedTuple):
    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]
    pricing: tuple[float, ...]
    """One price, or the two ends of a range."""
    query: str
    """The search under which the product was found when the data were collected, in lower case."""
    category: str
    """The department, such as `beauty`."""
    product_category: str
    """Names from wide to narrow, with the sign for `greater` between them."""
    options: tuple[tuple[str, tuple[str, ...]], ...]
    """Names with their values, all in lower case, in the order of the page."""
    attributes: tuple[str, ...]

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def categories(self) -> frozenset[str]:
        return frozenset(name.strip() for name in self.product_category.split("\u203a"))

    @property
    def contents(self) -> str:
        """What the search looks at: title, description, first bullet and options."""
        options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in self.options)
        return " ".join((self.title, self.description, *(self.bullets[:1] or ("",)), options)).lower()


def is_listed(row: Mapping[str, Any]) -> bool:
    """Whether a row of the data has a usable ASIN."""
    return row["asin"] != "nan" and len(row["asin"]) <= _LONGEST_ASIN


def product(row: Mapping[str, Any], attributes: tuple[str, ...]) -> Product:
    """A row of WebShop's products. Raises KeyError, TypeError or AttributeError for a row of another shape."""
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
    """At most two prices of a text such as `$1,299.00 - $1,499.00`, or of a list that was read from one."""
    if isinstance(price, list):
        return tuple(price[:2]) or (NO_PRICE,)
    try:
        prices = [float(Decimal(_NO_NUMBER.sub("", part))) for part in (price or "").split("$")[1:]]
    except InvalidOperation:
        prices = []
    return tuple(prices[:2]) or (NO_PRICE,)


def _options(customizations: Mapping[str, list[Mapping[str, Any]] | None]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Two names that differ in case are one; the later values win, at the earlier one's place."""
    named = {
        name.lower(): tuple(value["value"].strip().replace("/", " | ").lower() for value in values)
        for name, values in customizations.items()
        if values is not None
    }
    return tuple(named.items())
