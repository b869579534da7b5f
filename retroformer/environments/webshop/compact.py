"""Compact form of WebShop's text, in which a small model shops; the reflector reads attempts in it too.

    Request: slim fit henleys with short sleeve with color: yellow, and size: small, and price lower than 40.00 dollars
    Advice: Search for men's henley short sleeve. Choose yellow and small.
    > search men's henley short sleeve
    1: XXBR Summer T-shirts for Mens, Soldier Short, $10.72
    2: ...
    > open 1
    color: black, yellow, ...; size: small, medium, large
    > choose yellow
    ok
    > buy
    score 0.75

A shopping actor is trained on exactly this text, so changing one character makes it buy worse.
"""

import re
from collections.abc import Sequence

from retroformer.method.records import Memory, Message, Step, Trajectory

TITLE_WORDS = 6
"""Maximum number of words of a title that are shown."""
OPTION_CHARACTERS = 50
"""Maximum number of characters of the values of one option that are shown."""
SHOPPING_TOKENS = 40
"""Token limit of an action, longer than the longest action in training."""
_UNSEARCHABLE = re.compile(r"[\[\]#?/]")
"""Signs at which the site's address ends, or which it takes for a list."""
_REQUEST = re.compile(r"Instruction:\s*(?:Find me )?(.+?) *\n")
_PRODUCT = re.compile(r"\[(\w+)\] \n(.+?) \n(\$[\d.]+)")
OPTION = re.compile(r"^([^\[\]\n]+) (\[.+\])$", re.MULTILINE)
"""Name and values of an option on a product's page."""
_SCORE = re.compile(r"^Your score \(min 0.0, max 1.0\): ([\d.]+)")
_BUY = "click[Buy Now]"


def request_of(opening: str) -> str:
    """Return the request of an opening; empty if it is no opening of WebShop's."""
    match = _REQUEST.search(opening)
    return match[1] if match else ""


def products(observation: str) -> tuple[str, ...]:
    """Return the ASINs on a page of results."""
    return tuple(match[1] for match in _PRODUCT.finditer(observation))


def command(action: str, shown: Sequence[str]) -> str:
    """Return the action of the site in the compact text; `shown` are the products of the last search."""
    kind, _, content = action.strip().removesuffix("]").partition("[")
    if kind == "search":
        return f"search {content}"
    if action == _BUY:
        return "buy"
    return f"open {shown.index(content) + 1}" if content in shown else f"choose {content}"


def on_site(action: str, shown: Sequence[str]) -> str:
    """Return the compact action as an action of the site, which answers one without meaning."""
    verb, _, content = action.strip().partition(" ")
    if verb == "search":
        return f"search[{' '.join(_UNSEARCHABLE.sub(' ', content).split())}]"
    if verb == "open" and content.isdecimal() and 0 < int(content) <= len(shown):
        return f"click[{shown[int(content) - 1]}]"
    return _BUY if action.strip() == "buy" else f"click[{content}]"


def observation(text: str) -> str:
    """Return the products of a search, the options of a product, a score, `ok` or `no`."""
    if listed := _PRODUCT.findall(text):
        return "\n".join(
            f"{number}: {' '.join(title.split()[:TITLE_WORDS])}, {price}"
            for number, (_, title, price) in enumerate(listed, 1)
        )
    if score := _SCORE.match(text):
        return f"score {float(score[1]):.2f}"
    if "[Buy Now]" in text:
        options = (f"{name}: {_values(values)}" for name, values in OPTION.findall(text))
        return "; ".join(options) or "no options"
    return "ok" if text.startswith("You have clicked") else "no"


def attempt(opening: str, steps: Sequence[Step], reflections: Sequence[str] = ()) -> str:
    """Return the request, a line for each piece of advice, and the steps."""
    lines, shown = [f"Request: {request_of(opening)}"], tuple[str, ...]()
    lines += [f"Advice: {' '.join(text.split())}" for text in reflections if text.strip()]
    for step in steps:
        lines += [f"> {command(step.action, shown)}", observation(step.observation)]
        shown = products(step.observation) or shown
    return "".join(f"{line}\n" for line in lines)


def compact_reflection_prompt(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    """Return the attempt with the advice that it was given, as one text."""
    text = attempt(failure.opening, failure.steps, memory.reflections)
    return (
        Message(role="system", content="You advise a shopper."),
        Message(role="user", content=f"{text}Advice for the next attempt:"),
    )


def _values(text: str) -> str:
    values = text[1:-1].replace("][", ", ").replace("[", "").replace("]", "")
    return values if len(values) <= OPTION_CHARACTERS else f"{values[:OPTION_CHARACTERS].rpartition(',')[0]}, ..."
