"""The invariant that every fault must leave intact: nothing lost, doubled, silently zero, or paid for without need."""

from typing import NamedTuple

from retroformer.rating import ratings
from retroformer.store import Store
from tests.support.runs import Facts, facts_of


class Whole(NamedTuple):
    """What an unbroken run stores, and the number of calls that it pays for."""

    facts: Facts
    ratings: dict[tuple[str, int, int], float]
    calls: int


class Ended(NamedTuple):
    """A run that met faults and was run again until it ended."""

    faults: int
    calls: int
    """Calls that the endpoint saw."""
    spare: int
    """Calls that may have been in flight when a fault came, and those that a fault answered."""


def whole_of(store: Store, arm: str, calls: int) -> Whole:
    """Read an unbroken run."""
    return Whole(facts_of(store, arm), rated(store, arm), calls)


def rated(store: Store, arm: str) -> dict[tuple[str, int, int], float]:
    """Return the rating of each reflection by its task, trial and candidate."""
    return {(one.task_id, one.trial, one.candidate): one.rating for one in ratings(store, arm)}


def violations(store: Store, arm: str, whole: Whole, ended: Ended) -> list[str]:
    """Return a sentence for each way in which the store of a run differs from that of the unbroken one."""
    facts, found = facts_of(store, arm), list[str]()
    lost = whole.facts.trajectories.keys() - facts.trajectories.keys()
    extra = facts.trajectories.keys() - whole.facts.trajectories.keys()
    found += [f"attempt lost: {key}" for key in sorted(map(str, lost))]
    found += [f"attempt too many: {key}" for key in sorted(map(str, extra))]
    for key, attempt in whole.facts.trajectories.items():
        other = facts.trajectories.get(key)
        if other is not None and other != attempt:
            what = "silently zero" if not other.episode_return and attempt.episode_return else "different"
            found.append(f"attempt {what}: {key}")
    mine, theirs = (
        {stored.key: (stored.previous_candidate, stored.reflection.text) for stored in of.reflections}
        for of in (whole.facts, facts)
    )
    if len(theirs) != len(facts.reflections):
        found.append("reflections doubled")
    found += [f"reflection differs: {key}" for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
    now = rated(store, arm)
    found += [
        f"rating differs: {key}" for key in whole.ratings.keys() | now.keys() if whole.ratings.get(key) != now.get(key)
    ]
    found += ["invalid outcome without a cause" for cause in store.invalid_causes(arm) if not cause.strip()]
    if ended.calls > whole.calls + ended.spare:
        found.append(f"{ended.calls} calls were paid for, and {whole.calls} plus {ended.spare} in flight were allowed")
    return found
