"""Shop as seen by a customer with one goal."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from retroformer.environments.webshop import pages
from retroformer.environments.webshop.pages import Page
from retroformer.environments.webshop.products import Product
from retroformer.environments.webshop.shop import Shop

Score = Callable[[str, Mapping[str, str]], float]
"""Function of an ASIN and chosen options that returns the reward of buying that product."""


class Answer(NamedTuple):
    """Answer of a site to an action."""

    observation: str
    reward: float = 0.0
    bought: bool = False


class Customer:
    """Customer with one instruction, which is on all pages."""

    def __init__(self, shop: Shop, instruction: str, score: Score) -> None:
        self._shop, self._instruction = shop, instruction
        self.score = score

    def find(self, keywords: str) -> tuple[str, ...]:
        """Return the products for these words, best first."""
        return self._shop.search(keywords)

    def search_page(self) -> Page:
        return pages.search_page(self._instruction)

    def results_page(self, results: tuple[str, ...], number: int) -> Page:
        """Return one page of the results; beyond the last page it lists no products."""
        end = max(0, number) * pages.PRODUCTS_ON_A_PAGE
        shown = [self._product(asin) for asin in results[max(0, end - pages.PRODUCTS_ON_A_PAGE) : end]]
        return pages.results_page(self._instruction, number, len(results), shown)

    def item_page(self, asin: str) -> Page:
        return pages.item_page(self._instruction, self._product(asin))

    def sub_page(self, asin: str, name: str) -> Page:
        return pages.sub_page(self._instruction, self._product(asin), name)

    def _product(self, asin: str) -> Product:
        entry = self._shop.product(asin)
        assert entry, asin  # Every ASIN on a page came from the shop.
        return entry[0]
