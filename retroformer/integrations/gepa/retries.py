"""Retries of stored failures with a candidate document as the advice; each is played once and stored."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from retroformer.config.arm_names import DOCUMENT, collecting
from retroformer.config.experiment import Experiment
from retroformer.config.parts import gather_all
from retroformer.config.views import reflection_renderer
from retroformer.errors import InfrastructureFailure, MissingInput
from retroformer.files.text import sha256_of
from retroformer.method.records import Author, Key, Memory, Outcome, Reflection, Trajectory
from retroformer.run.attempts import Experience
from retroformer.run.store import Store

_AUTHOR = Author(endpoint="gepa", model="document")
_NUMBERS = 1 << 24
"""Number of candidate numbers, among which a document's own is found by its hash."""


class FailedFirst(NamedTuple):
    """A failed first attempt, and the reflector's view of it."""

    attempt: Trajectory
    view: str


class Retry(NamedTuple):
    """A retry of a failure with a document."""

    failure: FailedFirst
    attempt: Trajectory
    view: str

    @property
    def gain(self) -> float:
        """Change of the return (Retroformer, section 4.3: the rating)."""
        return self.attempt.episode_return - self.failure.attempt.episode_return


def collected_retries(experiment: Experiment, store: Store) -> int:
    """Return the number of retries that the collection of this round made. Raises MissingInput if there are none."""
    retries = sum(row.trial > 0 for row in store.attempt_rows(collecting(experiment.round)))
    if not retries:
        raise MissingInput("The collection of this run made no retries: name how many to spend with --retries NUMBER.")
    return retries


def failed_first_attempts(experiment: Experiment, store: Store) -> list[FailedFirst]:
    """Read the failed first attempts at training tasks, without stories with a mark of `train.leave_out`.

    Raises:
        MissingInput: there are fewer than two.
    """
    render, arm = reflection_renderer(experiment), collecting(experiment.round)
    left_out = store.marks.tasks(arm, experiment.train.leave_out)
    failures = [
        FailedFirst(attempt, render(attempt, Memory())[-1].content)
        for key, attempt in store.stream_trajectories(arm)
        if key.trial == 0 and attempt.failed and key.task_id not in left_out
    ]
    if len(failures) < 2:
        raise MissingInput(
            f"{len(failures)} failed first attempts are stored, and GEPA needs one to learn from and another to check "
            "by: run `retroformer collect EXPERIMENT.yaml` first."
        )
    return failures


class Retries:
    """Plays failures again with a document as the advice."""

    def __init__(self, experiment: Experiment, store: Store, experience: Experience, runner: asyncio.Runner) -> None:
        self._loop, self._store, self._experience, self._runner = experiment.loop, store, experience, runner
        self._render = reflection_renderer(experiment)

    def __call__(self, failures: Sequence[FailedFirst], document: str) -> list[Retry]:
        """Return the retries in the order of the failures.

        Raises:
            InfrastructureFailure: one could not be played; the others are stored.
            BudgetExhausted: the budget of the config is spent.
        """
        return self._runner.run(self._play(failures, document))

    async def _play(self, failures: Sequence[FailedFirst], document: str) -> list[Retry]:
        retries: dict[int, Retry] = {}

        async def play(number: int, failure: FailedFirst) -> None:
            memory = Memory().remember(
                document, self._loop.memory, failure.attempt, shows_attempt=self._loop.last_attempt
            )
            key = self._key(failure.attempt.task.id, document)
            attempt = await self._experience.trajectory(failure.attempt.task, memory, key)
            retries[number] = Retry(failure, attempt, self._render(attempt, memory)[-1].content)

        await gather_all([asyncio.create_task(play(*item)) for item in enumerate(failures)])
        if lost := [retry for retry in retries.values() if retry.attempt.outcome is Outcome.INVALID]:
            raise InfrastructureFailure(
                f"{len(lost)} of {len(failures)} retries could not be played: run the same command again to go on. "
                f"The last cause: {lost[-1].attempt.cause}"
            )
        return [retries[number] for number in range(len(failures))]

    def _key(self, task_id: str, document: str) -> Key:
        """Return the key of a retry; store the document as its advice if it is new.

        The candidate number comes from the document's hash, so that a resumed search finds what it has played.
        """
        reflection = Reflection(text=document, prompt=(), author=_AUTHOR)
        first = int(sha256_of({"text": document}), 16)
        keys = (Key(arm=DOCUMENT, task_id=task_id, trial=1, candidate=number % _NUMBERS) for number in count(first))
        return next(key for key in keys if self._store.add_reflection(key, 0, reflection).text == document)
