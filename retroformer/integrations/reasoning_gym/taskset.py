"""Taskset, environment and scripted actor of reasoning-gym."""

from collections.abc import Mapping
from functools import partial

from retroformer.environments.extras import ActorKind
from retroformer.environments.tasksets import RowTaskset, not_reset, row_of
from retroformer.integrations.reasoning_gym.datasets import DatasetProcess
from retroformer.integrations.reasoning_gym.section import ReasoningGym
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import Task, Transition

Place = tuple[str, int]
"""Family and number of a task, whose id is SPLIT/FAMILY/NUMBER."""


class ReasoningGymEnvironment:
    """Episodes of one answer each."""

    def __init__(self, datasets: DatasetProcess, places: Mapping[str, Place]) -> None:
        self._datasets, self._places = datasets, places
        self._task: Place | None = None

    def reset(self, task: Task) -> Transition:
        """Show the question. Raises UnknownTask, EnvironmentFailure."""
        self._task = row_of(self._places, task)
        return Transition(observation=self._datasets.text("question", *self._task))

    def step(self, action: str) -> Transition:
        """Score the answer: the text in the last pair of tags <answer> and </answer>, or else the whole text."""
        if self._task is None:
            raise not_reset()
        score = self._datasets.score(*self._task, action)
        solved = score == 1
        return Transition(
            observation="Right." if solved else f"Wrong: the answer scores {score:.2f} of 1.",
            reward=score,
            terminated=True,
            success=solved,
        )


class BlankActor:
    """Actor without a model whose answer is empty. It fails at every task, which a warm start needs."""

    async def act(self, scene: Scene) -> Move:
        return Move(action="")


BLANK = ActorKind(lambda _: BlankActor(), asks_model=False, reads_pack=False, reads_last_attempt=False)


def taskset(section: ReasoningGym, seed: int = 0) -> RowTaskset[Place]:
    """Return the tasks that a section describes; the seed of the experiment does not change them.

    All environments share one process with the datasets.
    """
    build = partial(ReasoningGymEnvironment, DatasetProcess(section))
    return RowTaskset(section.name, section.split, partial(places_of, section), build)


def places_of(section: ReasoningGym) -> dict[str, Place]:
    """Return the places of all tasks. Families alternate, so that the first N tasks cover all of them."""
    numbers, split = range(section.size), section.split
    return {f"{split}/{family}/{number}": (family, number) for number in numbers for family in section.families}
