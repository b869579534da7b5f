"""The facts of a run as Parquet files, for the tools that people know; and back.

`trajectories.parquet` and `reflections.parquet` have a row a fact: its key, a few columns to look at, and `record`, the
whole fact as JSON. Only the key and `record` are read back, so the other columns may be changed freely.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from retroformer.config import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.rating import rated_reflections
from retroformer.records import Key, Reflection, Trajectory
from retroformer.redaction import redacted, redacted_data
from retroformer.store import Store, open_store

_FILES = ("trajectories.parquet", "reflections.parquet")


def export_run(experiment: Experiment, folder: Path) -> str:
    """Write both files; a line that says how many facts they hold.

    Raises:
        MissingInput: the run has no facts.
    """
    store = open_store(experiment)
    try:
        arms = store.arms()
        if not arms:
            raise MissingInput(f"No facts of the run {experiment.run!r} in {store.url}: collect or evaluate first.")
        trajectories = [row for arm in arms for row in _trajectory_rows(store, arm)]
        reflections = [row for arm in arms for row in _reflection_rows(store, arm)]
    finally:
        store.close()
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(_FILES, (trajectories, reflections), strict=True):
        _write(rows, folder / name)
    return f"{len(trajectories)} trajectories and {len(reflections)} reflections are in {folder}"


def import_run(experiment: Experiment, folder: Path) -> str:
    """Add the facts of both files to the run's store; those that are there already stay as they are.

    Raises:
        MissingInput: a file is not there.
        ConfigError: a file is not of this kind.
    """
    rows = {name: _read(folder / name) for name in _FILES}
    store = open_store(experiment)
    try:
        for row in rows["trajectories.parquet"]:
            store.add_trajectory(_key(row), Trajectory.model_validate_json(row["record"]))
        for row in rows["reflections.parquet"]:
            record = Reflection.model_validate_json(row["record"])
            store.add_reflection(_key(row), row["previous_candidate"], record)
    finally:
        store.close()
    counts = [len(found) for found in rows.values()]
    return f"{counts[0]} trajectories and {counts[1]} reflections are in {experiment.store_url}"


def _trajectory_rows(store: Store, arm: str) -> Iterable[dict[str, Any]]:
    for key, one in store.trajectories(arm).items():
        columns = {"split": one.task.split, "outcome": one.outcome.value, "ending": one.ending.value}
        numbers = {"episode_return": one.episode_return, "actions": len(one.steps)}
        yield key.model_dump() | columns | numbers | {"record": redacted_data(one.model_dump_json())}


def _reflection_rows(store: Store, arm: str) -> Iterable[dict[str, Any]]:
    ratings = {one.key: one.rating for one in rated_reflections(store, arm)}
    for key, previous_candidate, one, _ in store.reflections(arm):
        columns = {"text": redacted_data(one.text), "model": one.author.model, "rating": ratings.get(key)}
        # Older versions stored addresses with their credentials.
        author = one.author.model_copy(update={"endpoint": redacted(one.author.endpoint)})
        record = redacted_data(one.model_copy(update={"author": author}).model_dump_json())
        yield key.model_dump() | columns | {"previous_candidate": previous_candidate, "record": record}


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _read(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    if not path.is_file():
        raise MissingInput(f"No {path}: write it with `python -m retroformer export EXPERIMENT.yaml FOLDER`.")
    try:
        rows: list[dict[str, Any]] = pyarrow.parquet.read_table(path).to_pylist()
        for row in rows[:1]:
            json.loads(row["record"])
            _key(row)
    except (pyarrow.ArrowException, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is not an export of a run: {error}") from None
    return rows


def _key(row: dict[str, Any]) -> Key:
    return Key(**{name: row[name] for name in Key.model_fields})
