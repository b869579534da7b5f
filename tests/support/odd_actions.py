"""Actions that no sensible agent sends, the same ones for the same seed."""

import random
from collections.abc import Iterator

_MEGABYTE = 1_000_000
_ALPHABETS = (
    "abc XYZ 0123",
    "\x00\x01\x07\x08\x1b\x7f\x85\x9f\r\n\t\v\f",
    "[](){}<>|#*^:\"'`~\\/-+_%;=&?!.,$@",
    "\u00e9\u00df\u0130\u01c5\u0660\u4e2d\u6587\U0001f600\U0001f468\u200d\U0001f469",
    "\u200b\u200e\u202e\u2066\ufeff\ufffe\uffff\u0300\u0301\u0489\ud800\udfff\udc80",
    "OR AND NOT NEAR title: text: *\"' ; DROP TABLE page; --",
    "action think thought search lookup finish [ : ",
)
_LONG = ("a", " ", "[", "]", "\x00", "\U0001f600", "\ud800", "no such word ", "the ", "a b c d e f g h ", "\n", '"')
_HEADS = (
    "",
    "action",
    "Action 1",
    "Action 1: Search[",
    "thought",
    "Search[",
    "Lookup[",
    "Finish[",
    "search[[",
    "`Search[",
)
_WHOLE = (
    "",
    " ",
    "\x00",
    "[",
    "]",
    "[]",
    "Search",
    "Search[",
    "Search[]",
    "Search[ ]",
    "Finish[[]]",
    "Lookup[\n]",
    "Action:",
)


def odd_actions(count: int, seed: int, verbs: tuple[str, ...] = ("Search", "Lookup", "Finish")) -> Iterator[str]:
    """As many actions: short and senseless ones, nested brackets, and one in fifty of about a megabyte."""
    dice = random.Random(seed)
    yield from _WHOLE[:count]
    for number in range(len(_WHOLE), count):
        if number % 50 == 0:
            piece = dice.choice(_LONG)
            yield dice.choice(_HEADS) + piece * (_MEGABYTE // len(piece)) + dice.choice(("", "]", "x", "]]"))
        elif number % 7 == 0:
            depth = dice.randrange(1, 400)
            yield dice.choice(verbs) + "[" * depth + _text(dice, 10) + "]" * dice.randrange(0, 2 * depth)
        else:
            verb = dice.choice((*verbs, verbs[0].upper(), "think", "Compare", "", _text(dice, 5)))
            yield f"{verb}{dice.choice('[[[ (:')}{_text(dice, 60)}{dice.choice((']', ']', '', ')'))}"


def _text(dice: random.Random, longest: int) -> str:
    alphabet = dice.choice(_ALPHABETS)
    return "".join(dice.choice(alphabet) for _ in range(dice.randrange(longest)))
