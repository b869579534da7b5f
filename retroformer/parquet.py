"""Exports the facts of a run as Parquet files, for common data tools, and imports them again.

`trajectories.parquet` and `reflections.parquet` have one row per fact: its key, a few columns for inspection, the hash
of its conditions, and `record`, the whole fact as JSON. Import reads only key, hash and record (and
`previous_candidate`), so the other columns may be changed freely. The metadata of both files hold the conditions.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from retroformer.errors import ConfigError, MissingInput
from retroformer.experiment.conditions import check_imported, is_record_of_conditions
from retroformer.experiment.config import Experiment
from retroformer.experiment.storage import open_store, open_whole_store
from retroformer.files.durable import replacing
from retroformer.files.text import sha256_of
from retroformer.marks_file import export_marks, read_marks
from retroformer.rating import ratings
from retroformer.records import Key, Outcome, Reflection, Trajectory
from retroformer.secrets.redaction import redacted_data
from retroformer.store import NewReflection, NewTrajectory, Store
from retroformer.store.schema import KEY, REFLECTIONS, TRAJECTORIES, UNDECLARED

if TYPE_CHECKING:
    import pyarrow

_ROWS_AT_ONCE = 2000
"""Number of rows of a file in memory at a time."""
_CONDITIONS = b"retroformer.conditions"
"""Key of the file metadata: a JSON object of conditions by their sha256."""

Row = dict[str, Any]


class _File(NamedTuple):
    """Description of one of the two files."""

    name: str
    columns: tuple[tuple[str, str], ...]
    """Names and Arrow types of the columns after the key."""
    rows: Callable[[Store, str], Iterator[Sequence[Any]]]
    """Function that yields the facts of an arm in the order of their keys: values of the key, then of the columns."""
    fact: Callable[[Row], NewTrajectory | NewReflection]
    """Function that parses the fact of a row. Raises ValueError with the name of the wrong field."""


def export_run(experiment: Experiment, folder: Path) -> str:
    """Write both files. Return a sentence with the number of facts.

    Raises:
        MissingInput: the run has no facts.
        StoreError: the store cannot be read, or a fact is damaged.
    """
    with closing(open_whole_store(experiment)) as store:
        arms = store.arms()
        if not arms:
            raise MissingInput(f"No facts of the run {experiment.name!r} in {store.url}: collect or evaluate first.")
        conditions = {sha256_of(record): record for arm in arms if (record := store.conditions(arm))}
        folder.mkdir(parents=True, exist_ok=True)
        counts = [_write(file, store, arms, conditions, folder / file.name) for file in _FILES]
        marks = export_marks(store, folder)
    written = [f"{counts[0]} trajectories", f"{counts[1]} reflections", *([f"{marks} marks"] if marks else [])]
    return f"{', '.join(written[:-1])} and {written[-1]} are in {folder}"


def import_run(experiment: Experiment, folder: Path) -> str:
    """Add the facts of both files to the run's store, all or none. Facts that are already stored do not change.

    Raises:
        MissingInput: a file is missing.
        ConfigError: a file is not an export, a fact is impossible, or its conditions differ from those of the config or
            of the run's own facts.
    """
    bound, marks = _checked(experiment, folder), read_marks(folder)
    with closing(open_store(experiment)) as store:
        for arm, record in bound.items():
            store.declare(arm, record)
        new = store.add_all(lambda: (fact for file in _FILES for _, fact in _facts(file, folder / file.name)))
        store.marks.add_all(marks)
        counts = " and ".join(f"{_length(folder / file.name)} {file.name.removesuffix('.parquet')}" for file in _FILES)
    return f"{counts} are in {store.url}, {new} of them new"


def _checked(experiment: Experiment, folder: Path) -> dict[str, Mapping[str, Any]]:
    """Check each row of both files and return the conditions of every arm."""
    hashes: dict[str, str] = {}
    records: dict[str, Mapping[str, Any]] = {UNDECLARED: {}}
    for file in _FILES:
        path = folder / file.name
        records |= _conditions_in(path)
        seen = set[Key]()
        for number, (row, fact) in enumerate(_facts(file, path), start=1):
            if fact.key in seen:
                raise ConfigError(f"{path}, row {number}: this key comes twice; keep one of the rows.")
            seen.add(fact.key)
            _check_environment(experiment, fact, f"{path}, row {number}")
            sha256 = row.get("conditions_sha256")
            if not isinstance(sha256, str) or sha256 not in records:
                raise ConfigError(f"{path}, row {number}, conditions_sha256: {sha256!r} is not in the file's metadata.")
            if hashes.setdefault(fact.key.arm, sha256) != sha256:
                raise ConfigError(
                    f"{path}, row {number}, conditions_sha256: facts of the arm {fact.key.arm!r} were made under two "
                    "conditions; import them into two runs."
                )
    bound = {arm: records[sha256] for arm, sha256 in hashes.items()}
    for arm, record in bound.items():
        check_imported(record, experiment, arm)
    return bound


def _check_environment(experiment: Experiment, fact: NewTrajectory | NewReflection, where: str) -> None:
    if not isinstance(fact, NewTrajectory):
        return
    environment, task = experiment.environment, fact.trajectory.task
    if task.environment != environment.name:
        raise ConfigError(
            f"{where}, environment: a fact about {task.environment} cannot be imported into a run on "
            f"{environment.name}; name its own config."
        )
    low, high = environment.returns
    try:
        earned = fact.trajectory.episode_return
    except OverflowError:
        earned = math.inf
    if not (low <= earned <= high and math.isfinite(earned)):
        raise ConfigError(
            f"{where}, reward: a return of {earned:g} is impossible in {environment.name}, where it lies between "
            f"{low:g} and {high:g}."
        )


def _trajectory(row: Row) -> NewTrajectory:
    trajectory = Trajectory.model_validate_json(row["record"])
    key = _key(row)
    if key.task_id != trajectory.task.id:
        raise ValueError(f"task_id: the key names {key.task_id!r}, the record {trajectory.task.id!r}")
    if trajectory.outcome is Outcome.INVALID:
        raise ValueError("outcome: an invalid attempt is not a fact")
    return NewTrajectory(key, trajectory)


def _reflection(row: Row) -> NewReflection:
    key, previous_candidate = _key(row), row["previous_candidate"]
    if key.trial < 1:
        raise ValueError("trial: advice is for trial 1 or a later one")
    if not isinstance(previous_candidate, int) or previous_candidate < 0:
        raise ValueError(f"previous_candidate: {previous_candidate!r} is not a number of a candidate")
    return NewReflection(key, previous_candidate, Reflection.model_validate_json(row["record"]))


def _trajectory_rows(store: Store, arm: str) -> Iterator[Sequence[Any]]:
    for *row, record in store.exported(TRAJECTORIES, arm, [name for name, _ in _TRAJECTORY_COLUMNS]):
        yield (*row, redacted_data(record))


def _reflection_rows(store: Store, arm: str) -> Iterator[Sequence[Any]]:
    """Yield the rows of reflections, with the rating as the last column."""
    rated = ratings(store, arm)
    waiting = next(rated, None)
    for *before, text, model, previous, sha256, record in store.exported(
        REFLECTIONS, arm, [name for name, _ in _REFLECTION_COLUMNS]
    ):
        row = (*before, redacted_data(text), model, previous, sha256, redacted_data(record))
        # Reflections and ratings come in the order of their keys, and each rating has its reflection.
        _, *key = before[:4]
        if waiting is not None and key == [waiting.task_id, waiting.trial, waiting.candidate]:
            yield (*row, waiting.rating)
            waiting = next(rated, None)
        else:
            yield (*row, None)


_KEY_COLUMNS = (("arm", "string"), ("task_id", "string"), *((name, "int64") for name in KEY[2:]))
_TRAJECTORY_COLUMNS = (
    ("split", "string"),
    ("outcome", "string"),
    ("ending", "string"),
    ("episode_return", "double"),
    ("actions", "int64"),
    ("conditions_sha256", "string"),
    ("record", "string"),
)
_REFLECTION_COLUMNS = (
    ("text", "string"),
    ("model", "string"),
    ("previous_candidate", "int64"),
    ("conditions_sha256", "string"),
    ("record", "string"),
)
_RATING = (("rating", "double"),)
_FILES = (
    _File("trajectories.parquet", _TRAJECTORY_COLUMNS, _trajectory_rows, _trajectory),
    _File("reflections.parquet", _REFLECTION_COLUMNS + _RATING, _reflection_rows, _reflection),
)


def _write(
    file: _File, store: Store, arms: Iterable[str], conditions: Mapping[str, Mapping[str, Any]], path: Path
) -> int:
    """Write one file, which appears complete or not at all. Return the number of its rows."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        [(name, pyarrow.type_for_alias(kind)) for name, kind in _KEY_COLUMNS + file.columns],
        metadata={_CONDITIONS: json.dumps(conditions)},
    )
    count = 0
    with replacing(path) as unfinished, pyarrow.parquet.ParquetWriter(unfinished, schema) as writer:
        for arm in arms:
            rows = file.rows(store, arm)
            while batch := list(islice(rows, _ROWS_AT_ONCE)):
                writer.write_table(pyarrow.table(list(zip(*batch, strict=True)), schema=schema))
                count += len(batch)
    return count


def _facts(file: _File, path: Path) -> Iterator[tuple[Row, NewTrajectory | NewReflection]]:
    """Yield the rows of a file with their facts. Raises MissingInput, ConfigError."""
    import pyarrow

    number = 0
    opened = _opened(path)
    needed = (*KEY, "previous_candidate", "conditions_sha256", "record")
    present = [name for name in needed if name in opened.schema_arrow.names]
    try:
        for batch in opened.iter_batches(_ROWS_AT_ONCE, columns=present):
            try:
                rows = batch.to_pylist()
            except ValueError as error:
                raise ConfigError(f"{path}, rows from {number + 1} on: {error}.") from None
            for row in rows:
                number += 1
                try:
                    yield row, file.fact(row)
                except (ValidationError, ValueError, TypeError, KeyError) as error:
                    raise ConfigError(f"{path}, row {number}, {_field(error)}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not an export of a run: {' '.join(str(error).split())}") from None


def _field(error: Exception) -> str:
    """Format an error of a row as `FIELD: FAULT`."""
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(str(part) for part in fault['loc']) or 'record'}: {fault['msg']}."
    return f"{error.args[0]}: the column is missing." if isinstance(error, KeyError) else f"{error}."


def _conditions_in(path: Path) -> dict[str, Mapping[str, Any]]:
    """Return the conditions in the metadata of a file, by their sha256."""
    metadata = _opened(path).schema_arrow.metadata or {}
    if _CONDITIONS not in metadata:
        raise ConfigError(f"{path} lacks the conditions under which its facts were made: export the run again.")
    try:
        records: dict[str, Mapping[str, Any]] = json.loads(metadata[_CONDITIONS])
        changed = [sha256 for sha256, record in records.items() if sha256_of(record) != sha256]
        if not all(is_record_of_conditions(record) for record in records.values()):
            raise TypeError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"{path}: the conditions in its metadata are damaged; export the run again.") from None
    if changed:
        raise ConfigError(f"{path}: the conditions {changed[0][:12]} in its metadata were changed; export again.")
    return records


def _opened(path: Path) -> "pyarrow.parquet.ParquetFile":
    import pyarrow
    import pyarrow.parquet

    if not path.is_file():
        raise MissingInput(f"No {path}: write it with `retroformer export EXPERIMENT.yaml FOLDER`.")
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ConfigError(f"{path} is not an export of a run: {' '.join(str(error).split())}") from None


def _length(path: Path) -> int:
    return int(_opened(path).metadata.num_rows)


def _key(row: Row) -> Key:
    return Key(**{name: row[name] for name in KEY})
