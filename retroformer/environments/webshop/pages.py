"""WebShop's pages as what can be read on them: a list of texts, buttons, links to products and options, in order.

The site is HTML, and whoever plays sees the texts that a parser (BeautifulSoup) finds in it. Two of its habits show:
a text of blanks alone is dropped where it has a line break, and is a single blank where it has none.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from retroformer.environments.webshop.products import Product

SEARCH = "Search"
BACK_TO_SEARCH = "Back to Search"
NEXT, PREVIOUS = "Next >", "< Prev"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
HIDDEN_SUB_PAGE = "Attributes"
"""A page that the site has, and that no button leads to."""
SCORE = "Your score (min 0.0, max 1.0)"
PRODUCTS_ON_A_PAGE = 10
_BLANKS = " \t\n\f\r"


class Node(NamedTuple):
    kind: Literal["text", "button", "link", "option"]
    text: str
    name: str = ""
    """Of the option that a value belongs to."""


Page = tuple[Node, ...]


def search_page(instruction: str) -> Page:
    return (*_texts("WebShop", "Instruction: ", instruction), Node("button", SEARCH))


def results_page(instruction: str, number: int, total: int, products: Sequence[Product]) -> Page:
    """Page `number` of a search's `total` products."""
    heads = [Node("button", PREVIOUS)] if number > 1 else []
    listed = (node for one in products for node in (Node("link", one.asin), *_texts(one.title, one.price_tag)))
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
    """One of SUB_PAGES, or the hidden one. Nothing has been reviewed in the released shop."""
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


def done_page(asin: str, options: Mapping[str, str], reward: float) -> Page:
    """The receipt. Most of it is hidden in a browser, and there is nothing in most of that."""
    bought = ("asin", asin, "options", _for_html(options), "attrs", "None")
    kinds = ("category", "None", "query", "None", "product category", "None")
    wanted = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    return (
        *_texts("Thank you for shopping with us!", "Your code: ", "None", " (Paste it in your MTurk interface.)"),
        *_texts("Purchased", *bought, *kinds, "Target", *wanted, "Goal ", "None"),
        *_texts("Reward", SCORE, str(reward), "Reward Details ", "None"),
    )


def _head(instruction: str) -> Page:
    return (*_texts("Instruction:", instruction), Node("button", BACK_TO_SEARCH), Node("button", PREVIOUS))


def _texts(*texts: str) -> tuple[Node, ...]:
    return tuple(Node("text", text) for text in map(_parsed, texts) if text)


def _parsed(text: str) -> str:
    if text.strip(_BLANKS):
        return text
    return " " if text and "\n" not in text else ""


def _for_html(options: Mapping[str, str]) -> str:
    """JSON with sorted keys, and without the four signs that mean something in HTML."""
    text = json.dumps(dict(options), sort_keys=True)
    for sign in "<>&'":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
