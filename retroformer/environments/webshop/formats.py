"""A page in words, in the three formats that WebShop's experiments use.

    text        all texts, with ` [SEP] ` between them (WebShop)
    text_rich   one a line, with signs for what is a button and what was clicked (WebShop)
    react       short, three products a page, the instruction on the first page alone (ReAct, Reflexion, Retroformer)

What was clicked is looked up in the page's address, as WebShop does it: a value in quotes that is part of the address
counts as clicked, so that an option whose value JSON has to escape never does in text_rich.
"""

from collections.abc import Container, Iterable

from retroformer.environments.webshop.pages import Node, Page

SHOWN_PRODUCTS = 3
"""Of a page of results, in the format react."""
_SEPARATOR = " [SEP] "
_INSTRUCTION_TEXTS = 2
"""`Instruction:` and the instruction, which the format react shows on the first page only."""


def plain_text(page: Page) -> str:
    return _SEPARATOR.join(node.text.strip() for node in page)


def rich_text(page: Page, address: str, visited: Container[str]) -> str:
    """The format text_rich; `visited` has the products that were looked at since the last visit of the first page."""
    clicked = [node.text for node in page if node.kind == "option" and _in_quotes(node.text) in address]
    heads = "".join(f"You have clicked {value}.\n" for value in reversed(clicked))
    return heads + "".join(f"{_rich(node, address, visited)}\n" for node in page)


def react_text(page: Page, address: str, *, first: bool) -> str:
    """The format react; `first` for the first page."""
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
    """What is not blank, up to the last product that is shown."""
    links = 0
    for node in page:
        links += node.kind == "link"
        if links > SHOWN_PRODUCTS:
            return
        if node.text.replace("\\n", "").replace("\n", "").replace(" ", ""):
            yield node
