"""The shop as a customer with one goal walks through it."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from retroformer.environments.webshop import pages
from retroformer.environments.webshop.pages import Page
from retroformer.environments.webshop.products import Product
from retroformer.environments.webshop.shop import Shop

Score = Callable[[str, Mapping[str, str]], float]
"""The reward of buying the product of an ASIN with chosen options."""


class Answer(NamedTuple):
    """What a site says to an action."""

    observation: str
    reward: float = 0.0
    bought: bool = False


class Site(Protocol):
    """One of the ways in which WebShop's experiments walk through the shop."""

    def show(self) -> str:
        """The page that is open."""
        ...

    def choices(self) -> tuple[str, ...]:
        """The clicks that do something on this page."""
        ...

    def act(self, action: str) -> Answer:
        """Do what an action asks for, if it makes sense."""
        ...


class Customer:
    """Who looks at pages: the shop with one instruction, which is on all of them."""

    def __init__(self, shop: Shop, instruction: str, score: Score) -> None:
        self._shop, self._instruction = shop, instruction
        self.score = score

    def find(self, keywords: str) -> tuple[str, ...]:
        """The products for these words, best first."""
        return self._shop.search(keywords)

    def search_page(self) -> Page:
        return pages.search_page(self._instruction)

    def results_page(self, found: tuple[str, ...], number: int) -> Page:
        """Some page of what was found; beyond the last one there are no products."""
        end = max(0, number) * pages.PRODUCTS_ON_A_PAGE
        shown = [self._product(asin) for asin in found[max(0, end - pages.PRODUCTS_ON_A_PAGE) : end]]
        return pages.results_page(self._instruction, number, len(found), shown)

    def item_page(self, asin: str) -> Page:
        return pages.item_page(self._instruction, self._product(asin))

    def sub_page(self, asin: str, name: str) -> Page:
        return pages.sub_page(self._instruction, self._product(asin), name)

    def _product(self, asin: str) -> Product:
        found = self._shop.product(asin)
        assert found, asin  # Every ASIN on a page came from the shop.
        return found[0]
