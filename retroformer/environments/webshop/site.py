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

A player sees the texts that a parser (BeautifulSoup) extracts from the HTML. Two of its habits are visible: a text of
blanks only is dropped if it has a line break, and is a single blank if not.

Differences: blanks around an action are ignored, and backslashes in a product's texts are kept.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from retroformer.environments.webshop.shop import Shop

Score = Callable[[str, Mapping[str, str]], float]
"""Function of an ASIN and chosen options that returns the reward of buying that product."""

INVALID_ACTION = "Invalid action!"
_SEARCH, _CLICK = "search[", "click["
SUB_PAGES = ("Description", "Features", "Reviews")
HIDDEN_SUB_PAGE = "Attributes"
"""Page that exists on the site but has no button leading to it."""
SCORE = "Your score (min 0.0, max 1.0)"
PRODUCTS_ON_A_PAGE, SHOWN_PRODUCTS = 10, 3
"""Number of products of a page of results, and how many of them are shown."""
_INSTRUCTION_TEXTS = 2
"""Number of texts for `Instruction:` and the instruction, which are shown on the first page only."""


class Button:
    """Texts of the site's buttons."""

    SEARCH, BACK_TO_SEARCH, NEXT, PREVIOUS, BUY_NOW = "Search", "Back to Search", "Next >", "< Prev", "Buy Now"


class SiteAnswer(NamedTuple):
    observation: str
    reward: float = 0.0
    bought: bool = False


class Node(NamedTuple):
    """Readable part of a page: a text, a button, or a link to a product or option."""

    kind: Literal["text", "button", "link", "option"]
    text: str
    name: str = ""
    """Name of the option that a value belongs to."""


class ReactSite:
    """One visit of a customer with one instruction, which is on all pages, starting at the search page."""

    def __init__(self, shop: Shop, instruction: str, score: Score) -> None:
        self._shop, self._instruction, self._score = shop, instruction, score
        self._place: Literal["search", "results", "item", "sub page"]
        self._page: tuple[Node, ...]
        self._links: tuple[str, ...]
        self._options: dict[str, str]
        self._option_names: dict[str, str]
        self._open_search()

    def show(self) -> str:
        address, first = f"{self._query}/1/{self._options}", self._place == "search"
        shown, texts, links = "", 0, 0
        for node in self._page:
            links += node.kind == "link"
            if links > SHOWN_PRODUCTS:
                break
            if not node.text.replace("\\n", "").replace("\n", "").replace(" ", ""):
                continue
            if node.kind == "text":
                texts += 1
                shown += f"\n{node.text} " if first or texts > _INSTRUCTION_TEXTS else ""
            elif node.kind == "option":
                shown += f"[[{node.text}]]" if f"'{node.text}'" in address else f"[{node.text}]"
            else:
                shown += f"\n[{node.text}] "
        return shown

    def choices(self) -> tuple[str, ...]:
        buttons = [node.text for node in self._page if node.kind == "button"]
        links = [node.text for node in self._page if node.kind == "link"][:SHOWN_PRODUCTS]
        options = [node.text for node in self._page if node.kind == "option"]
        names = dict.fromkeys((*buttons, *links, *options))
        return tuple(f"{_CLICK}{name}]" for name in names if name not in (Button.SEARCH, Button.NEXT))

    def act(self, action: str) -> SiteAnswer:
        action = action.strip()
        if action.startswith("think"):
            return SiteAnswer("OK.")
        if action == "reset":
            self._open_search()
            return SiteAnswer(self.show())
        if action.startswith(_SEARCH) and self._place == "search":
            self._open_results(action[len(_SEARCH) : -1])
            return SiteAnswer(self.show())
        if action.startswith(_CLICK):
            return self._click(action[len(_CLICK) : -1])
        return SiteAnswer(INVALID_ACTION)

    def _click(self, name: str) -> SiteAnswer:
        match name, self._place:
            case Button.BUY_NOW, "item":
                return self._buy()
            case Button.BACK_TO_SEARCH, "results" | "item" | "sub page":
                self._open_search()
            case Button.PREVIOUS, "sub page":
                self._open_item()
            case Button.PREVIOUS, "item":
                self._options = {}
                self._open_results(self._query)
            case ((Button.BUY_NOW | Button.BACK_TO_SEARCH | Button.PREVIOUS | Button.NEXT), _):
                return SiteAnswer(INVALID_ACTION)
            case _ if name in (*SUB_PAGES, HIDDEN_SUB_PAGE):
                if self._place != "item":
                    return SiteAnswer(INVALID_ACTION)
                self._place, self._page = "sub page", self._sub_page(name)
            case _:
                return self._choose(name)
        return SiteAnswer(self.show())

    def _choose(self, name: str) -> SiteAnswer:
        """Open a product on a page of results, or choose an option on a product's page; return the answer."""
        if self._place == "results" and name in self._links:
            self._asin = name
            self._open_item()
        elif self._place == "item" and name in self._option_names:
            self._options[self._option_names[name]] = name
            self._open_item()
            return SiteAnswer(f"You have clicked {name}.")
        elif self._place in ("results", "item"):
            return SiteAnswer(INVALID_ACTION)
        return SiteAnswer(self.show())

    def _buy(self) -> SiteAnswer:
        if not self._is_reached():
            return SiteAnswer("", bought=True)
        reward = self._score(self._asin, self._options)
        return SiteAnswer(f"{SCORE}: {reward}", reward, bought=True)

    def _open_search(self) -> None:
        self._place = "search"
        self._page = (*_texts("WebShop", "Instruction: ", self._instruction), Node("button", Button.SEARCH))
        self._query, self._links, self._asin = "", (), ""
        self._options, self._option_names = {}, {}

    def _open_results(self, query: str) -> None:
        self._place, self._query, self._page = "results", query, ()
        # The site parses a bracket as the beginning of a Python list.
        if query and not query.startswith("[") and self._is_reached():
            results = self._shop.search(query)
            products = [self._shop.product(asin)[0] for asin in results[:PRODUCTS_ON_A_PAGE]]
            self._page = (
                *_texts("Instruction:", self._instruction),
                Node("button", Button.BACK_TO_SEARCH),
                *_texts(f"Page 1 (Total results: {len(results)})"),
                Node("button", Button.NEXT),
                *(node for item in products for node in (Node("link", item.asin), *_texts(item.title, item.price_tag))),
            )
        self._links = tuple(node.text for node in self._page if node.kind == "link")

    def _open_item(self) -> None:
        product, _ = self._shop.product(self._asin)
        options = (
            node
            for name, values in product.options
            for node in (*_texts(name), *(Node("option", value, name) for value in values if value))
        )
        texts = _texts(product.title, f"Price: {product.price_tag}", "Rating: N.A.")
        buttons = (Node("button", name) for name in (*SUB_PAGES, Button.BUY_NOW))
        self._place, self._page = "item", self._product_page(*options, *texts, *buttons)
        self._option_names |= {node.text: node.name for node in self._page if node.kind == "option"}

    def _sub_page(self, name: str) -> tuple[Node, ...]:
        """Return one of SUB_PAGES, or the hidden one. No product of the released shop has reviews."""
        product, _ = self._shop.product(self._asin)
        texts: Sequence[str] = ()
        if name == "Description":
            texts = (product.description,)
        elif name == "Features":
            texts = [f" {bullet}" for bullet in product.bullets]
        elif name == HIDDEN_SUB_PAGE:
            attributes = (f" {attribute}" for attribute in product.attributes)
            texts = (*attributes, product.category, product.query, product.product_category)
        return self._product_page(*_texts(*texts))

    def _product_page(self, *nodes: Node) -> tuple[Node, ...]:
        if not self._is_reached():
            return ()
        buttons = (Node("button", Button.BACK_TO_SEARCH), Node("button", Button.PREVIOUS))
        return (*_texts("Instruction:", self._instruction), *buttons, *nodes)

    def _is_reached(self) -> bool:
        """Return True if the address carries the search words and the options to the site."""
        return not any(sign in f"{self._query}{self._options}" for sign in "#?/")


def _texts(*texts: str) -> tuple[Node, ...]:
    """Return the nodes of these texts, without those that the parser drops."""
    seen = (text if text.strip(" \t\n\f\r") else " " * ("\n" not in text) for text in texts if text)
    return tuple(Node("text", text) for text in seen if text)
