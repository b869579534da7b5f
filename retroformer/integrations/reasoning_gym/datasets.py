"""Process in which reasoning-gym generates tasks and scores answers.

Some scorers evaluate the answer as an expression, and an expression such as 9**9**9**9 never ends. A scorer that
exceeds its time is stopped with its process, and the answer scores 0.
"""

import faulthandler
import os
from collections.abc import Callable, Mapping
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from retroformer.environments.tasksets import require_package
from retroformer.errors import ConfigError, EnvironmentFailure

_LONGEST_ANSWER = 20_000
"""Characters of an answer that are scored; a longer one scores 0."""

Families = Mapping[str, Mapping[str, Any]]
"""Settings of the datasets, by the name of the family."""
Wanted = Literal["question", "answer", "score"]
Reply = tuple[Wanted | Literal["fault"], Any]


class DatasetProcess:
    """Datasets in a process of their own, which is started by the first request."""

    def __init__(self, families: Families, seed: int, size: int, limit_seconds: float) -> None:
        """Describe the datasets.

        Args:
            families: the datasets.
            seed: seed of every dataset.
            size: number of tasks of every dataset.
            limit_seconds: time limit of generating one task or scoring one answer.
        """
        drawn = {"seed": seed, "size": size}
        self._settings = {family: dict(settings) | drawn for family, settings in families.items()}
        self._limit_seconds = limit_seconds
        self._connection: Connection | None = None

    def question(self, family: str, index: int) -> str:
        """Return the question of a task. Raises EnvironmentFailure."""
        return self._text("question", family, index)

    def answer(self, family: str, index: int) -> str:
        """Return the right answer of a task, or one of them. Raises EnvironmentFailure."""
        return self._text("answer", family, index)

    def score(self, family: str, index: int, text: str) -> float:
        """Return the score of an answer, from 0 to 1. An answer that the scorer cannot read or finish scores 0.

        Raises:
            EnvironmentFailure: the process cannot be started, or cannot generate the task.
        """
        if len(text) > _LONGEST_ANSWER:
            return 0.0
        # After this only the scoring itself can fail, which is the fault of the answer.
        self.question(family, index)
        try:
            kind, score = self._ask("score", family, index, text)
        except EOFError:
            return 0.0
        return min(1.0, max(0.0, float(score))) if kind == "score" else 0.0

    def close(self) -> None:
        """Let the process end."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _text(self, wanted: Wanted, family: str, index: int) -> str:
        try:
            kind, text = self._ask(wanted, family, index)
        except EOFError:
            raise EnvironmentFailure(f"reasoning-gym could not generate task {index} of {family}.") from None
        if kind == "fault":
            raise EnvironmentFailure(f"reasoning-gym could not generate task {index} of {family}: {text}.")
        return str(text)

    def _ask(self, wanted: Wanted, family: str, index: int, answer: str = "") -> Reply:
        if self._connection is None:
            context = get_context("spawn")
            self._connection, theirs = context.Pipe()
            context.Process(target=_serve, args=(theirs, self._settings, self._limit_seconds), daemon=True).start()
            theirs.close()
        try:
            self._connection.send((wanted, family, index, answer))
            reply: Reply = self._connection.recv()
        except (OSError, EOFError) as error:
            self.close()
            raise EOFError from error
        return reply


def check_families(families: Families) -> None:
    """Create every dataset once.

    Raises:
        MissingInput: the package is not installed.
        ConfigError: there is no such dataset, or it refuses its settings.
    """
    create = _creator()
    from reasoning_gym.factory import DATASETS

    for family, settings in families.items():
        if family not in DATASETS:
            raise ConfigError(
                f"reasoning-gym has no dataset {family!r}: correct environment.families. "
                f"It has {', '.join(sorted(DATASETS))}."
            )
        try:
            create(family, **(dict(settings) | {"seed": 0, "size": 1}))
        except Exception as error:  # The package raises whatever it likes, AssertionError among them.
            raise ConfigError(
                f"The dataset {family!r} of reasoning-gym refuses its settings in environment.families: {error}."
            ) from error


def _creator() -> Callable[..., Any]:
    """Return the package's function that creates a dataset. Raises MissingInput."""
    require_package("reasoning_gym", "reasoning-gym")
    from reasoning_gym.factory import create_dataset

    create: Callable[..., Any] = create_dataset
    return create


def _serve(requests: Connection, settings: dict[str, dict[str, Any]], limit_seconds: float) -> None:
    """Answer requests until the other side closes."""
    create = _creator()
    created = dict[str, Any]()
    while True:
        try:
            wanted, family, index, answer = requests.recv()
        except (EOFError, OSError):
            return
        with Path(os.devnull).open("w") as nowhere:
            # A signal would not end a computation in C, such as a power of large integers; this watchdog does.
            faulthandler.dump_traceback_later(limit_seconds, exit=True, file=nowhere)
            try:
                if family not in created:
                    created[family] = create(family, **settings[family])
                reply = _reply(created[family], wanted, index, answer)
            except Exception as error:  # Process boundary.
                reply = ("fault", f"{type(error).__name__}: {error}")
            finally:
                faulthandler.cancel_dump_traceback_later()
        requests.send(reply)


def _reply(dataset: Any, wanted: Wanted, index: int, answer: str) -> Reply:
    from reasoning_gym.utils import extract_answer

    task = dataset[index]
    if wanted != "score":
        return wanted, str(task[wanted])
    extracted = extract_answer(answer)
    return wanted, float(dataset.score_answer(answer.strip() if extracted is None else extracted, task))
