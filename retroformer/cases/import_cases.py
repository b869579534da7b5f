"""Reads cases into a run, from files of cases and from other programs' records.

They are stored as facts, which train, export and reports read like collected ones. An attempt with advice and a retry
becomes a rated reflection in the arm that `collect` fills, and a failure alone waits for advice there. An attempt that
was retried without advice measures luck, so both lie in the arm of unadvised retries.

Keys follow from content: the task's id is followed by a hash of the attempt, such as `refund-1@0123456789ab`, and a
candidate or repeat has a hash of its text above its own number. So cases may come in any order and from several
processes, equal ones are stored once, and an import that was killed is completed by the same import again. Several
pieces of advice on one attempt share its key and make preference pairs. Thinking is removed from such cases, and
registered secrets are hidden, before anything is stored.

Their conditions say where they come from, so they are never mixed with attempts that `collect` makes under a config, or
with cases of another source. A case with an origin is stored under its keys and conditions, as it is.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from retroformer.agents.attempt_result import as_trajectory, read_result, text_of
from retroformer.cases.case import MOST_NUMBER, Case, CaseAttempt, Origin
from retroformer.cases.files import FORMATS, read_cases
from retroformer.cases.traced import Omission, TracedAttempt, cases_of
from retroformer.config.conditions import check_imported, is_record_of_conditions, prompts_sha256
from retroformer.config.experiment import Experiment
from retroformer.config.imports import load_plugin, plugin_names
from retroformer.config.parts import reads_pack, reflection_renderer
from retroformer.endpoint.answers import strip_thinking
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.text import sha256_of, storable
from retroformer.method.records import Author, Key, Memory, Reflection, Task, Trajectory
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.store import NewReflection, NewTrajectory, open_store
from retroformer.run.store.marks import Mark

IMPORTERS = "retroformer.importers"
"""Entry point group of the formats of integrations and installed packages: NAME = "module:function", a `Reader`."""
Reader = Callable[[Path, str | None, Any], Iterator[TracedAttempt | Case | Omission]]
"""Reader of a format: gets a file or folder, the name of the score to use (None: the only one) and the config's section
of the environment; yields attempts, which are grouped into cases, or cases, and an entry for everything left out.

It raises MissingInput with file, line and field for whatever cannot be read.
"""
Conditions = Mapping[str, Any]
_HASHES = 2**21 - 1
"""Number of hashes above the number of a candidate or repeat, which has 10 of the 31 bits of a key."""
_AUTHOR = "recorded"
"""Endpoint of advice that was not written here."""


def import_cases(
    experiment: Experiment, path: Path, name: str | None = None, score: str | None = None, *, as_json: bool = False
) -> str:
    """Add the cases of a file or folder to the run's store, all or none. Cases that are already stored do not change.

    `name` is the format, by default that of the path's ending, and `score` the score to use, in a format with several.
    Return a summary with the numbers of cases, facts, and entries left out, perhaps with JSON at its end.

    Raises:
        MissingInput: there is no such file, it cannot be read, or it has no case.
        DamagedFile: a line or row is not a case.
        ConfigError: there is no such format, or the run holds attempts of other conditions.
    """
    skipped = Counter[str]()

    def skipped_lines() -> list[str]:
        return [f"skipped {count} {reason}" for reason, count in skipped.items()]

    def cases() -> Iterator[Case]:
        skipped.clear()
        empty = True
        for entry in cases_of(_entries(experiment, path, name, score)):
            if isinstance(entry, Omission):
                skipped[entry.reason] += 1
            else:
                empty = False
                yield entry
        if empty:
            reasons = "; ".join(skipped_lines()) or "it holds none"
            raise MissingInput(
                f"{path} has no attempt to learn from ({reasons}): see docs/traces.md for what one needs."
            )

    source = "cases" if name is None or name in FORMATS else name
    stored = store_cases(experiment, cases, source, str(path))
    lines = [
        f"{stored.cases} cases are in {experiment.store_url}, {stored.new_facts} of their facts new: {stored.rated} "
        f"are rated, {stored.failures} failures wait for advice",
        *skipped_lines(),
    ]
    return "\n".join([*lines, json.dumps(stored._asdict() | {"skipped": skipped})] if as_json else lines)


def _entries(
    experiment: Experiment, path: Path, name: str | None, score: str | None
) -> Iterator[TracedAttempt | Case | Omission]:
    """Return what a reader yields. Raises ConfigError, MissingInput."""
    if name is None or name in FORMATS:
        if score is not None:
            raise ConfigError(f"--score {score}: a case has one score; name another program's records with --format.")
        return read_cases(path, name)
    if name not in (names := plugin_names(IMPORTERS)):
        raise ConfigError(f"There is no format {name!r}: choose one of {', '.join(sorted({*FORMATS, *names}))}.")
    read: Reader = load_plugin(IMPORTERS, name, "format")
    return read(path, score, experiment.environment)


class StoredCases(NamedTuple):
    """Numbers of cases, and of facts that were new to the store."""

    cases: int = 0
    rated: int = 0
    """Number of cases with advice and a retry."""
    failures: int = 0
    """Number of attempts alone with a score below 1: they wait for advice."""
    new_facts: int = 0


def store_cases(
    experiment: Experiment, read: Callable[[], Iterable[Case]], source: str = "cases", name: str = "the cases"
) -> StoredCases:
    """Add cases to the store of a run, all or none. Return their numbers.

    `read` is called twice, or more if the transaction is repeated. `source` says where the cases come from, such as
    `cases` or `inspect`: a run holds cases of one source. `name` is the name of the input, for errors.

    Raises:
        ConfigError: a case is about another environment or an impossible return, or the run already holds attempts of
            other conditions: its own, or those of another source.
        StoreError: the store cannot be written.
        MissingInput: there is no such prompt pack.
    """
    facts = _Facts(experiment, source)
    counts, bound, marks = _check(experiment, facts, read, name)
    with closing(open_store(experiment)) as store:
        for arm, conditions in bound.items():
            store.declare(arm, conditions)
        new = store.add_all(lambda: (fact for case in read() for fact in facts.of(case)))
        store.marks.add_all(marks)
    return counts._replace(new_facts=new)


class _Facts:
    """Facts of cases as a run stores them."""

    def __init__(self, experiment: Experiment, source: str) -> None:
        self._environment, self._render = experiment.environment.name, reflection_renderer(experiment)
        self._imported = {
            "source": source,
            "view": experiment.reflector.view,
            "prompts_sha256": prompts_sha256(experiment) if reads_pack(experiment) else None,
        }

    def conditions(self, case: Case) -> dict[str, Conditions]:
        """Return the conditions of the facts of a case by arm."""
        origin = case.origin
        if origin is not None and origin.conditions is not None:
            return {origin.arm: origin.conditions}
        arms, rated_by = ((origin.arm,), origin.rated_by) if origin is not None else ((COLLECT, UNADVISED), "score")
        return {arm: {"recorded": {"return": rated_by} | self._imported} for arm in arms}

    def of(self, case: Case) -> Iterator[NewTrajectory | NewReflection]:
        """Yield the facts of a case. An attempt in another arm than its retry is a fact of another case."""
        origin, opening = case.origin, storable(text_of(case.task.input))
        task = Task(
            id=case.task.id, environment=self._environment, split=storable(case.task.split), sha256=case.task.sha256
        )
        if origin is not None:
            task = task.model_copy(update={"story": origin.story_of(task.id)})
        attempt = _trajectory(case.attempt, task, opening)
        retry = _trajectory(case.retry, task, opening) if case.retry is not None else None
        if origin is not None:
            before, after = origin.attempt, origin.retry or origin.attempt
        else:
            before, after = _keys(case, attempt, retry)
            task = task.model_copy(update={"story": before.task_id.rpartition("@")[2]})
            attempt = attempt.model_copy(update={"task": task})
        if before.arm == after.arm:
            yield NewTrajectory(before, attempt, case.attempt.stored_at)
        if case.advice is not None:
            advice = case.advice.reflection or Reflection(
                text=strip_thinking(case.advice.text),
                prompt=self._render(attempt, Memory(reflections=case.attempt.memory)),
                author=Author(endpoint=_AUTHOR, model=storable(case.advice.model)),
                finish_reason="length" if case.advice.is_cut else None,
            )
            yield NewReflection(after.model_copy(update={"repeat": 0}), before.candidate, advice)
        if retry is not None:
            yield NewTrajectory(
                after, retry.model_copy(update={"task": task}), case.retry.stored_at if case.retry else None
            )


def _keys(case: Case, attempt: Trajectory, retry: Trajectory | None) -> tuple[Key, Key]:
    """Return the keys of the attempt and of the retry of a case that comes from elsewhere."""
    arm = COLLECT if case.advice is not None or case.retry is None else UNADVISED
    before = Key(
        arm=arm, task_id=f"{attempt.task.id}@{sha256_of(attempt.model_dump(mode='json'))[:12]}", trial=case.trial
    )
    candidate = repeat = 0
    if case.advice is not None:
        candidate = _number_with_hash(case.candidate, case.advice.model, case.advice.text)
    if retry is not None:
        repeat = _number_with_hash(case.repeat, sha256_of(retry.model_dump(mode="json")))
    return before, before.model_copy(update={"trial": case.trial + 1, "candidate": candidate, "repeat": repeat})


def _check(
    experiment: Experiment, facts: _Facts, read: Callable[[], Iterable[Case]], name: str
) -> tuple[StoredCases, dict[str, Conditions], list[Mark]]:
    """Check every case. Return their numbers, the conditions by arm, and the marks. Raises ConfigError."""
    counts, bound, marks = StoredCases(), dict[str, Conditions](), dict[Mark, None]()
    seen = dict[tuple[str, Key], int]()
    for number, case in enumerate(read(), start=1):
        where = f"{name}, case {number}"
        alone = case.advice is None and case.retry is None
        rated = case.advice is not None and case.retry is not None
        counts = StoredCases(number, counts.rated + rated, counts.failures + (alone and case.attempt.score < 1))
        for arm, conditions in facts.conditions(case).items():
            if bound.setdefault(arm, conditions) != conditions:
                raise ConfigError(
                    f"{where}, origin.conditions: facts of the arm {arm!r} were made under two conditions; import "
                    "them into two runs."
                )
        if case.origin is None:
            continue
        _check_origin(case, case.origin, experiment, where)
        marks |= dict.fromkeys(case.origin.marks)
        for fact in facts.of(case):
            record = fact.trajectory if isinstance(fact, NewTrajectory) else fact.reflection
            content = hash(record.model_dump_json())
            if seen.setdefault((type(fact).__name__, fact.key), content) != content:
                raise ConfigError(f"{where}: another case has other facts under its keys; keep one of the two.")
    for arm, conditions in bound.items():
        check_imported(conditions, experiment, arm)
    return counts, bound, list(marks)


def _check_origin(case: Case, origin: Origin, experiment: Experiment, where: str) -> None:
    environment = experiment.environment
    if origin.environment != environment.name:
        raise ConfigError(
            f"{where}, origin.environment: a fact about {origin.environment} cannot be imported into a run on "
            f"{environment.name}; name its own config."
        )
    if origin.attempt.task_id not in (case.task.id, f"{case.task.id}@{origin.story_of(case.task.id)}"):
        raise ConfigError(f"{where}, origin.attempt.task_id: it does not begin with task.id; export the run again.")
    if origin.conditions is not None and not is_record_of_conditions(origin.conditions):
        raise ConfigError(f"{where}, origin.conditions: they are damaged; export the run again.")
    low, high = environment.returns
    for name, attempt in (("attempt", case.attempt), ("retry", case.retry)):
        if attempt is not None and not low <= attempt.score <= high:
            raise ConfigError(
                f"{where}, {name}.score: a return of {attempt.score:g} is impossible in {environment.name}, where it "
                f"lies between {low:g} and {high:g}."
            )


def _trajectory(attempt: CaseAttempt, task: Task, opening: str) -> Trajectory:
    if attempt.outcome is None or attempt.ending is None:
        form = {"steps": attempt.steps, "messages": attempt.messages, "output": attempt.output}
        result = read_result(form | {"score": attempt.score, "usage": attempt.usage}, None)
        return as_trajectory(task, opening, result)
    return Trajectory(
        task=task,
        opening=opening if attempt.opening is None else attempt.opening,
        steps=attempt.steps or (),
        messages=attempt.messages,
        outcome=attempt.outcome,
        ending=attempt.ending,
        judged=attempt.judged,
        usage=attempt.usage,
    )


def _number_with_hash(number: int, *texts: str) -> int:
    """Return a number from 2^10 to 2^31 whose low 10 bits are `number`, and whose high bits follow from the texts."""
    digest = hashlib.sha256("\0".join(texts).encode(errors="replace")).digest()
    return (1 + int.from_bytes(digest[:4]) % _HASHES) * (MOST_NUMBER + 1) + number
