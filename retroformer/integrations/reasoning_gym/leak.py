"""Check whether advice holds the right answer although neither the question nor an attempt does.

The answer counts as a whole word or number, whatever its case. A family may accept other answers as well; those are not
noticed.
"""

import re
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import get_args

from retroformer.environments.tasksets import require_package, row_of
from retroformer.integrations.reasoning_gym.datasets import DatasetProcess
from retroformer.integrations.reasoning_gym.section import ReasoningGym, Split
from retroformer.integrations.reasoning_gym.taskset import datasets_of, places_of
from retroformer.method.records import Task, Trajectory


class AnswerLeak:
    """Check against the answer that the package generated with the question."""

    rule = (
        "Advice gives the answer away if it holds the right answer as a whole word or number, and neither the question "
        "nor the attempts before it do."
    )

    def __init__(self, section: ReasoningGym) -> None:
        """Describe the tasks. Raises MissingInput if the package is not installed."""
        require_package("reasoning_gym", "reasoning-gym")
        self._lock = Lock()
        sections = [section.model_copy(update={"split": split}) for split in get_args(Split)]
        self._places = {name: place for section in sections for name, place in places_of(section).items()}
        self._datasets: dict[str, DatasetProcess] = {section.split: datasets_of(section) for section in sections}

    def given_away(self, advice: str, attempts: Sequence[Trajectory]) -> str:
        """Return the right answer if the advice holds it, and neither the question nor these attempts do; else "".

        Raises:
            UnknownTask: there is no such task.
            EnvironmentFailure: the package could not generate the task.
        """
        answer = self._answer(attempts[-1].task)
        if not holds(advice, answer):
            return ""
        return "" if any(holds(text, answer) for attempt in attempts for text in _texts(attempt)) else answer

    def _answer(self, task: Task) -> str:
        place = row_of(self._places, task)
        # The process with the datasets answers one request at a time; the viewer asks from several threads.
        with self._lock:
            return self._datasets[task.id.partition("/")[0]].answer(*place)


def holds(text: str, answer: str) -> bool:
    """Return True if the answer stands in a text as a whole word or number: 24 is neither in 124 nor in -24 or 2.24."""
    whole = rf"(?<![\w.-]){re.escape(answer.strip().casefold())}(?!\w|\.\d)"
    return bool(answer.strip()) and re.search(whole, text.casefold()) is not None


def _texts(attempt: Trajectory) -> Iterator[str]:
    yield attempt.opening
    for step in attempt.steps:
        yield from (step.thought, step.action, step.observation)
