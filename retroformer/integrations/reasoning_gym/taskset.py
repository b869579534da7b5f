"""Taskset, environment and scripted actor of reasoning-gym."""

import re
from collections.abc import Callable

from retroformer.environments.extras import ActorKind, ActorParts
from retroformer.errors import EnvironmentFailure, UnknownTask
from retroformer.integrations.reasoning_gym.datasets import DatasetProcess, check_families
from retroformer.integrations.reasoning_gym.section import ReasoningGym
from retroformer.protocols import Actor, Move, Scene
from retroformer.records import Task, Transition

SCORING_SECONDS = 30.0
"""Time limit of generating one task or scoring one answer."""
_NAME = re.compile(r"(train|held_out)/([a-z0-9_]+)/(0|[1-9][0-9]{0,5})")


class ReasoningGymTaskset:
    """Tasks of one split. Families alternate, so that the first N tasks cover all of them."""

    def __init__(self, section: ReasoningGym) -> None:
        self._section = section
        self._datasets = DatasetProcess(section.families, section.dataset_seed, section.size, SCORING_SECONDS)

    def tasks(self) -> tuple[Task, ...]:
        """Return `size` tasks of each family. Their ids are SPLIT/FAMILY/NUMBER."""
        split = self._section.split
        return tuple(
            Task(id=f"{split}/{family}/{number}", environment=self._section.name, split=split)
            for number in range(self._section.size)
            for family in self._section.families
        )

    def answer(self, task: Task) -> str:
        """Return the right answer of a task, or one of them. Raises UnknownTask, EnvironmentFailure."""
        return self._datasets.answer(*place_of(task.id, self._section))

    def environment(self) -> "ReasoningGymEnvironment":
        """Return an environment; all of them share one process with the datasets."""
        return ReasoningGymEnvironment(self._section, lambda: self._datasets)


class ReasoningGymEnvironment:
    """Episodes of one answer each."""

    def __init__(self, section: ReasoningGym, datasets: Callable[[], DatasetProcess]) -> None:
        self._section, self._datasets = section, datasets
        self._task: tuple[str, int] | None = None

    def reset(self, task: Task) -> Transition:
        """Show the question. Raises UnknownTask, EnvironmentFailure."""
        self._task = place_of(task.id, self._section)
        return Transition(observation=self._datasets().question(*self._task))

    def step(self, action: str) -> Transition:
        """Score the answer: the text in the last pair of tags <answer> and </answer>, or else the whole text."""
        if self._task is None:
            raise EnvironmentFailure("No task was shown yet: reset comes before the first step.")
        score = self._datasets().score(*self._task, action)
        solved = score == 1
        return Transition(
            observation="Right." if solved else f"Wrong: the answer scores {score:.2f} of 1.",
            reward=score,
            terminated=True,
            success=solved,
        )


def place_of(task_id: str, section: ReasoningGym) -> tuple[str, int]:
    """Return family and number of a task. Raises UnknownTask."""
    parts = _NAME.fullmatch(task_id)
    if not parts or parts[1] != section.split or parts[2] not in section.families or int(parts[3]) >= section.size:
        raise UnknownTask(f"No task {task_id!r} in this split: --list prints the ids.")
    return parts[2], int(parts[3])


class BlankActor:
    """Actor without a model whose answer is empty. It fails at every task, which a warm start needs."""

    async def act(self, scene: Scene) -> Move:
        return Move(action="")


def _blank(parts: ActorParts) -> Actor:
    return BlankActor()


BLANK = ActorKind(_blank, asks_model=False, reads_pack=False, reads_last_attempt=False)


def taskset(section: ReasoningGym, seed: int = 0) -> ReasoningGymTaskset:
    """Return the tasks that a section describes; the seed of the experiment does not change them."""
    return ReasoningGymTaskset(section)


def require_families(section: ReasoningGym) -> None:
    """Check that the package has the families. Raises MissingInput, ConfigError."""
    check_families(section.families)
