"""Relabels stored failures with advice that other attempts at the task, or at other training tasks, have proved right.

These are all failures, also those of the last trial, on which nobody has reflected. An environment may write such
advice from its attempts (`Extras.hindsight`). For any other, and where that writes nothing, the best advice that was
tried on the failure is taken, if it helped.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from retroformer.method.ancestors import ancestors, key_before
from retroformer.method.protocols import BuildHindsight, Hindsight
from retroformer.method.rating import Rerating, by_failure, ratings
from retroformer.method.records import Key, Lesson, Trajectory
from retroformer.run.store import Store

from .samples import AdviceText, Prompt


class RatedArm(NamedTuple):
    """An arm of rated reflections."""

    store: Store
    arm: str
    anew: Rerating | None
    """Rule that rates them anew; None for their stored ratings."""
    left_out: frozenset[str]
    """Tasks whose stories have a mark of `train.leave_out`."""


View: TypeAlias = Callable[[Trajectory, Sequence[Lesson]], Prompt]
"""Writes the prompt about a failure and the lessons before it."""
_CHUNK_TASKS = 100
"""Number of tasks whose attempts are in memory together."""


def relabel(
    arms: Sequence[RatedArm],
    build: BuildHindsight | None,
    view: View,
    *,
    other_goals: int,
    reads_history: bool,
) -> Iterator[AdviceText]:
    """Yield advice about each failure in these arms for which there is some, then advice about its variations.

    `build` builds the environment's writer, and is None if it has none. `view` writes the prompt about a failure on
    which nobody has reflected. At most `other_goals` variations of each failure are written, each as a failure at
    another task. Unless the reflector `reads_history`, the writer is given the failure alone, so that it writes nothing
    that the prompt does not show.
    """
    attempts = (
        attempt
        for arm in arms
        for key, attempt in arm.store.stream_trajectories(arm.arm)
        if key.task_id not in arm.left_out
    )
    writer = None if build is None else build(attempts)
    for arm in arms:
        yield from (advice for advice in _of_arm(arm, writer, view, other_goals, reads_history) if advice.text.strip())


def _of_arm(
    arm: RatedArm, writer: Hindsight | None, view: View, other_goals: int, reads_history: bool
) -> Iterator[AdviceText]:
    task_ids, best = sorted(set(arm.store.reflected_tasks(arm.arm)) - arm.left_out), _best_advice(arm)
    for start in range(0, len(task_ids), _CHUNK_TASKS):
        chosen = task_ids[start : start + _CHUNK_TASKS]
        attempts = dict(arm.store.stream_trajectories(arm.arm, chosen))
        advice = {stored.key: stored for stored in arm.store.stream_reflections(arm.arm, chosen)}
        prompts = {key_before(stored): stored.reflection.prompt for stored in advice.values()}
        for key, attempt in attempts.items():
            if not attempt.failed or key.repeat:
                continue
            lessons = ancestors(key, attempts, advice)
            others = list(_not_before(key, attempts))
            shown = lessons if reads_history else ()
            text = writer.advice(attempt, shown, others) if writer else ""
            tried = best.get((key.task_id, key.trial + 1, key.candidate), ("", False))
            prompt = prompts.get(key) or view(attempt, lessons)
            yield AdviceText(prompt, *((text, False) if text else tried))
            if writer:
                for other, before in writer.variations(attempt, shown, other_goals):
                    yield AdviceText(view(other, before), writer.advice(other, before, others))


def _not_before(key: Key, attempts: Mapping[Key, Trajectory]) -> Iterator[Trajectory]:
    """Yield the other attempts at the task in the same trial and in later ones."""
    return (
        attempt for at, attempt in attempts.items() if at.task_id == key.task_id and at.trial >= key.trial and at != key
    )


def _best_advice(arm: RatedArm) -> dict[tuple[str, int, int], tuple[str, bool]]:
    """Return the best text tried on each failure, if it helped, and whether the text is cut."""
    best = {}
    for candidates in by_failure(ratings(arm.store, arm.arm, records=True, anew=arm.anew)):
        advised = [rating for rating in candidates if rating.text.strip()]
        chosen = max(advised, key=lambda rating: rating.rating, default=None)
        if chosen is not None and chosen.rating > 0:
            best[chosen.trajectory] = chosen.text, chosen.is_cut
    return best
