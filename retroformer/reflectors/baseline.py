"""Reflectors that an honest comparison needs: none at all, empty words, and advice written for another task."""

import random
from collections.abc import Sequence

from retroformer.errors import MissingInput
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory
from retroformer.reflectors.wording import PHRASES, drawn
from retroformer.store import StoredReflection


class NoReflector:
    """Says nothing: the retry alone."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """A blank reflection, which memory does not keep."""
        return Reflection(text="", prompt=(), author=Author(endpoint="none", model="none"))


class PhraseReflector:
    """Says something that means nothing: does it help to be spoken to?"""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """One of PHRASES, drawn by seed and task."""
        text = drawn(trajectory.task, seed).choice(PHRASES)
        author = Author(endpoint="rule", model="phrase")
        return Reflection(text=text, prompt=(), author=author, sampling=Sampling(seed=seed))


class PlaceboReflector:
    """Deals out what another arm wrote about other tasks: does any change of path help as much as advice does."""

    def __init__(self, source_arm: str, reflections: Sequence[StoredReflection]) -> None:
        self._source_arm = source_arm
        self._reflections = [one for one in reflections if one.reflection.text]

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Advice about another task, drawn by the seed.

        Raises:
            MissingInput: the source arm wrote nothing about any other task.
        """
        others = [one.reflection for one in self._reflections if one.key.task_id != trajectory.task.id]
        if not others:
            raise MissingInput(
                f"The placebo needs advice that arm {self._source_arm!r} wrote about other tasks, and there is none: "
                "evaluate more tasks (eval.tasks=N), or name another arm with eval.arms.NAME.of."
            )
        chosen = random.Random(seed).choice(others)
        return chosen.model_copy(update={"usage": Reflection.model_fields["usage"].default})
