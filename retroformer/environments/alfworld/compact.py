"""Compact form of ALFWorld's text, in which small models play; the reflector's prompt is in `reflection_prompt`.

    Task: cool some bread and put it in diningtable
    Room: countertop 1-2, fridge 1, diningtable 1, cabinet 1-13
    Advice: Look in fridge 1 and cabinet 1-4.
    > go to fridge 1
    closed
    >

The household actor was trained on exactly this text, so changing one character costs it games. The text is the same in
both grammars: `put X in/on Y` is written as `move X to Y`.
"""

import random
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal, NamedTuple

from retroformer.method.records import Task

Grammar = Literal["put", "move"]

LONGEST_OBSERVATION = 160
"""Maximum number of characters of an observation that has no shorter form."""

_ARTICLE = re.compile(r"^(?:and )?an? ")
_OPENING = re.compile(r"you see (?P<things>[^\n]*?)\.?\s*\n\s*Your task is to: (?P<task>[^\n]*)")
_PLACE = re.compile(r"\S+ \d{1,3}")
_CONTENTS = re.compile(r"(?:On the .+?, you see|The .+? is open\. In it, you see) (.*)\.$")
_CLOSED = re.compile(r"The .+ is closed\.$")
_EFFECT = re.compile(r"You (pick up|move|put|clean|heat|cool|turn on|turn off) the (\S+ \d+)")
_PUT = re.compile(r"put (\S+ \d+) in/on (\S+ \d+)$")
_MOVE = re.compile(r"move (\S+ \d+) to (\S+ \d+)$")


class Opening(NamedTuple):
    task: str
    """Task sentence without its full stop."""
    places: tuple[str, ...]
    """Names of the receptacles, such as `cabinet 4`, in the order of the observation."""


def read_opening(observation: str) -> Opening:
    """Return the places and the task of an opening; empty if the text is no opening of ALFWorld's."""
    match = _OPENING.search(observation)
    if not match:
        return Opening(task="", places=())
    places = tuple(name for name in _things(match["things"]) if _PLACE.fullmatch(name))
    return Opening(task=match["task"].strip().rstrip("."), places=places)


def replace_in_opening(opening: str, part: Literal["things", "task"], text: str) -> str:
    """Return an opening of ALFWorld's with another task, a sentence, or with other things, such as `a desk 1`."""
    match = _OPENING.search(opening)
    if match is None:
        raise ValueError(f"No opening of ALFWorld's: {opening[:80]!r}")
    return f"{opening[: match.start(part)]}{text}{opening[match.end(part) :]}"


def room_order(task: Task, places: Sequence[str]) -> tuple[str, ...]:
    """Return the places with types shuffled by the split and id of the task, numbers ascending within a type."""
    types = sorted({type_of(place) for place in places})
    random.Random(f"{task.split}/{task.id}").shuffle(types)
    return tuple(sorted(places, key=lambda place: (types.index(type_of(place)), number_of(place))))


def ranges(places: Sequence[str]) -> tuple[str, ...]:
    """Return the numbers as ranges: `cabinet 1, cabinet 2, cabinet 4` as `cabinet 1-2`, `cabinet 4`.

    Types are in order of first appearance.
    """
    numbers: dict[str, list[int]] = {}
    for place in places:
        numbers.setdefault(type_of(place), []).append(number_of(place))
    return tuple(f"{name} {run}" for name, values in numbers.items() for run in _runs(sorted(set(values))))


def listed(places: Sequence[str]) -> str:
    """Return the places as one text, such as `cabinet 1-2, cabinet 4`."""
    return ", ".join(ranges(places))


def header(task: Task, opening: str, reflections: Sequence[str] = ()) -> str:
    """Return the lines before the first action: task, room, and a line for each reflection, oldest first."""
    sentence, places = read_opening(opening)
    advice = filter(None, (" ".join(text.split()) for text in reflections))
    lines = (f"Task: {sentence}", f"Room: {listed(room_order(task, places))}")
    return "".join(f"{line}\n" for line in (*lines, *(f"Advice: {text}" for text in advice)))


def command(action: str) -> str:
    """Return the action in the compact text, from either grammar."""
    return _PUT.sub(r"move \1 to \2", action.strip())


def in_grammar(action: str, grammar: Grammar) -> str:
    """Return the compact action in the environment's grammar."""
    return _MOVE.sub(r"put \1 in/on \2", action) if grammar == "put" else action


def grammar_of(actions: Iterable[str]) -> Grammar | None:
    """Return the grammar of these actions; None if none of them shows it."""
    for action in actions:
        if _PUT.match(action):
            return "put"
        if _MOVE.match(action):
            return "move"
    return None


def observation(action: str, text: str) -> str:
    """Return `closed`, `nothing`, a comma list of things, a short effect, or the observation's first characters."""
    text = text.strip()
    for verb, start in (("go to ", "You arrive at "), ("open ", "You open the ")):
        if action.startswith(verb) and text.startswith(start) and ". " in text:
            text = text.split(". ", 1)[1]
    if contents := _CONTENTS.match(text):
        return ", ".join(_things(contents[1])) or "nothing"
    if _CLOSED.match(text):
        return "closed"
    if effect := _EFFECT.match(text):
        return f"You {'move' if effect[1] == 'put' else effect[1]} the {effect[2]}."
    return text[:LONGEST_OBSERVATION]


def type_of(name: str) -> str:
    """Return the type: `cabinet` for `cabinet 4`."""
    return name.rpartition(" ")[0]


def number_of(name: str) -> int:
    """Return the number: 4 for `cabinet 4`."""
    return int(name.rpartition(" ")[2])


def _things(text: str) -> tuple[str, ...]:
    names = (_ARTICLE.sub("", part.strip()) for part in text.split(","))
    return tuple(name for name in names if name not in ("", "nothing"))


def _runs(numbers: Sequence[int]) -> list[str]:
    # Successive numbers differ from their places by the same amount.
    grouped = groupby(enumerate(numbers), key=lambda place_and_number: place_and_number[1] - place_and_number[0])
    runs = [[number for _, number in run] for _, run in grouped]
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
