"""Tasks of reasoning-gym: the config section, the process in which they are generated and scored, and the environment.

Some scorers evaluate the answer as an expression, and an expression such as 9**9**9**9 never ends. A scorer that
exceeds its time is stopped with its process, and the answer scores 0.
"""

import faulthandler
import hashlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from retroformer.config.imports import require_extra
from retroformer.environments.extras import ActorKind
from retroformer.environments.section import EnvironmentSection
from retroformer.environments.tasksets import RowTaskset, not_reset, row_of
from retroformer.errors import ConfigError, EnvironmentFailure
from retroformer.method.protocols import Move, Scene
from retroformer.method.records import Task, Transition

_SPACING = 2**30
"""Distance between the seeds of two splits. Task `n` of a dataset is generated from its seed plus `n`, so datasets of
neighbouring seeds share tasks."""
Split = Literal["train", "held_out"]
Place = tuple[str, int]
"""Family and number of a task, whose id is SPLIT/FAMILY/NUMBER."""

_LONGEST_ANSWER = 20_000
"""Characters of an answer that are scored; a longer one scores 0."""
SCORING_SECONDS = 30.0
"""Time limit of generating one task or scoring one answer."""
_FAULT = "fault"


class ReasoningGym(EnvironmentSection):
    success: ClassVar[str] = "a score of 1"
    returns: ClassVar[tuple[float, float]] = (0.0, 1.0)
    packages: ClassVar[tuple[str, ...]] = ("reasoning-gym",)
    default_actor: ClassVar[str] = "answer"
    name: Literal["reasoning-gym"] = "reasoning-gym"
    families: Annotated[dict[str, dict[str, Any]], Field(min_length=1)]
    """Datasets of the package by name, each with its settings: {chain_sum: {max_terms: 4}, spell_backward: {}}."""
    split: Split = "train"
    """Split; each has seeds of its own."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the tasks."""
    size: Annotated[int, Field(ge=1, le=100_000)] = 100
    """Number of tasks of each family in each split."""
    max_steps: Annotated[int, Field(ge=1, le=1)] = 1
    """An attempt is one answer."""

    @property
    def dataset_seed(self) -> int:
        """Seed of the datasets of this split, below 2**31, as NumPy accepts no larger ones."""
        first = int.from_bytes(hashlib.sha256(str(self.seed).encode()).digest()[:4], "big") % _SPACING
        return first if self.split == "train" else first + _SPACING


class DatasetProcess:
    """Datasets of a section's split in a process of their own, which is started by the first request."""

    def __init__(self, section: ReasoningGym, limit_seconds: float = SCORING_SECONDS) -> None:
        common = {"seed": section.dataset_seed, "size": section.size}
        self._settings = {family: settings | common for family, settings in section.families.items()}
        self._limit_seconds = limit_seconds
        self._connection: Connection | None = None

    def text(self, field: Literal["question", "answer"], family: str, index: int) -> str:
        """Return the question of a task, or the right answer, or one of them. Raises EnvironmentFailure."""
        why = ""
        try:
            kind, text = self._ask(field, family, index)
            if kind != _FAULT:
                return str(text)
            why = f": {text}"
        except EOFError:
            pass
        raise EnvironmentFailure(f"reasoning-gym could not generate task {index} of {family}{why}.")

    def score(self, family: str, index: int, text: str) -> float:
        """Return the score of an answer, from 0 to 1. An answer that the scorer cannot read or finish scores 0.

        Raises EnvironmentFailure: the process cannot be started, or cannot generate the task.
        """
        if len(text) > _LONGEST_ANSWER:
            return 0.0
        # After this only the scoring itself can fail, which is the fault of the answer.
        self.text("question", family, index)
        try:
            kind, score = self._ask("score", family, index, text)
        except EOFError:
            return 0.0
        return 0.0 if kind == _FAULT else min(1.0, max(0.0, float(score)))

    def close(self) -> None:
        """Let the process end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, field: str, family: str, index: int, answer: str = "") -> tuple[str, Any]:
        """Return the field, or `fault`, and its value. Raises EOFError if the process has ended."""
        if self._connection is None:
            context = get_context("spawn")
            self._connection, other_end = context.Pipe()
            context.Process(target=_serve, args=(other_end, self._settings, self._limit_seconds), daemon=True).start()
            other_end.close()
        try:
            self._connection.send((field, family, index, answer))
            reply: tuple[str, Any] = self._connection.recv()
        except (OSError, EOFError) as error:
            self.close()
            raise EOFError from error
        return reply


def require_families(section: ReasoningGym) -> None:
    """Create every dataset once.

    Raises:
        MissingInput: the package is not installed.
        ConfigError: there is no such dataset, or it refuses its settings.
    """
    create = _create_dataset()
    from reasoning_gym.factory import DATASETS

    for family, settings in section.families.items():
        if family not in DATASETS:
            raise ConfigError(
                f"reasoning-gym has no dataset {family!r}: correct environment.families. "
                f"It has {', '.join(sorted(DATASETS))}."
            )
        try:
            create(family, **(settings | {"seed": 0, "size": 1}))
        except Exception as error:  # The package raises whatever it likes, AssertionError among them.
            raise ConfigError(
                f"The dataset {family!r} of reasoning-gym refuses its settings in environment.families: {error}."
            ) from error


def _create_dataset() -> Callable[..., Any]:
    """Return the package's function that creates a dataset. Raises MissingInput."""
    require_extra("reasoning-gym", "reasoning_gym")
    from reasoning_gym.factory import create_dataset

    create: Callable[..., Any] = create_dataset
    return create


def _serve(requests: Connection, settings: dict[str, dict[str, Any]], limit_seconds: float) -> None:
    """Answer requests until the other side closes."""
    create = _create_dataset()
    datasets = dict[str, Any]()
    while True:
        try:
            field, family, index, answer = requests.recv()
        except (EOFError, OSError):
            return
        with Path(os.devnull).open("w") as nowhere:
            # A signal would not end a computation in C, such as a power of large integers; this watchdog does.
            faulthandler.dump_traceback_later(limit_seconds, exit=True, file=nowhere)
            try:
                if family not in datasets:
                    datasets[family] = create(family, **settings[family])
                reply = field, _value(datasets[family], field, index, answer)
            except Exception as error:  # Process boundary.
                reply = _FAULT, f"{type(error).__name__}: {error}"
            finally:
                faulthandler.cancel_dump_traceback_later()
        requests.send(reply)


def _value(dataset: Any, field: str, index: int, answer: str) -> str | float:
    from reasoning_gym.utils import extract_answer

    task = dataset[index]
    if field != "score":
        return str(task[field])
    extracted = extract_answer(answer)
    return float(dataset.score_answer(answer.strip() if extracted is None else extracted, task))


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
