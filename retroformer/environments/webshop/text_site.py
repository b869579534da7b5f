"""Shop as in WebShop's own text environment, for the formats text and text_rich.

Actions are `search[words]`, on any page, and `click[text on the page]`; case is ignored, and an invalid action leaves
the page unchanged. Each search clears the options, and so does turning or returning to a page of results.

Differences from WebShop: blanks around an action are ignored; the site's own abbreviations as first word of a search
(<r> for random products, <a>, <c>, <q>) are ordinary words; a search word is never taken for a page's name.
"""

import json
from typing import Literal

from retroformer.environments.webshop import pages
from retroformer.environments.webshop.formats import plain_text, rich_text
from retroformer.environments.webshop.pages import Node, Page
from retroformer.environments.webshop.site import Answer, Customer

_PAGES = {name.lower(): name for name in (*pages.SUB_PAGES, pages.HIDDEN_SUB_PAGE)}


class TextSite:
    """One visit, starting at the search page."""

    def __init__(self, customer: Customer, *, rich: bool) -> None:
        self._customer, self._rich = customer, rich
        self._place: Literal["search", "results", "item", "sub page", "done"]
        self._page: Page
        self._results: tuple[str, ...]
        self._options: dict[str, str]
        self._visited: set[str]
        self._open_search()

    def show(self) -> str:
        if not self._rich:
            return plain_text(self._page)
        return rich_text(self._page, self._address(), self._visited)

    def choices(self) -> tuple[str, ...]:
        return tuple(f"click[{name}]" for name in self._clickables() if name != pages.SEARCH.lower())

    def act(self, action: str) -> Answer:
        verb, argument = parse(action)
        if verb == "search":
            self._results, self._keywords = self._customer.find(argument), argument
            self._open_results(1)
        elif verb == "click" and argument in self._clickables() and argument != pages.SEARCH.lower():
            if argument == pages.BUY_NOW.lower():
                return self._buy()
            self._click(argument)
        return Answer(self.show())

    def _click(self, name: str) -> None:
        """Follow a clickable. A name shared by a button and an option means the button."""
        match name, self._place:
            case "back to search", _:
                self._open_search()
            case "next >", "results":
                self._open_results(self._number + 1)
            case "< prev", "results":
                self._open_results(self._number - 1)
            case "< prev", "item":
                self._open_results(self._number)
            case "< prev", "sub page":
                self._open_item()
            case _ if name in _PAGES:
                self._place, self._page = "sub page", self._customer.sub_page(self._asin, _PAGES[name])
            case _:
                self._choose(self._clickables()[name])

    def _choose(self, node: Node) -> None:
        if node.kind == "link":
            self._asin = node.text
            self._visited.add(node.text)
        elif node.kind == "option":
            self._options[node.name] = node.text
        self._open_item()

    def _buy(self) -> Answer:
        reward = self._customer.score(self._asin, self._options)
        self._place, self._page = "done", pages.done_page(self._asin, self._options, reward)
        return Answer(self.show(), reward, bought=True)

    def _open_search(self) -> None:
        self._place, self._page = "search", self._customer.search_page()
        self._keywords, self._results, self._number, self._asin = "", (), 1, ""
        self._options, self._visited = {}, set()

    def _open_results(self, number: int) -> None:
        self._number, self._asin, self._options = number, "", {}
        self._place, self._page = "results", self._customer.results_page(self._results, number)

    def _open_item(self) -> None:
        self._place, self._page = "item", self._customer.item_page(self._asin)

    def _clickables(self) -> dict[str, Node]:
        """Return the clickables by name, in WebShop's order; of options with the same value the last one counts."""
        before = {node.text.lower(): node for kind in ("button", "link") for node in self._page if node.kind == kind}
        return before | {node.text: node for node in self._page if node.kind == "option"}

    def _address(self) -> str:
        return f"{self._keywords.replace(' ', '+')}/{self._number}/{json.dumps(self._options)}"


def parse(action: str) -> tuple[str, str]:
    """Return verb and argument in lower case, both empty if there are none.

    The argument lies on one line, between the last `]` and the nearest `[` before it that leaves an argument.
    """
    line = action.strip().partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(1, end - 1))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else ("", "")
