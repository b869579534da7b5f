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
from retroformer.environments.alfworld.advice_reader import PlaceAdvice, once, plural
from retroformer.environments.alfworld.advice_writer import DEMONSTRATED, WORDINGS, Sentences, listed, say
from retroformer.environments.alfworld.attempt_reader import (
    AttemptView,
    Goal,
    RoomKnowledge,
    Solution,
    read_goal,
    read_solution,
    read_steps,
)
from retroformer.environments.alfworld.compact import number_of, type_of
from retroformer.environments.alfworld.environment import AlfworldEnvironment, AlfworldTaskset
from retroformer.environments.extras import Demonstration
from retroformer.environments.section import Wording
from retroformer.method.records import Step, Task

MAX_PLACES = 8
"""Maximum number of places that one sentence names."""
RIGHT_HINT_SHARE = 0.6
"""Share of hints about places that name one where a thing of the task is."""
INVENTED_PLACE_SHARE = 0.2
"""Share of hints about places that add a place which the room may lack."""
PADDED_SHARE = 0.15
"""Share of advice with content that is padded with a phrase without any."""
OLDER_ADVICE_SHARE = 0.15
"""Share of advised attempts that also carry an earlier, failed piece of advice."""
RANDOM_STEP_SHARE = 0.03
"""Share of steps with a random action; the model learns the recovery, not the random action."""
MIN_FAILURE_STEPS = 3
"""Minimum number of steps of the failed attempt that a lesson is about."""


class WrittenLesson(NamedTuple):
    kind: str
    texts: tuple[str, ...]
    """Reflections, oldest first."""
    advice: PlaceAdvice
    """Meaning of the texts in this game."""


NO_LESSON = WrittenLesson("none", (), PlaceAdvice())


@dataclass(frozen=True)
class TeacherView(AttemptView):
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
    if kind != "phrase" and random.random() < PADDED_SHARE:
        text = " ".join(random.sample([text, random.choice(PHRASES)], 2))
    lesson = WrittenLesson(kind, (text,), meaning(advice, game.goal, game.order))
    return _with_older_advice(lesson, game, random) if random.random() < OLDER_ADVICE_SHARE else lesson


def meaning(advice: PlaceAdvice, goal: Goal, order: Sequence[str]) -> PlaceAdvice:
    """Return the part of the advice that applies here: places of this room, and sightings of the things wanted."""

    def in_room(places: Sequence[str]) -> tuple[str, ...]:
        return tuple(place for place in places if place in order)

    return PlaceAdvice(
        first=in_room(advice.first),
        skip=in_room(advice.skip),
        sightings={kind: in_room(advice.sightings[kind]) for kind in advice.sightings if kind in goal.counts},
        targets=tuple(place for place in in_room(advice.targets) if type_of(place) == goal.target),
        appliances=tuple(place for place in in_room(advice.appliances) if type_of(place) == goal.appliance),
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
        places = left[: random.randint(1, MAX_PLACES)]
        sentences.append(_about(game.wording.search, places, game, random))
        advice = replace(advice, first=as_listed(places))
    return " ".join(sentences), advice


def _oracle_lesson(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write where the things are and, often, what to do with them."""
    (things, appliance, target), wording = game.solution, game.wording
    sentences, sightings = _sightings(game, things, random)
    if random.random() >= 0.5:
        return " ".join(sentences), PlaceAdvice(sightings=sightings)
    if appliance:
        sentences.append(say(wording.transform, random, transform=game.goal.transform, place=appliance))
    if target:
        sentences.append(say(wording.target, random, place=target))
    advice = PlaceAdvice(sightings=sightings, targets=(target,), appliances=(appliance,))
    return " ".join(sentences), advice


def _places_lesson(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write a few places, right by chance, and sometimes one that this room lacks."""
    count = min(random.choice((1, 1, 2, 2, 3, 4, 6)), len(game.order))
    places = random.sample(game.order, count)
    if game.solution.things and random.random() < RIGHT_HINT_SHARE:
        places[random.randrange(count)] = random.choice(game.solution.things)[1]
    if random.random() < INVENTED_PLACE_SHARE:
        places.append(f"{type_of(random.choice(game.order))} {random.randint(2, 30)}")
    return _about(game.wording.search, places, game, random), PlaceAdvice(first=as_listed(places))


def _types_lesson(game: TeacherView, random: Random) -> tuple[str, PlaceAdvice]:
    """Write all places of a type, as in `Look in the drawers.`."""
    right = [place for _, place in game.solution.things]
    place = random.choice(right) if right and random.random() < RIGHT_HINT_SHARE else random.choice(game.order)
    kind = type_of(place)
    places = tuple(spot for spot in game.order if type_of(spot) == kind)
    words = f"the {kind if len(places) == 1 else plural(kind)}"
    return say(game.wording.search, random, places=words, kind=game.goal.thing), PlaceAdvice(first=places)


_WRITERS: Mapping[str, Callable[[TeacherView, Random], tuple[str, PlaceAdvice]]] = MappingProxyType(
    {
        "hindsight": _hindsight_lesson,
        "oracle": _oracle_lesson,
        "places": _places_lesson,
        "types": _types_lesson,
        "other": lambda game, random: random.choice((_hindsight_lesson, _oracle_lesson))(game, random),
        "phrase": lambda game, random: (" ".join(random.sample(PHRASES, random.choice((1, 1, 2)))), PlaceAdvice()),
    }
)

SHARES: Mapping[str, float] = MappingProxyType(
    {"none": 0.2, "hindsight": 0.32, "oracle": 0.14, "places": 0.16, "types": 0.06, "other": 0.07, "phrase": 0.05}
)
"""Shares of the kinds of lesson.

none: no advice. hindsight: from a failed attempt. oracle: where things are. places, types: hints, some right.
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


def _with_older_advice(lesson: WrittenLesson, game: TeacherView, random: Random) -> WrittenLesson:
    """Return the lesson preceded by an older one, whose places were tried in vain and are now to be skipped."""
    tried = game.searched[:MAX_PLACES]
    if not tried:
        return lesson
    older = _about(game.wording.search, tried, game, random)
    named = {*lesson.advice.first, *(place for spots in lesson.advice.sightings.values() for place in spots)}
    skip = once((*lesson.advice.skip, *(place for place in tried if place not in named)))
    return lesson._replace(texts=(older, *lesson.texts), advice=replace(lesson.advice, skip=skip))


def demonstrations(
    games: AlfworldTaskset,
    count: int,
    actions: int,
    seed: int,
    wording: Wording = "demonstrated",
    obeyed: Wording = "either",
) -> Iterator[Demonstration]:
    """Yield `count` attempts of at most `actions` actions; task types alternate, games are drawn at random.

    Each demonstration has its own order of the room line, and so its own search order. After advice in other words than
    the `obeyed` ones it goes on as if there was no advice, and its kind is `ignored`.
    """
    random = Random(f"demonstrations {seed}")
    environment = games.environment()
    by_type: dict[str, list[Task]] = {}
    for task in games.tasks():
        by_type.setdefault(task.id.partition("-")[0], []).append(task)
    pools = [by_type[kind] for kind in sorted(by_type)]
    previous: TeacherView | None = None
    for number in range(count):
        task = random.choice(pools[number % len(pools)])
        variant = task.model_copy(update={"id": f"{task.id} {number}"})
        opening = environment.reset(task).observation
        sentence, places = compact.read_opening(opening)
        order, solution = compact.room_order(variant, places), read_solution(games.walkthrough(task))
        words = random.choice(tuple(WORDINGS)) if wording == "either" else wording
        game = TeacherView(read_goal(sentence), order, RoomKnowledge(), solution, WORDINGS[words])
        game = replace(game, room=_failed_play(environment, task, game, actions, random))
        lesson = write_lesson(game, replace(previous or game, wording=game.wording), random)
        if lesson.texts and obeyed not in ("either", words):
            lesson = lesson._replace(kind="ignored", advice=PlaceAdvice())
        text = compact.header(variant, opening, lesson.texts)
        pieces, played = list[tuple[str, bool]](), _play(environment, task, game, lesson.advice, actions, random)
        for step, is_random, _ in played:
            pieces += [(f"{text}>", False), (f" {step.action}\n", not is_random)]
            text = f"{compact.observation(step.action, step.observation)}\n"
        yield Demonstration(task.id, lesson.kind, played[-1].solves, tuple(pieces))
        previous = game


class PlayedStep(NamedTuple):
    step: Step
    is_random: bool
    solves: bool


def _failed_play(
    environment: AlfworldEnvironment, task: Task, game: TeacherView, actions: int, random: Random
) -> RoomKnowledge:
    """Return what an attempt without advice shows; an attempt that solves the game is cut short."""
    played = _play(environment, task, game, NO_LESSON.advice, actions)
    steps = [step for step, _, _ in played]
    if played[-1].solves:
        steps = steps[: random.randint(min(MIN_FAILURE_STEPS, len(steps) - 1), len(steps) - 1)]
    return read_steps(steps)


def _play(
    environment: AlfworldEnvironment,
    task: Task,
    game: TeacherView,
    advice: PlaceAdvice,
    actions: int,
    random: Random | None = None,
) -> list[PlayedStep]:
    seen, played = environment.reset(task), list[PlayedStep]()
    while not seen.over and len(played) < actions:
        room = read_steps([step for step, _, _ in played])
        action = RuleDecision(game.goal, game.order, room, advice, seen.choices).action()
        is_random = random is not None and random.random() < RANDOM_STEP_SHARE
        if random and is_random:
            action = f"go to {random.choice(game.order)}"
        seen = environment.step(action)
        step = Step(action=action, observation=seen.observation)
        played.append(PlayedStep(step, is_random, seen.success))
    return played
