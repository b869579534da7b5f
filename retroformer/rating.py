"""What a reflection was worth, and which of two was better (Retroformer, section 4.3)."""

import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations

from retroformer.records import Key, PreferencePair, RatedReflection
from retroformer.store import Store


def rated_reflections(store: Store, arm: str) -> list[RatedReflection]:
    """Every reflection of an arm whose trial before and trial after are stored.

    The store holds valid attempts only, so a reflection whose retry the infrastructure spoiled is not rated: it waits
    for the next run.
    """
    trajectories = store.trajectories(arm)
    returns_after: defaultdict[Key, list[float]] = defaultdict(list)
    for key, trajectory in trajectories.items():
        returns_after[key.model_copy(update={"repeat": 0})].append(trajectory.episode_return)
    rated = []
    for key, previous_candidate, reflection, _ in store.reflections(arm):
        before = trajectories.get(key.model_copy(update={"trial": key.trial - 1, "candidate": previous_candidate}))
        if before is not None and key in returns_after:
            rated.append(
                RatedReflection(
                    key=key,
                    reflection=reflection,
                    return_before=before.episode_return,
                    returns_after=tuple(returns_after[key]),
                )
            )
    return rated


def preference_pairs(rated: Iterable[RatedReflection]) -> list[PreferencePair]:
    """All pairs of reflections on one trajectory whose ratings differ by more than their standard error.

    Ties never become pairs, nor does a text with itself: a reward model can learn nothing but noise from them.
    """
    same_trajectory: defaultdict[tuple[str, int], list[RatedReflection]] = defaultdict(list)
    for one in rated:
        same_trajectory[one.key.task_id, one.key.trial].append(one)
    pairs = []
    for candidates in same_trajectory.values():
        for first, second in combinations(candidates, 2):
            better, worse = sorted((first, second), key=lambda one: one.rating, reverse=True)
            margin = better.rating - worse.rating
            differ = better.reflection.text != worse.reflection.text
            if differ and margin > math.hypot(better.standard_error, worse.standard_error):
                pairs.append(
                    PreferencePair(
                        task_id=better.key.task_id,
                        prompt=better.reflection.prompt,
                        chosen=better.reflection.text,
                        rejected=worse.reflection.text,
                        margin=margin,
                    )
                )
    return pairs
