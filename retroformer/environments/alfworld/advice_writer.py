"""Writers of advice: its sentences, and reflectors that are programs.

The household actor was trained on the demonstrated sentences and has never seen the unseen ones; with these an
evaluation distinguishes reading from recognition. The sets share no sentence.

`rule_reflector` writes the best advice it can from what the actor saw. Mixed lessons are short sentences in the right
form, mostly of little use, so that a model learns the form of advice here and must learn from ratings which advice
helps. Useful lessons say what was seen, else a few unsearched places, drawn at random and in any order: they use no
knowledge of where things usually are, and leave every choice open. Advice from the solution is an upper bound on what
advice can do for an actor.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Literal, NamedTuple

import retroformer.environments.alfworld.compact as compact
from retroformer.agents.arms.baselines import PHRASES, seeded
from retroformer.agents.reflector import WrittenReflector
from retroformer.environments.alfworld.advice_reader import read_advice
from retroformer.environments.alfworld.attempt_reader import AttemptView, read_solution, view_of
from retroformer.environments.alfworld.compact import type_of
from retroformer.environments.extras import LessonParts
from retroformer.environments.section import ArmWording, Wording
from retroformer.method.prompts import Render
from retroformer.method.records import Memory, Task, Trajectory

MixedKind = Literal["unvisited", "visited", "seen", "empty"]

MIXTURE: Mapping[MixedKind, float] = MappingProxyType({"unvisited": 0.35, "visited": 0.25, "seen": 0.25, "empty": 0.15})
"""Shares of the kinds of mixed lessons.

unvisited: look in one to three places, drawn from those not looked into.
visited: look in one to three places, drawn from those already looked into, so useless.
seen: where a thing of the task was seen; if none was seen, one to three places drawn from the whole room.
empty: a phrase with no content.
"""

MIXED_PLACES = 3
"""Maximum number of places that one mixed lesson names."""
EMPTY_PHRASES = PHRASES[:5]
"""Phrases that the mixture draws from."""
USEFUL_TYPES, PLACES_PER_TYPE = (2, 4), (1, 3)
"""Minimum and maximum number of types of place that one useful lesson names, and of places per type."""


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
BOTH = Sentences(*((f"{first[0]} {second[0]}",) for first, second in zip(DEMONSTRATED, UNSEEN, strict=True)))
"""The plain sentence of each set, one after the other."""


def words_of(wording: ArmWording, random: Random) -> tuple[Sentences, Random | None]:
    """Return the sentences of one piece of advice, and what draws among them, if not the plain ones are written."""
    if wording == "either":
        return random.choice((DEMONSTRATED, UNSEEN)), None
    if wording == "both":
        return BOTH, None
    return (UNSEEN, random) if wording == "unseen" else (DEMONSTRATED, None)


def listed(places: Sequence[str]) -> str:
    """Return places as text: `drawer 1-3, desk 1 and safe 1`."""
    names = compact.ranges(places)
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def say(sentences: Sequence[str], random: Random | None = None, **gaps: str) -> str:
    """Return one sentence (the plain one without `random`) with its gaps filled and the first letter capitalised."""
    sentence = (random.choice(sentences) if random else sentences[0]).format(**gaps)
    return sentence[0].upper() + sentence[1:]


def rule_reflector(
    render: Render, wording: ArmWording = "demonstrated", *, reads_history: bool = False, places: int = 6
) -> WrittenReflector:
    """Return a reflector that says where the task's things were seen, and where to search for those not seen.

    It reads the last attempt, or with `reads_history` all of them, and names at most this many places. The advice is
    empty if every place was searched without success. The seed only draws the sentences.
    """

    def write(failure: Trajectory, memory: Memory, seed: int) -> str:
        view = view_of(failure, memory.earlier if reads_history else ())
        words = words_of(wording, seeded(failure.task, seed))
        return advice_on_places(view, next_places(view, memory)[:places], *words)

    return WrittenReflector("next-places-of-all" if reads_history else "next-places", render, write)


def lesson_reflector(name: Literal["mixed", "useful"], parts: LessonParts) -> WrittenReflector:
    """Return a writer of warm-start advice, which is drawn by seed and task."""

    def write(failure: Trajectory, memory: Memory, seed: int) -> str:
        view = view_of(failure, memory.earlier if parts.reads_history else ())
        random = Random(f"{seed}/{failure.task.split}/{failure.task.id}/{len(memory.reflections)}")
        sentences, _ = words_of(parts.section.wording, random)
        if name == "useful":
            return useful_advice(view, random, sentences)
        return mixed_advice(view, random.choices(tuple(MIXTURE), tuple(MIXTURE.values()))[0], random, sentences)

    return WrittenReflector(name, parts.render, write)


def oracle_reflector(
    render: Render, walkthrough: Callable[[Task], Sequence[str]], wording: ArmWording = "demonstrated"
) -> WrittenReflector:
    """Return a reflector that says where the needed things are, where to transform them, and where to put them."""

    def write(failure: Trajectory, memory: Memory, seed: int) -> str:
        return advice_from_solution(failure, walkthrough(failure.task), *words_of(wording, seeded(failure.task, seed)))

    return WrittenReflector("walkthrough", render, write)


def next_places(view: AttemptView, memory: Memory) -> tuple[str, ...]:
    """Return the unsearched places in room order, starting after the last place searched or advised."""
    advised = {place for text in memory.reflections for place in read_advice([text], view.order, view.goal).first}
    return view.next_places(advised)


def advice_on_places(
    view: AttemptView, places: Sequence[str], wording: Sentences = DEMONSTRATED, random: Random | None = None
) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in drawer 3-4 and shelf 1.`, or both."""
    sentences = [say(wording.seen, random, thing=thing, place=place) for thing, place in view.needed]
    if not view.sees_all and places:
        sentences.append(say(wording.search, random, places=listed(places), kind=view.goal.thing))
    return " ".join(sentences)


def mixed_advice(view: AttemptView, kind: MixedKind, random: Random, wording: Sentences = DEMONSTRATED) -> str:
    """Return one or two short sentences of this kind, or of the nearest kind that the failure allows."""
    if kind == "seen" and view.needed:
        return advice_on_places(view, (), wording)
    places = {"unvisited": view.unsearched, "visited": view.searched}
    choice = places.get(kind) or view.order
    if kind == "empty" or not choice:
        return random.choice(EMPTY_PHRASES)
    drawn = random.sample(choice, min(len(choice), random.randint(1, MIXED_PLACES)))
    return say(wording.search, places=listed([place for place in view.order if place in drawn]))


def useful_advice(view: AttemptView, random: Random, wording: Sentences = DEMONSTRATED) -> str:
    """Return `The mug 1 is in shelf 2.`, `Look in shelf 1-2, desk 1 and bed 1.` with unsearched places, or both."""
    places = list[str]()
    if view.unsearched and not view.sees_all:
        kinds = list(dict.fromkeys(map(type_of, view.unsearched)))
        for kind in random.sample(kinds, min(len(kinds), random.randint(*USEFUL_TYPES))):
            spots = [place for place in view.unsearched if type_of(place) == kind]
            places += spots[: random.randint(*PLACES_PER_TYPE)]
    return advice_on_places(view, places, wording) or random.choice(PHRASES)


def advice_from_solution(
    failure: Trajectory, walkthrough: Sequence[str], wording: Sentences = DEMONSTRATED, random: Random | None = None
) -> str:
    """Return advice such as `The mug 1 is in shelf 2. Then clean it with sinkbasin 1. Put it in countertop 1.`."""
    solution, goal = read_solution(walkthrough), view_of(failure).goal
    # A walkthrough may take the same thing twice; an attempt needs the place where it lay first.
    first: dict[str, str] = {}
    for thing, place in solution.things:
        first.setdefault(thing, place)
    sentences = [say(wording.seen, random, thing=thing, place=place) for thing, place in first.items()]
    if solution.appliance:
        sentences.append(say(wording.transform, random, transform=goal.transform, place=solution.appliance))
    if solution.target:
        sentences.append(say(wording.target, random, place=solution.target))
    return " ".join(sentences)
