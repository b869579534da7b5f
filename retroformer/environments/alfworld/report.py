"""Report chapters about advice in ALFWorld: what each arm wrote, and what the actor did with it.

It uses the rule actor's shallow reader (`advice_reader.py`), so advice in words that the reader does not understand
counts as advice that names no place to search.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from retroformer.environments.alfworld.advice_reader import PlaceAdvice, clauses_of, find_places, once, read_advice
from retroformer.environments.alfworld.attempt_reader import AttemptView, view_of
from retroformer.environments.alfworld.compact import command, number_of
from retroformer.environments.extras import ReportedArm, SeedFacts, TaskFacts
from retroformer.files.document import Chapter, Row, Table, arm_cell, chapter, number, share, table
from retroformer.method.records import Outcome, Trajectory

FIRST_MOVES = 2
"""Number of walks within which an actor that follows advice has reached a place of it."""
_PLACE_TYPES = """
    armchair bathtubbasin bed cabinet cart coffeemachine coffeetable countertop desk diningtable drawer dresser
    fridge garbagecan handtowelholder laundryhamper microwave ottoman safe shelf sidetable sinkbasin sofa
    stoveburner toaster toilet toiletpaperhanger towelholder tvstand
"""
"""Types of places in ALFWorld's rooms."""
_ALL_PLACES = tuple(f"{kind} {number}" for kind in _PLACE_TYPES.split() for number in range(1, 100))
"""Places that advice may name; no room has so many places of a type, and higher invented numbers are not counted."""


@dataclass(frozen=True)
class ReflectionCase:
    """Failed attempt, the reflection on it, and the attempt that read the reflection.

    Places are in text order, each once, and in the room unless stated otherwise.
    """

    failure: Trajectory
    text: str
    """Reflection; blank if the reflector wrote nothing."""
    retry: Trajectory | None = None
    """Next attempt; None if there was none."""
    given: tuple[str, ...] = ()
    """Advice that the failed attempt had read."""

    @property
    def is_retried(self) -> bool:
        """True if there is a retry that is valid."""
        return self.retry is not None and self.retry.outcome is not Outcome.INVALID

    @cached_property
    def view(self) -> AttemptView:
        return view_of(self.failure)

    @cached_property
    def named(self) -> tuple[str, ...]:
        """All places named."""
        mentions = chain.from_iterable(find_places(clause, self.view.order) for clause in clauses_of(self.text))
        return once(chain.from_iterable(mention.places for mention in mentions))

    @cached_property
    def _advice(self) -> PlaceAdvice:
        """Meaning of the text, as if the room had the places that the text names by type and number and it lacks."""
        lacking = list[str]()
        for mention in chain.from_iterable(find_places(clause, _ALL_PLACES) for clause in clauses_of(self.text)):
            by_number = defaultdict[int, list[str]](list)
            for place in mention.places if mention.numbered else ():
                by_number[number_of(place)].append(place)
            # A nickname such as `table 2` stands for several types: the room has it if it has any of them.
            lacking += [places[0] for places in by_number.values() if not set(places).intersection(self.view.order)]
        return read_advice([self.text], (*self.view.order, *once(lacking)), self.view.goal)

    @cached_property
    def _targets(self) -> tuple[str, ...]:
        """Places to search, or where the text says that a needed thing is; also those that the room lacks."""
        return once((*chain.from_iterable(self._advice.sightings.values()), *self._advice.first))

    @property
    def sent(self) -> tuple[str, ...]:
        """Places to search, or where the text says that a needed thing is."""
        return tuple(place for place in self._targets if place in self.view.order)

    @property
    def invented(self) -> tuple[str, ...]:
        """Numbered places like those of `sent` that the room lacks."""
        return tuple(place for place in self._targets if place not in self.view.order)

    @property
    def located(self) -> tuple[str, ...]:
        """Those of `sent` where the text says that a needed thing is and the failed attempt had seen it."""
        said = ((kind, place) for kind, places in self._advice.sightings.items() for place in places)
        return once(place for kind, place in said if place in self.view.places_of((kind,)))

    @property
    def seen_at(self) -> tuple[str, ...]:
        """Initial places of the needed things that the failed attempt had seen."""
        return self.view.places_of(tuple(self.view.goal.counts))

    @property
    def unsearched(self) -> tuple[str, ...]:
        """Those of `sent` that the failed attempt had not looked into."""
        return tuple(place for place in self.sent if place not in self.view.room.contents)

    @property
    def sent_back(self) -> tuple[str, ...]:
        """Those of `sent` where a needed thing was seen, even if the text does not say that it is there."""
        return tuple(place for place in self.sent if place in self.seen_at)

    @property
    def exhausted(self) -> tuple[str, ...]:
        """Those of `sent` where the failed attempt had looked and seen no needed thing."""
        return tuple(place for place in self.sent if place not in (*self.unsearched, *self.seen_at))

    @property
    def restates(self) -> bool:
        """True if it repeats the failed plan: a text that it had read, or only exhausted places."""
        repeats = bool(self.text.strip()) and self.text.split() in [text.split() for text in self.given]
        return repeats or (bool(self.sent) and self.exhausted == self.sent)


def reflection_cases(facts: SeedFacts) -> list[ReflectionCase]:
    """Return all that this arm wrote about one task, each with its failure and the retry."""
    texts = {trial: reflection.text for trial, reflection in facts.reflections.items()}
    return [
        ReflectionCase(
            facts.attempts[trial - 1],
            text,
            facts.attempts.get(trial),
            given=tuple(texts[number] for number in range(trial) if texts.get(number, "").strip()),
        )
        for trial, text in texts.items()
        if trial  # Advice before the first attempt is about no failure.
    ]


def first_walks(attempt: Trajectory) -> tuple[str, ...]:
    """Return the destinations of the first FIRST_MOVES `go to` actions of an attempt."""
    commands = (command(step.action) for step in attempt.steps)
    walks = [action.removeprefix("go to ") for action in commands if action.startswith("go to ")]
    return tuple(walks[:FIRST_MOVES])


class AdviceCounter:
    """Counter over the reflections of one arm."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Counts by name: `places` and the kinds of places count places to search, the others reflections, failures
        that saw a needed thing (`sighted`), or retries."""
        self.texts = set[int]()
        """Hashes of the texts, whitespace normalised: the texts themselves would not fit into memory."""

    def add(self, case: ReflectionCase) -> None:
        """Count one reflection."""
        words, directed = case.text.split(), case.is_retried and bool(case.sent)
        self.texts.add(hash(" ".join(words)))
        self.counts.update(
            reflections=1,
            words=len(words),
            searching_on=bool(case.unsearched),
            restating=case.restates,
            unusable=not case.named,
            places=len(case.sent) + len(case.invented),
            unsearched=len(case.unsearched),
            seen=len(case.sent_back),
            exhausted=len(case.exhausted),
            invented=len(case.invented),
            sighted=bool(case.seen_at),
            locating=bool(case.seen_at and case.located),
            sent_back=bool(case.seen_at and case.sent_back),
            retries=case.is_retried,
            directed=directed,
            followed=directed and case.retry is not None and not set(first_walks(case.retry)).isdisjoint(case.sent),
            solved=case.retry is not None and case.retry.outcome is Outcome.SUCCESS,
        )


def advice_tables(arms: Mapping[str, AdviceCounter]) -> list[Table]:
    """Return tables of the texts, where they send the actor, and what it did; silent arms are omitted."""
    texts, places, retries = list[Row](), list[Row](), list[Row]()
    for arm, counter in arms.items():
        counts, name = counter.counts, arm_cell(arm)
        if not counts["words"]:
            continue
        written, named, retried = counts["reflections"], counts["places"], counts["retries"]
        texts.append(
            {
                "arm": name,
                "reflections": written,
                "distinct": len(counter.texts),
                "mean words": number(counts["words"] / written, ".1f"),
                "send to a place not yet searched": share(counts["searching_on"], written),
                "restate the failed plan": share(counts["restating"], written),
                "say nothing usable (no place of the room)": share(counts["unusable"], written),
            }
        )
        places.append(
            {
                "arm": name,
                "places to look into": named,
                "not yet searched": share(counts["unsearched"], named),
                "the thing was seen there": share(counts["seen"], named),
                "searched in vain": share(counts["exhausted"], named),
                "not in this room": share(counts["invented"], named),
                "where the failure saw the thing: say where": share(counts["locating"], counts["sighted"]),
                "send there": share(counts["sent_back"], counts["sighted"]),
            }
        )
        followed = share(counts["followed"], counts["directed"])
        retries.append(
            {
                "arm": name,
                "retries": retried,
                "sent to a place of the room": share(counts["directed"], retried),
                f"went to one in the first {FIRST_MOVES} moves": followed,
                "solved": share(counts["solved"], retried),
            }
        )
    if not texts:
        return []
    return [
        table(texts, "The texts of each arm."),
        table(places, "The places that the texts name."),
        table(retries, "What the actor did with the advice."),
    ]


class AdviceChapter:
    """Chapter that compares the advice in ALFWorld with what the failures had shown."""

    def __init__(self, arms: Sequence[ReportedArm]) -> None:
        self._arms = arms
        self._advice = {arm.name: AdviceCounter() for arm in arms}

    def add(self, facts: TaskFacts) -> None:
        """Count what the arms wrote about one task."""
        for arm in self._arms:
            for case in chain.from_iterable(reflection_cases(facts.seeds[name]) for name in arm.stored_names):
                self._advice[arm.name].add(case)

    def chapters(self) -> Iterator[Chapter]:
        """Yield the chapter, if an arm wrote advice."""
        if tables := advice_tables(self._advice):
            yield chapter("What the advice was like", *tables)
