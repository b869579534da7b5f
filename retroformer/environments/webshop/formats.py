"""Text of a page, in the three formats of WebShop's experiments.

    text        all texts, with ` [SEP] ` between them (WebShop)
    text_rich   one text a line, with marks for buttons and clicked options (WebShop)
    react       short: three products a page, the instruction only on the first page (ReAct, Reflexion, Retroformer)

As in WebShop, clicked options are looked up in the page's address: a value counts as clicked if it is part of the
address in quotes, so in text_rich an option whose value JSON must escape never does.
"""

from collections.abc import Container, Iterable

from retroformer.environments.webshop.pages import Node, Page

SHOWN_PRODUCTS = 3
"""Number of products shown of a page of results, in the format react."""
_SEPARATOR = " [SEP] "
_INSTRUCTION_TEXTS = 2
"""Number of texts for `Instruction:` and the instruction, which the format react shows only on the first page."""


def plain_text(page: Page) -> str:
    return _SEPARATOR.join(node.text.strip() for node in page)


def rich_text(page: Page, address: str, visited: Container[str]) -> str:
    """Return the format text_rich; `visited` holds the products viewed since the last visit to the first page."""
    clicked = [node.text for node in page if node.kind == "option" and _in_quotes(node.text) in address]
    heads = "".join(f"You have clicked {value}.\n" for value in reversed(clicked))
    return heads + "".join(f"{_rich(node, address, visited)}\n" for node in page)


def react_text(page: Page, address: str, *, first: bool) -> str:
    """Return the format react; `first` is true on the first page."""
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


def _rich(node: Node, address: str, visited: Container[str]) -> str:
    match node.kind:
        case "text":
            return node.text
        case "button":
            return f"[button] {node.text} [button_]"
        case "link":
            return f"\n{_button(node.text, node.text in visited)}"
        case "option":
            return f"  {_button(node.text, _in_quotes(node.text) in address)}"


def _in_quotes(value: str) -> str:
    return f'"{value}"'


def _button(text: str, clicked: bool) -> str:
    kind = "clicked button" if clicked else "button"
    return f"[{kind}] {text} [{kind}_]"


def _without_late_products(page: Page) -> Iterable[Node]:
    """Yield the non-blank nodes, up to the last product shown."""
    links = 0
    for node in page:
        links += node.kind == "link"
        if links > SHOWN_PRODUCTS:
            return
        if node.text.replace("\\n", "").replace("\n", "").replace(" ", ""):
            yield node
