"""Arms without a reflector: no advice, phrases without content, one document for all, and another task's advice."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field

from retroformer.agents.arms.arm import Arm, ArmParts, ArmSetting, EarlyArm
from retroformer.agents.reflector import WrittenReflector
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.bounded import read_text
from retroformer.files.document import Words, code, emphasis
from retroformer.files.text import sha256_of, storable
from retroformer.method.protocols import Reflector
from retroformer.method.records import Author, Memory, Reflection, Task, Trajectory
from retroformer.run.arm_names import DOCUMENT

if TYPE_CHECKING:
    from retroformer.run.store import StoredReflection

PHRASES = (
    "Be careful and think step by step.",
    "Try harder next time.",
    "Make a better plan.",
    "Do not waste steps.",
    "Read the task again.",
    "I failed because I ran out of steps.",
    "I was not able to complete the task.",
    "The task was not completed in time.",
    "Next time I will be faster.",
    "You should be more efficient.",
)
"""Advice without content."""
UNSUITABLE = "placebo without suitable advice"
"""Endpoint in place of the author's for advice that does not suit, which a placebo gives where none does."""
_DOCUMENT_BYTES = 100_000
"""Largest document, in bytes."""


def seeded(task: Task, seed: int) -> Random:
    """Return a random generator that depends on the task and the seed alone."""
    return Random(f"{seed}/{task.split}/{task.id}")


class NoAdviceArm(Arm):
    """Retries without advice."""

    kind: Literal["none"] = "none"

    def build(self, parts: ArmParts) -> Reflector:
        return NoReflector()

    def describe(self) -> str:
        return "none: retry without advice"


class NoReflector:
    """Reflector that gives no advice, so the actor only retries."""

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return a blank reflection, which memory does not keep."""
        return Reflection(text="", prompt=(), author=Author(endpoint="none", model="none"))


class PhraseArm(EarlyArm):
    """A sentence without content: does any text at all help?"""

    kind: Literal["phrase"] = "phrase"

    def build(self, parts: ArmParts) -> Reflector:
        return WrittenReflector(
            "phrase", _no_prompt, lambda failure, _, seed: seeded(failure.task, seed).choice(PHRASES)
        )

    def describe(self) -> str:
        return f"a fixed sentence without information{self.when}"


def _no_prompt(failure: Trajectory, memory: Memory) -> tuple[()]:
    return ()


class DocumentArm(EarlyArm):
    """The text of a file, the same after every failure, such as a guide that was optimised for all tasks."""

    kind: Literal["document"] = "document"
    file: Annotated[str, Field(min_length=1)]
    """Path of the text file."""

    def build(self, parts: ArmParts) -> Reflector:
        text = self.text
        # A memory that holds the text gets a blank one, so that it is read once.
        return WrittenReflector(
            "document", _no_prompt, lambda _, memory, seed: "" if text in memory.reflections else text
        )

    @property
    def text(self) -> str:
        """The text of the file. Raises MissingInput if there is none."""
        try:
            text = storable(read_text(Path(self.file), _DOCUMENT_BYTES)).strip()
        except FileNotFoundError:
            text = ""
        if not text:
            raise MissingInput(f"{self.file!r} has no text: name a document with eval.arms.NAME.file.")
        return text

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        return {"document_sha256": sha256_of({"text": self.text})}

    def experience_of(self, run: str) -> Mapping[str, Sequence[str]]:
        """Return the run in whose folder the document lies, if it is in one."""
        return {folder.name: (DOCUMENT,) for folder in Path(self.file).parents if folder.parent.name == "runs"}

    def describe(self) -> Words:
        return "the text of ", code(self.file), f", the same after every failure{self.when}"


class PlaceboArm(Arm):
    """Advice that another arm wrote for another task: does any change of course help as much?

    It plays after its source, which must have finished nine tasks in ten, and draws at random among advice of the same
    trial where there is any.
    """

    kind: Literal["placebo"] = "placebo"
    of: str
    """The arm whose advice is given to other tasks."""
    among: Literal["any", "same_kind", "other_kinds"] = "any"
    """Tasks whose advice is given. any: all other tasks; same_kind: those that are about the same kind of thing, which
    keeps what is generally true and removes what was read in the failure; other_kinds: the rest. Where no such task has
    advice, that of any other task is given, and the report counts it."""

    def with_prefix(self, prefix: str, model: str | None = None) -> Self:
        return self.model_copy(update={"of": f"{prefix}/{self.of}"})

    def check(self, here: str, setting: ArmSetting) -> None:
        source = setting.arms.get(self.of)
        if source is None or isinstance(source, PlaceboArm):
            names = ", ".join(setting.arms)
            raise ConfigError(f"{here}.of: {self.of!r} is not an arm that writes advice; name one of {names}.")
        if self.among != "any" and setting.kind_of is None:
            raise ConfigError(f"{here}.among: tasks of this environment have no kinds; leave it out.")

    def build(self, parts: ArmParts) -> Reflector:
        """Return the reflector with what its source has written so far."""
        pieces = [piece for source in parts.stored_names[self.of] for piece in parts.store.stream_reflections(source)]
        return PlaceboReflector(self.of, pieces, self._suits(parts))

    def _suits(self, parts: ArmParts) -> "Callable[[Trajectory, StoredReflection], bool]":
        """Return the rule by which a piece of advice may be given about a failure."""
        kind_of = parts.setting.kind_of
        if self.among == "any" or kind_of is None:
            return lambda failure, stored: True
        kinds = {
            key.task_id: kind_of(attempt)
            for first_trial in parts.store.arms()
            if first_trial.endswith("/trial 0")
            for key, attempt in parts.store.stream_trajectories(first_trial)
        }
        same = self.among == "same_kind"
        return lambda failure, stored: (kind_of(failure) == kinds.get(stored.key.task_id)) is same

    def conditions(self, parts: ArmParts) -> dict[str, Any]:
        # More tasks, or one more training seed, would change the advice that is dealt out.
        ids = [task.id for task in parts.tasks]
        dealt = {"count": len(ids), "sha256": sha256_of({"tasks": ids})}
        return {"advice_of_tasks": dealt, "sources": list(parts.stored_names[self.of])}

    def describe(self) -> Words:
        limits = {"same_kind": " about the same kind of thing", "other_kinds": " about other kinds of things"}
        return "advice that ", emphasis(self.of), f" wrote about other tasks{limits.get(self.among, '')}"

    def remark(self, authors: Mapping[str, int]) -> str:
        if self.among == "any" or not authors:
            return ""
        count = f"{authors.get(UNSUITABLE, 0)} of {sum(authors.values())} retries"
        return f" (in {count} there was none, so it gave advice about any other task)"


class PlaceboReflector:
    """Reflector that gives advice of another arm on other tasks, if there is some for the same trial.

    `suits(failure, stored)` limits which advice it gives; where none suits, any is given, marked as `UNSUITABLE`.
    """

    def __init__(
        self,
        source_arm: str,
        reflections: "Sequence[StoredReflection]",
        suits: "Callable[[Trajectory, StoredReflection], bool]" = lambda failure, stored: True,
    ) -> None:
        self._source_arm, self._suits = source_arm, suits
        self._reflections = [stored for stored in reflections if stored.reflection.text]

    async def reflect(self, trajectory: Trajectory, memory: Memory, seed: int) -> Reflection:
        """Return advice about another task, drawn by the seed. Raises MissingInput if the source arm wrote none."""
        others = [stored for stored in self._reflections if stored.key.task_id != trajectory.task.id]
        if not others:
            raise MissingInput(
                f"The placebo needs advice that arm {self._source_arm!r} wrote about other tasks, and there is none: "
                "evaluate more tasks (eval.tasks=N), or name another arm with eval.arms.NAME.of."
            )
        suiting = [stored for stored in others if self._suits(trajectory, stored)]
        pool, trial = suiting or others, len(memory.earlier) + 1
        of_trial = [stored for stored in pool if stored.key.trial == trial]
        chosen = Random(seed).choice(of_trial or pool).reflection
        author = chosen.author if suiting else chosen.author.model_copy(update={"endpoint": UNSUITABLE})
        return chosen.model_copy(update={"author": author, "usage": Reflection.model_fields["usage"].default})


BASELINES: tuple[type[Arm], ...] = (NoAdviceArm, PhraseArm, PlaceboArm, DocumentArm)
"""The kinds of arms of this file, which a config of any environment may name."""
