"""Stores cases as facts of a run, so that train, export and reports read them like collected ones.

    with CaseWriter(experiment, source="inspect") as writer:
        stored = writer.add(cases)           # any iterable, in transactions of a few hundred cases
        stored = writer.add_whole(read)      # all or none; `read` returns a new iterator at each call

An attempt with advice and a retry becomes a rated reflection, in the arm that `collect` fills. An attempt with advice
alone becomes a reflection without a rating, and any other attempt a fact that waits for advice. An attempt that was
retried without advice measures luck, so both lie in the arm of unadvised retries, as with `retroformer.Reflector`.

Keys follow from content: the task's id is followed by a hash of the attempt, such as `refund-1@0123456789ab`, and a
candidate or repeat has a hash of its text above its own number. So cases may come in any order and from several
processes, equal ones are stored once, and an import that was killed is completed by the same import again. Several
pieces of advice on one attempt share its key and make preference pairs.

Thinking is removed from advice and attempts, and registered secrets are hidden, before anything is stored.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import NamedTuple, Self

from retroformer.arm_names import COLLECT, UNADVISED
from retroformer.attempt_result import as_trajectory, read_result, text_of
from retroformer.cases.case import MOST_NUMBER, Case, CaseAdvice, CaseAttempt
from retroformer.cases.conditions import conditions_of_cases
from retroformer.endpoint.answers import without_thinking
from retroformer.experiment.config import Experiment
from retroformer.experiment.storage import open_store
from retroformer.experiment.views import reflection_renderer
from retroformer.files.text import sha256_of, storable
from retroformer.records import Author, Key, Memory, Reflection, Task, Trajectory, task_of_story
from retroformer.store import NewReflection, NewTrajectory

_CASES_AT_ONCE = 200
"""Number of cases in one transaction of `add`."""
_HASHES = 2**21 - 1
"""Number of hashes above the number of a candidate or repeat, which has 10 of the 31 bits of a key."""
_AUTHOR = "recorded"
"""Endpoint of advice that was not written here."""


class StoredCases(NamedTuple):
    """Numbers of cases, and of facts that were new to the store."""

    cases: int = 0
    rated: int = 0
    """Number of cases with advice and a retry."""
    failures: int = 0
    """Number of attempts alone with a score below 1: they wait for advice."""
    new_facts: int = 0

    def plus(self, other: "StoredCases") -> "StoredCases":
        """Return the sums."""
        return StoredCases(*map(sum, zip(self, other, strict=True)))


class CaseWriter:
    """Writer of cases to the store of a run.

    Args:
        experiment: config of the run; its prompt pack renders the failures for the reflector.
        source: where the cases come from, a word such as `cases` or `inspect`. A run holds cases of one source.

    Raises:
        ConfigError: the run already holds attempts of other conditions: its own, or those of another source.
        StoreError: the store cannot be opened.
        MissingInput: there is no such prompt pack.
    """

    def __init__(self, experiment: Experiment, source: str = "cases") -> None:
        self._environment = experiment.environment.name
        self._render = reflection_renderer(experiment)
        conditions = conditions_of_cases(experiment, source)
        self.store = open_store(experiment)
        try:
            for arm in (COLLECT, UNADVISED):
                self.store.declare(arm, conditions)
        except BaseException:
            self.store.close()
            raise

    def add(self, cases: Iterable[Case]) -> StoredCases:
        """Store cases, a few hundred in a transaction, each case whole. Return their numbers.

        Raises:
            ConfigError, StoreError: as `Store.add_all` raises them; the cases of earlier transactions are stored.
        """
        counts, waiting = StoredCases(), iter(cases)
        while chunk := list(islice(waiting, _CASES_AT_ONCE)):
            counts = counts.plus(self.add_whole(chunk.__iter__))
        return counts

    def add_whole(self, read: Callable[[], Iterable[Case]]) -> StoredCases:
        """Store cases in one transaction, all or none. Return their numbers.

        Args:
            read: returns the cases. It is called again if the transaction is repeated; an exception in it ends the
                transaction, and nothing is stored.

        Raises:
            ConfigError, StoreError: as `Store.add_all` raises them.
        """
        counts = StoredCases()

        def facts() -> Iterator[NewTrajectory | NewReflection]:
            nonlocal counts
            counts = StoredCases()
            for case in read():
                counts = counts.plus(_counted(case))
                yield from self._facts(case)

        new = self.store.add_all(facts)
        return counts._replace(new_facts=new)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _facts(self, case: Case) -> Iterator[NewTrajectory | NewReflection]:
        name, opening = task_of_story(case.task.id), storable(text_of(case.task.input))
        task = Task(id=name, environment=self._environment, split=storable(case.task.split))
        attempt = _trajectory(case.attempt, task, opening)
        task = task.model_copy(update={"id": f"{name}@{_sha256(attempt)[:12]}"})
        arm = COLLECT if case.advice is not None or case.retry is None else UNADVISED
        before = Key(arm=arm, task_id=task.id, trial=case.trial)
        failure = attempt.model_copy(update={"task": task})
        yield NewTrajectory(before, failure)
        after = before.model_copy(update={"trial": case.trial + 1})
        if case.advice is not None:
            advice = self._reflection(failure, case.advice)
            number = _numbered(case.candidate, advice.author.model, advice.text)
            after = after.model_copy(update={"candidate": number})
            yield NewReflection(after, before.candidate, advice)
        if case.retry is not None:
            retry = _trajectory(case.retry, task, opening)
            yield NewTrajectory(after.model_copy(update={"repeat": _numbered(case.repeat, _sha256(retry))}), retry)

    def _reflection(self, failure: Trajectory, advice: CaseAdvice) -> Reflection:
        return Reflection(
            text=without_thinking(advice.text),
            prompt=self._render(failure, Memory()),
            author=Author(endpoint=_AUTHOR, model=storable(advice.model)),
            finish_reason="length" if advice.is_cut else None,
        )


def _counted(case: Case) -> StoredCases:
    alone = case.advice is None and case.retry is None
    return StoredCases(
        cases=1,
        rated=int(case.advice is not None and case.retry is not None),
        failures=int(alone and case.attempt.score < 1),
    )


def _trajectory(attempt: CaseAttempt, task: Task, opening: str) -> Trajectory:
    form = {"steps": attempt.steps, "messages": attempt.messages, "output": attempt.output}
    result = read_result(form | {"score": attempt.score, "usage": attempt.usage}, None)
    return as_trajectory(task, opening, result)


def _sha256(attempt: Trajectory) -> str:
    """Return the sha256 of an attempt at a task."""
    return sha256_of(attempt.model_dump(mode="json"))


def _numbered(number: int, *texts: str) -> int:
    """Return a number from 2^10 to 2^31 whose low 10 bits are `number`, and whose high bits follow from the texts."""
    digest = hashlib.sha256("\0".join(texts).encode(errors="replace")).digest()
    return (1 + int.from_bytes(digest[:4]) % _HASHES) * (MOST_NUMBER + 1) + number


def number_in_case(stored: int) -> int:
    """Return the number of a candidate or repeat in its case, from the number in its key."""
    return stored % (MOST_NUMBER + 1)
