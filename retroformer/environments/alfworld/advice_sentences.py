"""Sentences of advice: those that the household actor was trained on, and others that it has never seen.

With the second set an evaluation distinguishes reading from recognition. The sets share no sentence.
"""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import NamedTuple

import retroformer.environments.alfworld.compact as compact
from retroformer.environments.extras import Wording


class Sentences(NamedTuple):
    """Sentence templates; the first of each kind is the plain one."""

    seen: tuple[str, ...]
    """Templates with a {thing} and its {place}."""
    search: tuple[str, ...]
    """Templates with {places} to look into; {kind} is the type of the thing."""
    skip: tuple[str, ...]
    """Templates with {places} that need no second look."""
    transform: tuple[str, ...]
    """Templates with a {transform} (clean, heat, cool) at the {place}."""
    target: tuple[str, ...]
    """Templates with the {place} to put things in."""


DEMONSTRATED = Sentences(
    seen=(
        "The {thing} is in {place}.",
        "The {thing} is on {place}.",
        "I saw the {thing} in {place}.",
        "There is a {thing} in {place}.",
        "Take the {thing} from {place}.",
        "Go to {place} and take the {thing}.",
        "Next time I will take the {thing} from {place}.",
        "You find the {thing} in {place}.",
        "{place} has the {thing}.",
        "First go to {place}, the {thing} is there.",
    ),
    search=(
        "Look in {places}.",
        "Go to {places} first.",
        "Check {places}.",
        "Check {places} for the {kind}.",
        "Search {places} next.",
        "Try {places}.",
        "Start with {places}.",
        "Next time I will search {places}.",
        "The {kind} may be in {places}.",
        "You did not look in {places} yet.",
        "I should look for the {kind} in {places}.",
    ),
    skip=(
        "Do not look in {places} again.",
        "I already searched {places}.",
        "There is no {kind} in {places}.",
        "Skip {places}.",
        "Avoid {places}.",
        "{places}: already checked.",
        "I wasted steps on {places}.",
        "The {kind} is not in {places}.",
        "Next time I will not go to {places}.",
    ),
    transform=(
        "Then {transform} it with {place}.",
        "Then go to {place} and {transform} it.",
        "{transform} it in {place}.",
        "Use {place} to {transform} it.",
    ),
    target=(
        "Put it in {place}.",
        "Then put it in {place}.",
        "Move it to {place}.",
        "Then bring it to {place}.",
        "It goes to {place}.",
    ),
)

UNSEEN = Sentences(
    seen=(
        "Remember that {place} holds the {thing}.",
        "The {thing} was lying at {place} all along.",
        "My notes say {place} contains the {thing}.",
        "Pick the {thing} up at {place}.",
    ),
    search=(
        "The places left are {places}.",
        "It would be wise to explore {places}.",
        "What remains to be inspected is {places}.",
        "Head straight for {places}.",
        "A better plan begins at {places}.",
    ),
    skip=(
        "Another visit to {places} would be useless.",
        "{places} turned out to be a dead end.",
    ),
    transform=("Afterwards {place} will {transform} it.",),
    target=("Its final home is {place}.",),
)

WORDINGS: Mapping[Wording, Sentences] = MappingProxyType({"demonstrated": DEMONSTRATED, "unseen": UNSEEN})


def listed(places: Sequence[str]) -> str:
    """Return places as text: `drawer 1-3, desk 1 and safe 1`."""
    names = compact.ranges(places)
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def say(sentences: Sequence[str], random: Random | None = None, **gaps: str) -> str:
    """Return one sentence (the plain one without `random`) with its gaps filled and the first letter capitalised."""
    sentence = (random.choice(sentences) if random else sentences[0]).format(**gaps)
    return sentence[0].upper() + sentence[1:]
