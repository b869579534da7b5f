"""Malformed actions for any environment, determined by a seed."""

import random
from collections.abc import Iterator, Sequence

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
_HEADS = ("", "action", "Action 1", "Action 1: ", "thought", "think: ", "`")
_SIGNS = (
    "[",
    "]",
    "[[",
    "\x00",
    "\x1b[2J",
    "\n",
    "\u2028",
    "\U0001f1fa",
    "\ud800",
    "#",
    "%20",
    "\\",
    "<r>",
    "{}",
    "-1",
)
_WHOLE = ("", " ", "\x00", "[", "]", "[]", "Action:", "\ufeff", "reset", "{}", "null")


def malformed(count: int, seed: int, verbs: Sequence[str], valid: Sequence[str] = ()) -> Iterator[str]:
    """Yield `count` actions: short nonsense, nested brackets, spoilt valid ones, and a megabyte every fifty.

    Args:
        count: number of actions.
        seed: seed of all but the first few, which are always the same.
        verbs: beginnings of the environment's actions, such as `Search` or `go to`.
        valid: actions of the environment, or parts of them, which are joined, cut and mixed with signs.
    """
    dice = random.Random(seed)
    whole = [*_WHOLE, *(verb + rest for verb in verbs for rest in ("", "[", "[]", "[ ]", "[[]]", "[\n]", " ", ":"))]
    yield from whole[:count]
    for number in range(len(whole), count):
        if number % 50 == 0:
            piece, head = dice.choice(_LONG), dice.choice((*_HEADS, *(f"{verb}[" for verb in verbs)))
            yield head + piece * (_MEGABYTE // len(piece)) + dice.choice(("", "]", "x", "]]"))
        elif number % 7 == 0:
            depth = dice.randrange(1, 400)
            yield dice.choice(verbs) + "[" * depth + _text(dice, 10) + "]" * dice.randrange(0, 2 * depth)
        elif valid and number % 3 == 0:
            yield _spoilt(dice, valid)
        else:
            verb = dice.choice((*verbs, verbs[0].upper(), "think", "Compare", "", _text(dice, 5)))
            yield f"{verb}{dice.choice('[[[ (:')}{_text(dice, 60)}{dice.choice((']', ']', '', ')'))}"


def _spoilt(dice: random.Random, valid: Sequence[str]) -> str:
    """Return a valid action with a sign in it, cut, in capitals or between blanks; or several joined."""
    good = dice.choice(valid)
    place = dice.randrange(len(good) + 1)
    return dice.choice(
        (
            good[:place] + dice.choice(_SIGNS) + good[place:],
            good[:place],
            good.swapcase(),
            f" \t{good}\n",
            "".join(dice.choices((*valid, *_SIGNS), k=dice.randint(2, 5))),
        )
    )


def _text(dice: random.Random, longest: int) -> str:
    alphabet = dice.choice(_ALPHABETS)
    return "".join(dice.choice(alphabet) for _ in range(dice.randrange(longest)))
