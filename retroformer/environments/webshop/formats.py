"""Text of a page as in ReAct, Reflexion and Retroformer: three products a page, the instruction on the first only.

As in WebShop, clicked options are looked up in the page's address: a value counts as clicked if it is part of the
address in quotes.
"""

from collections.abc import Iterable

from retroformer.environments.webshop.pages import Node, Page

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
