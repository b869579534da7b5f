"""Baseline reflectors: no advice, phrases without content, one document for all tasks, and another task's advice."""

import random
from collections.abc import Callable, Sequence

from retroformer.agents.phrases import PHRASES, seeded
from retroformer.errors import MissingInput
from retroformer.records import Author, Memory, Reflection, Sampling, Trajectory
from retroformer.store import StoredReflection


class NoReflector:
    """Reflector that gives no advice, so the actor only retries."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return a blank reflection, which memory does not keep."""
        return Reflection(text="", prompt=(), author=Author(endpoint="none", model="none"))


class PhraseReflector:
    """Reflector that gives phrases without content, to test whether any text at all helps."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return one of PHRASES, drawn by seed and task."""
        text = seeded(trajectory.task, seed).choice(PHRASES)
        author = Author(endpoint="rule", model="phrase")
        return Reflection(text=text, prompt=(), author=author, sampling=Sampling(seed=seed))


class DocumentReflector:
    """Reflector that gives the same text on every failure, such as a guide that was optimised for all tasks."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return the document; a memory that already holds it gets a blank text, so that it is read once."""
        text = "" if self._text in memory.reflections else self._text
        return Reflection(text=text, prompt=(), author=Author(endpoint="rule", model="document"))


UNSUITABLE = "placebo without suitable advice"
"""Endpoint in place of the author's for advice that does not suit, which a placebo gives where none does."""


class PlaceboReflector:
    """Reflector that gives advice of another arm on other tasks, to test whether any change of course helps as much.

    `suits(failure, stored)` limits which advice it gives; where none suits, any about another task is given, and marked
    as `UNSUITABLE`. It prefers advice that was written for the same trial.
    """

    def __init__(
        self,
        source_arm: str,
        reflections: Sequence[StoredReflection],
        suits: Callable[[Trajectory, StoredReflection], bool] = lambda failure, stored: True,
    ) -> None:
        self._source_arm, self._suits = source_arm, suits
        self._reflections = [stored for stored in reflections if stored.reflection.text]

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice about another task, drawn by the seed.

        Raises:
            MissingInput: the source arm wrote nothing about any other task.
        """
        others = [stored for stored in self._reflections if stored.key.task_id != trajectory.task.id]
        if not others:
            raise MissingInput(
                f"The placebo needs advice that arm {self._source_arm!r} wrote about other tasks, and there is none: "
                "evaluate more tasks (eval.tasks=N), or name another arm with eval.arms.NAME.of."
            )
        suiting = [stored for stored in others if self._suits(trajectory, stored)]
        pool, trial = suiting or others, len(memory.earlier) + 1
        of_trial = [stored for stored in pool if stored.key.trial == trial]
        chosen = random.Random(seed).choice(of_trial or pool).reflection
        author = chosen.author if suiting else chosen.author.model_copy(update={"endpoint": UNSUITABLE})
        return chosen.model_copy(update={"author": author, "usage": Reflection.model_fields["usage"].default})
