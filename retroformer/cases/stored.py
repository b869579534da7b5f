"""Reads the facts of a run back as cases.

Each reflection is a case with every retry that read it, an attempt that was retried without advice is a case with that
retry, and every other attempt is a case of its own.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from pydantic import ValidationError

from retroformer.arm_names import UNADVISED, is_rated
from retroformer.attempt_result import checked_score
from retroformer.cases.case import Case, CaseAdvice, CaseAttempt, CaseTask
from retroformer.cases.faults import fault_of
from retroformer.cases.storing import number_in_case
from retroformer.errors import ConfigError
from retroformer.messages import steps_of
from retroformer.records import Key, Reflection, Trajectory, task_of_story
from retroformer.store import Store, StoredReflection

Attempts = Mapping[Key, Trajectory]
_NO_ADVICE: tuple[str, Iterator[StoredReflection]] = ("", iter(()))


def exported_arms(store: Store) -> list[str]:
    """Return the arms whose facts are cases: collected, imported and lived through, but not evaluated."""
    return [arm for arm in store.arms() if is_rated(arm) or arm == UNADVISED]


def stored_cases(store: Store, arm: str) -> Iterator[Case]:
    """Yield the cases of an arm by task, with the facts of one task in memory at a time.

    Raises:
        ConfigError: a return is no score from 0 to 1.
        StoreError: the store cannot be read.
    """
    reflections = groupby(store.stream_reflections(arm), key=lambda stored: stored.key.task_id)
    task_of_advice, advice = next(reflections, _NO_ADVICE)
    for task_id, pairs in groupby(store.stream_trajectories(arm), key=lambda pair: pair[0].task_id):
        # Both streams come in the order of their keys.
        while task_of_advice and task_of_advice < task_id:
            task_of_advice, advice = next(reflections, _NO_ADVICE)
        own = list(advice) if task_of_advice == task_id else []
        yield from _cases_of(dict(pairs), own)


def _cases_of(attempts: Attempts, reflections: Sequence[StoredReflection]) -> Iterator[Case]:
    """Yield the cases of one task."""
    retries: defaultdict[Key, list[Key]] = defaultdict(list)
    for key in attempts:
        retries[_first(key)].append(key)
    used = set[Key]()
    for stored in reflections:
        before = _before(stored.key, stored.previous_candidate)
        if before not in attempts:
            continue
        read_it = retries.pop(stored.key, [])
        used.update((before, *read_it))
        for after in read_it or [stored.key]:
            yield _case(attempts, before, after, stored.reflection)
    for keys in list(retries.values()):
        before = _before(keys[0], 0)
        if before in attempts:
            used.update((before, *keys))
            for after in keys:
                yield _case(attempts, before, after, None)
    for key in attempts:
        if key not in used:
            yield _case(attempts, key, None, None)


def _first(key: Key) -> Key:
    return key.model_copy(update={"repeat": 0})


def _before(key: Key, candidate: int) -> Key:
    return key.model_copy(update={"trial": key.trial - 1, "candidate": candidate, "repeat": 0})


def _case(attempts: Attempts, before: Key, after: Key | None, advice: Reflection | None) -> Case:
    first, retry = attempts[before], attempts.get(after) if after is not None else None
    numbers = after or before
    try:
        case = Case(
            task=CaseTask(id=task_of_story(first.task.id), input=first.opening, split=first.task.split),
            trial=before.trial,
            candidate=number_in_case(numbers.candidate),
            repeat=number_in_case(numbers.repeat),
            attempt=_attempt(first),
            advice=_advice(advice) if advice is not None else None,
            retry=_attempt(retry) if retry is not None else None,
        )
    except (ValidationError, ValueError) as error:
        fault = fault_of(error) if isinstance(error, ValidationError) else f": {error}"
        raise ConfigError(
            f"The attempts at {first.task.id!r} are no case{fault}; export the facts of this run to a folder instead."
        ) from None
    return case.model_copy(update={"rating": case.gain})


def _advice(advice: Reflection) -> CaseAdvice:
    return CaseAdvice(text=advice.text, model=advice.author.model, is_cut=advice.is_cut)


def _attempt(attempt: Trajectory) -> CaseAttempt:
    """Return an attempt in the form in which it was given: messages, its answer alone, or its steps."""
    return CaseAttempt.model_validate(
        _form(attempt) | {"score": checked_score(attempt.episode_return), "usage": attempt.usage}
    )


def _form(attempt: Trajectory) -> dict[str, object]:
    if attempt.messages is not None:
        said = [(step.thought, step.action, step.observation) for step in steps_of(attempt.messages)]
        own = [(step.thought, step.action, step.observation) for step in attempt.steps]
        form: dict[str, object] = {"messages": attempt.messages}
        return form if said == own else form | {"steps": attempt.steps}
    if len(attempt.steps) == 1 and not attempt.steps[0].thought and not attempt.steps[0].observation:
        return {"output": attempt.steps[0].action}
    return {"steps": attempt.steps}
