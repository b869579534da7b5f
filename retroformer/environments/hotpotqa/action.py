"""Parser of an actor's line: Search[entity], Lookup[keyword], Finish[answer], or only a thought."""

import re
from typing import Literal, NamedTuple

Verb = Literal["search", "lookup", "finish", "think", "invalid"]

# Possessive: a megabyte of blanks after the word must not be retried at every position.
_LABEL = re.compile(r"^action\b *+\d*+ *+: *+", re.IGNORECASE)
_THOUGHT = re.compile(r"^(think|thought)\b *+\d*+ *+[:\[]", re.IGNORECASE)
_CALL = re.compile(r"^(search|lookup|finish)\s*\[", re.IGNORECASE)
_QUOTES = "\"'`\u201c\u201d\u2018\u2019"
_LONGEST = 10_000
_UNPRINTABLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ") | dict.fromkeys(range(0xD800, 0xE000), "\ufffd")
"""Replacement of control characters and of lone surrogates, which no database accepts, by blanks."""


class Action(NamedTuple):
    verb: Verb
    argument: str = ""


def parse(text: str) -> Action:
    """Return the action that a line asks for; `invalid` if it asks for none of the three.

    Tolerated: any case of the verb, blanks anywhere, quotes or backticks around the whole, an `Action 3:` label, a
    missing last bracket, and anything after the bracket that closes the first call (`Search[A], Search[B]` is A).
    Brackets inside the argument must be balanced. A call without an argument is invalid. Only the first 10,000
    characters of an action are read, and control characters in it become blanks.
    """
    text = _LABEL.sub("", text.strip()[:_LONGEST].translate(_UNPRINTABLE).strip("`*> "))
    if _THOUGHT.match(text):
        return Action("think")
    if text[:1] in _QUOTES:
        text = text.strip(_QUOTES)
    call = _CALL.match(text)
    if call is None:
        return Action("invalid")
    argument = " ".join(_until_closed(text[call.end() :]).split())
    match call.group(1).lower():
        case _ if not argument:
            return Action("invalid")
        case "search":
            return Action("search", argument)
        case "lookup":
            return Action("lookup", argument)
        case _:
            return Action("finish", argument)


def unquoted(argument: str) -> str:
    """Return the argument without the quotes around it, if any; `"Awaken, My Love!"` is also a title as written."""
    inside = len(argument) > 2 and argument[0] in _QUOTES and argument[-1] in _QUOTES
    return argument[1:-1].strip() if inside else argument


def _until_closed(text: str) -> str:
    """Return the text up to the bracket that closes the call, or all of it if none does."""
    depth = 1
    for place, character in enumerate(text):
        depth += (character == "[") - (character == "]")
        if depth == 0:
            return text[:place]
    return text
