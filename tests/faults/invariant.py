"""The invariant that every fault must leave intact: nothing lost, doubled, silently zero, or paid for without need."""

from typing import NamedTuple

from retroformer.method.rating import ratings
from retroformer.run.store import Store
from tests.support.facts import causes
from tests.support.runs import Facts, facts_of


class Whole(NamedTuple):
    """What an unbroken run stores, and the number of calls that it pays for."""

    facts: dict[str, Facts]
    """Facts by arm."""
    ratings: dict[tuple[str, str, int, int], float]
    calls: int


class Ended(NamedTuple):
    """A run that met faults and was run again until it ended."""

    calls: int
    """Calls that the endpoint saw."""
    spare: int
    """Calls that may have been in flight when a fault came, and those that a fault answered."""


def whole_of(store: Store, calls: int) -> Whole:
    """Read an unbroken run."""
    return Whole({arm: facts_of(store, arm) for arm in store.arms()}, rated(store), calls)


def rated(store: Store) -> dict[tuple[str, str, int, int], float]:
    """Return the rating of each reflection by its arm, task, trial and candidate."""
    return {
        (arm, one.task_id, one.trial, one.candidate): one.rating for arm in store.arms() for one in ratings(store, arm)
    }


def violations(store: Store, whole: Whole, ended: Ended) -> list[str]:
    """Return a sentence for each way in which the store of a run differs from that of the unbroken one."""
    violations = [f"arm differs: {arm}" for arm in whole.facts.keys() ^ set(store.arms())]
    for arm, facts in whole.facts.items():
        violations += _differences(facts_of(store, arm), facts)
        violations += [f"invalid outcome without a cause in {arm}" for cause in causes(store, arm) if not cause.strip()]
    now = rated(store)
    violations += [
        f"rating differs: {key}" for key in whole.ratings.keys() | now.keys() if whole.ratings.get(key) != now.get(key)
    ]
    if ended.calls > whole.calls + ended.spare:
        violations.append(
            f"{ended.calls} calls were paid for, and {whole.calls} plus {ended.spare} in flight were allowed"
        )
    return violations


def _differences(facts: Facts, whole: Facts) -> list[str]:
    violations = [f"attempt lost: {key}" for key in whole.trajectories.keys() - facts.trajectories.keys()]
    violations += [f"attempt too many: {key}" for key in facts.trajectories.keys() - whole.trajectories.keys()]
    for key, attempt in whole.trajectories.items():
        other = facts.trajectories.get(key)
        if other is not None and other != attempt:
            what = "silently zero" if not other.episode_return and attempt.episode_return else "different"
            violations.append(f"attempt {what}: {key}")
    mine, theirs = (
        {stored.key: (stored.previous_candidate, stored.reflection.text) for stored in of.reflections}
        for of in (whole, facts)
    )
    if len(theirs) != len(facts.reflections):
        violations.append("reflections doubled")
    return violations + [
        f"reflection differs: {key}" for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)
    ]
