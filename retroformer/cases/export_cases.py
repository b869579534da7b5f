"""Writes the facts of a run as cases.

Each reflection is a case with every retry that read it, an attempt that was retried without advice is a case with that
retry, and every other attempt is a case of its own.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from heapq import merge
from itertools import chain, groupby
from pathlib import Path

from pydantic import ValidationError

from retroformer.agents.attempt_result import parse_score
from retroformer.agents.messages import steps_of
from retroformer.cases.case import MOST_NUMBER, Case, CaseAdvice, CaseAttempt, CaseTask, Origin, fault_of
from retroformer.cases.files import FORMATS, write_cases
from retroformer.coach.stories.reading import shared_trial
from retroformer.config.experiment import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Key, Reflection, Trajectory
from retroformer.run.arm_names import UNADVISED, is_rated
from retroformer.run.store import Store, StoredReflection, open_whole_store
from retroformer.run.store.marks import Mark

Attempt = tuple[Key, Trajectory]
Link = tuple[Attempt, Reflection | None, tuple[Key, Trajectory | None] | None]
"""An attempt, the advice on it, and the retry that read it."""


def export_cases(experiment: Experiment, path: Path, name: str | None = None, *, exact: bool = False) -> str:
    """Write the cases of a run to a file, in the format of this name. Return a sentence with their number.

    Raises:
        MissingInput: the run has no such attempts.
        ConfigError: there is no such format, or a return is no score from 0 to 1 and the cases are not exact.
        StoreError: the store cannot be read, or a fact is damaged.
    """
    if name not in (None, *FORMATS):
        raise ConfigError(f"There is no format {name!r}: choose one of {', '.join(FORMATS)}.")
    with closing(open_whole_store(experiment)) as store:
        cases = stored_cases(store, exact=exact)
        if (first := next(cases, None)) is None:
            raise MissingInput(f"No attempts of the run {experiment.name!r} in {store.url}: collect or import first.")
        count = write_cases(path, chain([first], cases), name)
    return f"{count} cases are in {path}"


def stored_cases(store: Store, *, exact: bool = False) -> Iterator[Case]:
    """Yield the cases of a run arm by arm and task by task, with the facts of one task in memory at a time.

    Exact cases are the facts of all arms with their origin, so that an import restores them; others only what was
    collected, imported or lived through, not what was evaluated.

    Raises:
        ConfigError: a return is no score from 0 to 1, and the cases are not exact.
        StoreError: the store cannot be read.
    """
    arms = store.arms()
    for arm in arms:
        if exact:
            yield from _exact_cases(store, arm, arms)
        elif is_rated(arm) or arm == UNADVISED:
            for attempts, reflections in _tasks(store, arm):
                yield from map(_plain_case, _links(attempts, reflections, lambda key: None))


def _exact_cases(store: Store, arm: str, arms: Sequence[str]) -> Iterator[Case]:
    shared, kind = shared_trial(store, arm, arms), arm.partition("/")[0]
    others = sorted(arms, key=lambda other: (other != shared, other.partition("/")[0] != kind))
    conditions = store.conditions(arm) or {}
    marks = defaultdict[str, list[Mark]](list)
    for mark in store.marks.history():
        if mark.arm == arm:
            marks[mark.task_id].append(mark)

    def elsewhere(key: Key) -> Attempt | None:
        """Return an attempt that lies in another arm, such as one that several arms share."""
        for other in others:
            moved = key.model_copy(update={"arm": other})
            if (attempt := store.trajectory(moved)) is not None:
                return moved, attempt
        return None

    for attempts, reflections in _tasks(store, arm):
        times = dict[Key, str]()
        for link in _links(attempts, reflections, elsewhere):
            (key, first), _, after = link
            times = times or store.stored_times(arm, key.task_id)
            origin = Origin(
                environment=first.task.environment,
                attempt=key,
                retry=after[0] if after is not None else None,
                conditions=conditions,
                marks=tuple(marks[key.task_id]),
            )
            yield _case(link, partial(_exact_attempt, first.opening, times), origin)


def _tasks(store: Store, arm: str) -> Iterator[tuple[dict[Key, Trajectory], list[StoredReflection]]]:
    """Yield the facts of an arm task by task."""
    # Both streams come in the order of their keys.
    both: Iterator[Attempt | StoredReflection] = merge(
        store.stream_trajectories(arm), store.stream_reflections(arm), key=_task_id
    )
    for _, facts in groupby(both, key=_task_id):
        attempts, reflections = dict[Key, Trajectory](), list[StoredReflection]()
        for fact in facts:
            if isinstance(fact, StoredReflection):
                reflections.append(fact)
            else:
                attempts[fact[0]] = fact[1]
        yield attempts, reflections


def _links(
    attempts: Mapping[Key, Trajectory],
    reflections: Sequence[StoredReflection],
    elsewhere: Callable[[Key], Attempt | None],
) -> Iterator[Link]:
    """Yield the attempts at one task with what followed each."""
    retries = defaultdict[Key, list[Key]](list)
    for key in attempts:
        retries[key.model_copy(update={"repeat": 0})].append(key)
    shown = set[Key]()
    for stored in reflections:
        before = _before(stored.key, stored.previous_candidate)
        failure = (before, attempts[before]) if before in attempts else elsewhere(before)
        if failure is not None:
            read_it = retries.pop(stored.key, [])
            shown.update((before, *read_it))
            for after in read_it or [stored.key]:
                yield failure, stored.reflection, (after, attempts.get(after))
    for keys in retries.values():
        before = _before(keys[0], 0)
        if before in attempts:
            shown.update((before, *keys))
            for after in keys:
                yield (before, attempts[before]), None, (after, attempts[after])
    for key, attempt in attempts.items():
        if key not in shown:
            yield (key, attempt), None, None


def _task_id(fact: Attempt | StoredReflection) -> str:
    return fact[0].task_id


def _before(key: Key, candidate: int) -> Key:
    return key.model_copy(update={"trial": key.trial - 1, "candidate": candidate, "repeat": 0})


def _plain_case(link: Link) -> Case:
    """Return a case without its origin. Raises ConfigError if a return is no score."""
    task_id = link[0][1].task.id
    try:
        return _case(link, _plain_attempt, None)
    except ValueError as error:
        fault = fault_of(error) if isinstance(error, ValidationError) else f": {error}"
        raise ConfigError(f"The attempts at {task_id!r} are no case{fault}; export them with --exact.") from None


def _case(link: Link, form: Callable[[Key, Trajectory], CaseAttempt], origin: Origin | None) -> Case:
    (before, first), advice, after = link
    sha256 = first.task.sha256 if origin is not None else ""
    numbers, retry = after if after is not None else (before, None)
    advised = None
    if advice is not None:
        stored = advice if origin is not None else None
        advised = CaseAdvice(text=advice.text, model=advice.author.model, is_cut=advice.is_cut, reflection=stored)
    case = Case(
        task=CaseTask(id=first.task.id, input=first.opening, split=first.task.split, sha256=sha256),
        trial=before.trial,
        candidate=numbers.candidate % (MOST_NUMBER + 1),
        repeat=numbers.repeat % (MOST_NUMBER + 1),
        attempt=form(before, first),
        advice=advised,
        retry=form(numbers, retry) if retry is not None else None,
        origin=origin,
    )
    return case.model_copy(update={"rating": case.gain})


def _exact_attempt(opening: str, times: Mapping[Key, str], key: Key, attempt: Trajectory) -> CaseAttempt:
    return CaseAttempt(
        score=attempt.episode_return,
        steps=attempt.steps,
        messages=attempt.messages,
        usage=attempt.usage,
        outcome=attempt.outcome,
        ending=attempt.ending,
        judged=attempt.judged,
        opening=attempt.opening if attempt.opening != opening else None,
        stored_at=times.get(key),
    )


def _plain_attempt(_: Key, attempt: Trajectory) -> CaseAttempt:
    """Return an attempt in the form in which it was given: messages, its answer alone, or its steps."""
    score, usage = parse_score(attempt.episode_return), attempt.usage
    if attempt.messages is not None:
        said = [(step.thought, step.action, step.observation) for step in steps_of(attempt.messages)]
        own = [(step.thought, step.action, step.observation) for step in attempt.steps]
        steps = None if said == own else attempt.steps
        return CaseAttempt(score=score, messages=attempt.messages, steps=steps, usage=usage)
    if len(attempt.steps) == 1 and not attempt.steps[0].thought and not attempt.steps[0].observation:
        return CaseAttempt(score=score, output=attempt.steps[0].action, usage=usage)
    return CaseAttempt(score=score, steps=attempt.steps, usage=usage)
