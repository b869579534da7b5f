"""Pages of WebShop as lists of their readable parts: texts, buttons, links to products and options, in order.

The site is HTML, and a player sees the texts that a parser (BeautifulSoup) extracts. Two of its habits are visible: a
text of blanks only is dropped if it has a line break, and is a single blank if not.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from retroformer.environments.webshop.data import Product

SEARCH = "Search"
BACK_TO_SEARCH = "Back to Search"
NEXT, PREVIOUS = "Next >", "< Prev"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
HIDDEN_SUB_PAGE = "Attributes"
"""Page that exists on the site but has no button leading to it."""
SCORE = "Your score (min 0.0, max 1.0)"
PRODUCTS_ON_A_PAGE = 10
_BLANKS = " \t\n\f\r"


class Node(NamedTuple):
    kind: Literal["text", "button", "link", "option"]
    text: str
    name: str = ""
    """Name of the option that a value belongs to."""


Page = tuple[Node, ...]


def search_page(instruction: str) -> Page:
    return (*_texts("WebShop", "Instruction: ", instruction), Node("button", SEARCH))


def results_page(instruction: str, number: int, total: int, products: Sequence[Product]) -> Page:
    """Return page `number` of a search's `total` products."""
    heads = [Node("button", PREVIOUS)] if number > 1 else []
    listed = (node for item in products for node in (Node("link", item.asin), *_texts(item.title, item.price_tag)))
    return (
        *_texts("Instruction:", instruction),
        Node("button", BACK_TO_SEARCH),
        *_texts(f"Page {number} (Total results: {total})"),
        *heads,
        Node("button", NEXT),
        *listed,
    )


def item_page(instruction: str, product: Product) -> Page:
    options = (
        node
        for name, values in product.options
        for node in (*_texts(name), *(Node("option", value, name) for value in values if value))
    )
    return (
        *_head(instruction),
        *options,
        *_texts(product.title, f"Price: {product.price_tag}", "Rating: N.A."),
        *(Node("button", name) for name in (*SUB_PAGES, BUY_NOW)),
    )


def sub_page(instruction: str, product: Product, name: str) -> Page:
    """Return one of SUB_PAGES, or the hidden one. No product of the released shop has reviews."""
    texts: Sequence[str] = ()
    match name:
        case "Description":
            texts = (product.description,)
        case "Features":
            texts = [f" {bullet}" for bullet in product.bullets]
        case "Attributes":
            attributes = (f" {attribute}" for attribute in product.attributes)
            texts = (*attributes, product.category, product.query, product.product_category)
    return (*_head(instruction), *_texts(*texts))


def _head(instruction: str) -> Page:
    return (*_texts("Instruction:", instruction), Node("button", BACK_TO_SEARCH), Node("button", PREVIOUS))


def _texts(*texts: str) -> tuple[Node, ...]:
    return tuple(Node("text", text) for text in map(_parsed, texts) if text)


def _parsed(text: str) -> str:
    if text.strip(_BLANKS):
        return text
    return " " if text and "\n" not in text else ""


SHOWN_PRODUCTS = 3
"""Number of products shown of a page of results."""
_INSTRUCTION_TEXTS = 2
"""Number of texts for `Instruction:` and the instruction, which are shown on the first page only."""


def react_text(page: Page, address: str, *, first: bool) -> str:
    """Return the page's text; `first` is true on the first page."""
    shown, texts = "", 0
    for node in _without_late_products(page):
        if node.kind == "text":
            texts += 1
            shown += f"\n{node.text} " if first or texts > _INSTRUCTION_TEXTS else ""
        elif node.kind == "option":
            shown += f"[[{node.text}]]" if f"'{node.text}'" in address else f"[{node.text}]"
        else:
            shown += f"\n[{node.text}] "
    return shown


def _without_late_products(page: Page) -> Iterable[Node]:
    """Yield the non-blank nodes, up to the last product shown."""
    links = 0
    for node in page:
        links += node.kind == "link"
        if links > SHOWN_PRODUCTS:
            return
        if node.text.replace("\\n", "").replace("\n", "").replace(" ", ""):
            yield node
