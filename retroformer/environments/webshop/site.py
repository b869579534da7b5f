"""Web site as used in ReAct's and Reflexion's experiments, seen by a customer with one goal.

Actions are `search[words]`, on the search page only, `click[button, product or option]`, spelled as on the page,
`think[...]`, answered by `OK.`, and `reset`, which returns to the start. Everything else is an `Invalid action!`,
including Next > and < Prev on a page of results. A search shows its three best products; the other seven of the first
page can be clicked as well.

The experiments read the site over HTTP, and three of its quirks are part of them:

1. An address ends at `#` and `?`, and `/` divides it: after a search for words with such a sign, or once an option
   with one is chosen, the page is empty. Buying then gives nothing.
2. The options of an earlier product can be clicked on the page of a product that has none.
3. A click on anything while the search page or a sub page is open shows the page again.

Differences: blanks around an action are ignored, and backslashes in a product's texts are kept.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from retroformer.environments.webshop import pages
from retroformer.environments.webshop.data import Product
from retroformer.environments.webshop.pages import SHOWN_PRODUCTS, Page, react_text
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


INVALID_ACTION = "Invalid action!"
_OK = "OK."
_SEARCH, _CLICK = "search[", "click["


class ReactSite:
    """One visit, starting at the search page."""

    def __init__(self, customer: Customer) -> None:
        self._customer = customer
        self._place: Literal["search", "results", "item", "sub page"]
        self._page: Page
        self._links: tuple[str, ...]
        self._options: dict[str, str]
        self._option_names: dict[str, str]
        self._open_search()

    def show(self) -> str:
        return react_text(self._page, self._address(), first=self._place == "search")

    def choices(self) -> tuple[str, ...]:
        buttons = [node.text for node in self._page if node.kind == "button"]
        links = [node.text for node in self._page if node.kind == "link"][:SHOWN_PRODUCTS]
        options = [node.text for node in self._page if node.kind == "option"]
        names = dict.fromkeys((*buttons, *links, *options))
        return tuple(f"{_CLICK}{name}]" for name in names if name not in (pages.SEARCH, pages.NEXT))

    def act(self, action: str) -> Answer:
        action = action.strip()
        if action.startswith("think"):
            return Answer(_OK)
        if action == "reset":
            self._open_search()
            return Answer(self.show())
        if action.startswith(_SEARCH) and self._place == "search":
            self._open_results(action[len(_SEARCH) : -1])
            return Answer(self.show())
        if action.startswith(_CLICK):
            return self._click(action[len(_CLICK) : -1])
        return Answer(INVALID_ACTION)

    def _click(self, name: str) -> Answer:
        match name, self._place:
            case pages.BUY_NOW, "item":
                return self._buy()
            case pages.BACK_TO_SEARCH, "results" | "item" | "sub page":
                self._open_search()
            case pages.PREVIOUS, "sub page":
                self._open_item()
            case pages.PREVIOUS, "item":
                self._options = {}
                self._open_results(self._query)
            case ((pages.BUY_NOW | pages.BACK_TO_SEARCH | pages.PREVIOUS | pages.NEXT), _):
                return Answer(INVALID_ACTION)
            case _ if name in (*pages.SUB_PAGES, pages.HIDDEN_SUB_PAGE):
                if self._place != "item":
                    return Answer(INVALID_ACTION)
                self._place, self._page = "sub page", self._reached(self._customer.sub_page(self._asin, name))
            case _:
                return self._choose(name)
        return Answer(self.show())

    def _choose(self, name: str) -> Answer:
        """Open a product on a page of results, or choose an option on a product's page; return the answer."""
        if self._place == "results" and name in self._links:
            self._asin = name
            self._open_item()
        elif self._place == "item" and name in self._option_names:
            self._options[self._option_names[name]] = name
            self._open_item()
            return Answer(f"You have clicked {name}.")
        elif self._place in ("results", "item"):
            return Answer(INVALID_ACTION)
        return Answer(self.show())

    def _buy(self) -> Answer:
        if not self._is_reached():
            return Answer("", bought=True)
        reward = self._customer.score(self._asin, self._options)
        return Answer(f"{pages.SCORE}: {reward}", reward, bought=True)

    def _open_search(self) -> None:
        self._place, self._page = "search", self._customer.search_page()
        self._query, self._links, self._asin = "", (), ""
        self._options, self._option_names = {}, {}

    def _open_results(self, query: str) -> None:
        self._place, self._query = "results", query
        self._page = ()
        if query and not query.startswith("["):  # The site parses a bracket as the beginning of a Python list.
            results = self._customer.find(query) if self._is_reached() else ()
            self._page = self._reached(self._customer.results_page(results, 1))
        self._links = tuple(node.text for node in self._page if node.kind == "link")

    def _open_item(self) -> None:
        self._place, self._page = "item", self._reached(self._customer.item_page(self._asin))
        self._option_names |= {node.text: node.name for node in self._page if node.kind == "option"}

    def _reached(self, page: Page) -> Page:
        return page if self._is_reached() else ()

    def _is_reached(self) -> bool:
        """Return True if the address carries the search words and the options to the site."""
        return not any(sign in f"{self._query}{self._options}" for sign in "#?/")

    def _address(self) -> str:
        return f"{self._query}/1/{self._options}"
