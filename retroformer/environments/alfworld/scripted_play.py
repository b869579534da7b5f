"""Scripted play on train games, with and without advice: data from which an actor learns the games and to read advice.

The writer of a lesson knows the game, so hints can be right, half right or wrong on purpose. The demonstrator is the
rule-based actor, given the meaning of the lesson instead of its words: the demonstration shows how to act on the words.
Every demonstration is a whole attempt in the compact text; the loss covers only the demonstrator's own actions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import NamedTuple

from retroformer.agents.arms.baselines import PHRASES
from retroformer.environments.alfworld import compact
from retroformer.environments.alfworld.actors import RuleDecision
from retroformer.environments.alfworld.clauses import plural
from retroformer.environments.alfworld.compact import number_of, type_of
from retroformer.environments.alfworld.environment import AlfworldEnvironment, AlfworldTaskset
from retroformer.environments.alfworld.reader import PlaceAdvice
from retroformer.environments.alfworld.reading import Goal, Solution, read_goal, read_solution, read_steps
from retroformer.environments.alfworld.reflectors import FailureView
from retroformer.environments.alfworld.wording import DEMONSTRATED, Sentences, listed, say
from retroformer.environments.extras import Demonstration
from retroformer.method.records import Step, Task

MOST_PLACES = 8
"""Maximum number of places that one sentence names."""
RIGHT_HINTS = 0.6
"""Share of hints about places that name one where a thing of the task is."""
INVENTED = 0.2
"""Share of hints about places that add a place which the room may lack."""
PADDED = 0.15
"""Share of useful advice padded with a phrase that has no content."""
EARLIER = 0.15
"""Share of advised attempts that also carry an earlier, failed piece of advice."""


class WrittenLesson(NamedTuple):
    """Lesson read before an attempt."""

    kind: str
    texts: tuple[str, ...]
    """Reflections, oldest first."""
    advice: PlaceAdvice
    """Meaning of the texts in this game."""


NO_LESSON = WrittenLesson("none", (), PlaceAdvice())


@dataclass(frozen=True)
class TeacherView(FailureView):
    """Game as its advice writer knows it: what a failed attempt has shown, and the solution."""

    solution: Solution
    wording: Sentences = DEMONSTRATED
    """Sentences of the advice."""


def write_lesson(game: TeacherView, other: TeacherView, random: Random) -> WrittenLesson:
    """Return a lesson drawn from the mixture; advice about another task is about `other`."""
    kind = random.choices(tuple(SHARES), tuple(SHARES.values()))[0]
    if kind == "none":
        return NO_LESSON
    text, advice = _WRITERS[kind](other if kind == "other" else game, random)
    if not text:
        return NO_LESSON
    lesson = WrittenLesson(kind, (text,), meaning(advice, game.goal, game.order))
    if kind != "phrase" and random.random() < PADDED:
        words = [lesson.texts[0], random.choice(PHRASES)]
        lesson = lesson._replace(texts=(" ".join(random.sample(words, 2)),))
    return _after_another(lesson, game, random) if random.random() < EARLIER else lesson


def meaning(advice: PlaceAdvice, goal: Goal, order: Sequence[str]) -> PlaceAdvice:
    """Return the part of the advice that applies here: places of this room, and sightings of the things wanted."""
    room = set(order)
    return PlaceAdvice(
        first=tuple(place for place in advice.first if place in room),
        skip=tuple(place for place in advice.skip if place in room),
        sightings={
            kind: tuple(place for place in places if place in room)
            for kind, places in advice.sightings.items()
            if kind in (goal.thing, goal.lamp)
        },
        targets=tuple(place for place in advice.targets if place in room and type_of(place) == goal.target),
        appliances=tuple(place for place in advice.appliances if place in room and type_of(place) == goal.appliance),
    )


def _hindsight_lesson(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write what the attempt saw and, optionally, where not to look again and where to go on."""
    sentences, sightings = _sightings(game, game.needed, random)
    advice = PlaceAdvice(sightings=sightings)
    if game.sees_all:
        return " ".join(sentences), advice
    form = random.choices(("onwards", "both", "skip"), (0.6, 0.25, 0.15))[0]
    looked = game.searched
    if looked and form != "onwards":
        sentences.append(_about(game.wording.skip, looked, game, random))
        advice = replace(advice, skip=looked)
    if (left := game.next_places()) and form != "skip":
        places = left[: random.randint(1, MOST_PLACES)]
        sentences.append(_about(game.wording.search, places, game, random))
        advice = replace(advice, first=as_listed(places))
    return " ".join(sentences), advice


def _oracle_lesson(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write where the things are and, often, what to do with them."""
    sentences, sightings = _sightings(game, game.solution.things, random)
    advice = PlaceAdvice(sightings=sightings)
    if random.random() < 0.5:
        if place := game.solution.appliance:
            sentences.append(say(game.wording.transform, random, transform=game.goal.transform, place=place))
            advice = replace(advice, appliances=(place,))
        if place := game.solution.target:
            sentences.append(say(game.wording.target, random, place=place))
            advice = replace(advice, targets=(place,))
    return " ".join(sentences), advice


def _places(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write a few places, right by chance, and sometimes one that this room lacks."""
    count = min(random.choice((1, 1, 2, 2, 3, 4, 6)), len(game.order))
    places = random.sample(game.order, count)
    if game.solution.things and random.random() < RIGHT_HINTS:
        places[random.randrange(count)] = random.choice(game.solution.things)[1]
    if random.random() < INVENTED:
        places.append(f"{type_of(random.choice(game.order))} {random.randint(2, 30)}")
    return _about(game.wording.search, places, game, random), PlaceAdvice(first=as_listed(places))


def _types(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write all places of a type, as in `Look in the drawers.`."""
    right = [place for _, place in game.solution.things]
    place = random.choice(right) if right and random.random() < RIGHT_HINTS else random.choice(game.order)
    kind = type_of(place)
    places = tuple(spot for spot in game.order if type_of(spot) == kind)
    words = f"the {kind if len(places) == 1 else plural(kind)}"
    return say(game.wording.search, random, places=words, kind=game.goal.thing), PlaceAdvice(first=places)


_WRITERS: Mapping[str, Callable[[TeacherView, Random], tuple[str, PlaceAdvice]]] = MappingProxyType(
    {
        "looking back": _hindsight_lesson,
        "all-knowing": _oracle_lesson,
        "places": _places,
        "types": _types,
        "other": lambda game, random: random.choice((_hindsight_lesson, _oracle_lesson))(game, random),
        # Phrases that carry no advice.
        "phrase": lambda game, random: (" ".join(random.sample(PHRASES, random.choice((1, 1, 2)))), PlaceAdvice()),
    }
)

SHARES: Mapping[str, float] = MappingProxyType(
    {
        "none": 0.2,
        "looking back": 0.32,
        "all-knowing": 0.14,
        "places": 0.16,
        "types": 0.06,
        "other": 0.07,
        "phrase": 0.05,
    }
)
"""Shares of the kinds of lesson.

none: no advice. looking back: from a failed attempt. all-knowing: where things are. places, types: hints, some right.
other: written for another game. phrase: no content.
"""


def _sightings(
    game: TeacherView, things: Sequence[tuple[str, str]], random: Random
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    sightings: dict[str, tuple[str, ...]] = {}
    for thing, place in things:
        sightings[type_of(thing)] = (*sightings.get(type_of(thing), ()), place)
    return [say(game.wording.seen, random, thing=thing, place=place) for thing, place in things], sightings


def _about(sentences: Sequence[str], places: Sequence[str], game: TeacherView, random: Random) -> str:
    return say(sentences, random, places=listed(places), kind=game.goal.thing)


def as_listed(places: Sequence[str]) -> tuple[str, ...]:
    """Return the places in the order in which `listed` names them: types by first appearance, numbers ascending."""
    kinds = list(dict.fromkeys(map(type_of, places)))
    return tuple(sorted(set(places), key=lambda place: (kinds.index(type_of(place)), number_of(place))))


def _after_another(lesson: WrittenLesson, game: TeacherView, random: Random) -> WrittenLesson:
    """Return the lesson preceded by an older one, whose places were tried in vain and are now to be skipped."""
    tried = game.searched[:MOST_PLACES]
    if not tried:
        return lesson
    older = _about(game.wording.search, tried, game, random)
    named = {*lesson.advice.first, *(place for spots in lesson.advice.sightings.values() for place in spots)}
    skip = tuple(dict.fromkeys((*lesson.advice.skip, *(place for place in tried if place not in named))))
    return lesson._replace(texts=(older, *lesson.texts), advice=replace(lesson.advice, skip=skip))


SLIPS = 0.03
"""Share of steps with a random action; the model learns the recovery, not the slip."""
SHORTEST_FAILURE = 3
"""Minimum number of steps of the failed attempt that a lesson looks back on."""


def demonstrations(
    games: AlfworldTaskset, count: int, actions: int, seed: int, wording: Sentences = DEMONSTRATED
) -> Iterator[Demonstration]:
    """Yield `count` attempts of at most `actions` actions; task types alternate, games are drawn at random.

    Each demonstration has its own order of the room line, and so its own search order.
    """
    random = Random(f"demonstrations {seed}")
    environment = games.environment()
    by_type: dict[str, list[Task]] = {}
    for task in games.tasks():
        by_type.setdefault(task.id.partition("-")[0], []).append(task)
    pools = [by_type[kind] for kind in sorted(by_type)]
    before: TeacherView | None = None
    for number in range(count):
        task = random.choice(pools[number % len(pools)])
        variant = task.model_copy(update={"id": f"{task.id} {number}"})
        game = _after_a_failure(games, environment, task, variant, actions, random)
        game = replace(game, wording=wording)
        lesson = write_lesson(game, before or game, random)
        yield _demonstrate(environment, task, variant, game, lesson, actions, random)
        before = game


def _after_a_failure(
    games: AlfworldTaskset, environment: AlfworldEnvironment, task: Task, variant: Task, actions: int, random: Random
) -> TeacherView:
    """Return what an attempt without advice shows; an attempt that solves the game is cut short."""
    sentence, places = compact.read_opening(environment.reset(task).observation)
    order = compact.room_order(variant, places)
    game = TeacherView(read_goal(sentence), order, read_steps(()), read_solution(games.walkthrough(task)))
    attempt = _attempt(environment, task, game, NO_LESSON.advice, actions, None)
    steps = attempt.steps
    if attempt.solved:
        steps = steps[: random.randint(min(SHORTEST_FAILURE, len(steps) - 1), len(steps) - 1)]
    return replace(game, room=read_steps(steps))


def _demonstrate(
    environment: AlfworldEnvironment,
    task: Task,
    variant: Task,
    game: TeacherView,
    lesson: WrittenLesson,
    actions: int,
    random: Random,
) -> Demonstration:
    attempt = _attempt(environment, task, game, lesson.advice, actions, random)
    between = compact.header(variant, attempt.opening, lesson.texts)
    pieces = list[tuple[str, bool]]()
    for number, step in enumerate(attempt.steps):
        pieces += [(f"{between}>", False), (f" {step.action}\n", number not in attempt.slips)]
        between = f"{compact.observation(step.action, step.observation)}\n"
    return Demonstration(task.id, lesson.kind, attempt.solved, tuple(pieces))


class _PlayedAttempt(NamedTuple):
    opening: str
    steps: tuple[Step, ...]
    solved: bool
    slips: frozenset[int]
    """Steps with a random action."""


def _attempt(
    environment: AlfworldEnvironment,
    task: Task,
    game: TeacherView,
    advice: PlaceAdvice,
    actions: int,
    chance: Random | None,
) -> _PlayedAttempt:
    seen, steps, slips = environment.reset(task), list[Step](), set[int]()
    opening = seen.observation
    while not seen.over and len(steps) < actions:
        action = RuleDecision(game.goal, game.order, read_steps(steps), advice, seen.choices).action()
        if chance and chance.random() < SLIPS:
            action = f"go to {chance.choice(game.order)}"
            slips.add(len(steps))
        seen = environment.step(action)
        steps.append(Step(action=action, observation=seen.observation))
    return _PlayedAttempt(opening, tuple(steps), seen.success, frozenset(slips))
