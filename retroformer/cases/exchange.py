"""Imports cases into a run, from files of cases and from other programs' records, and exports the cases of a run.

Integrations and installed packages offer a format of their own by an entry point of the group `retroformer.importers`,
which names a `Reader`: NAME = "module:function".
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, cast, get_args

from retroformer.cases.case import Case
from retroformer.cases.files import Format, read_cases, write_cases
from retroformer.cases.stored import stored_cases
from retroformer.cases.storing import store_cases
from retroformer.cases.traced import Skipped
from retroformer.config.experiment import Experiment
from retroformer.config.plugins import load_plugin, plugin_names
from retroformer.config.storage import open_whole_store
from retroformer.errors import ConfigError, MissingInput

IMPORTERS = "retroformer.importers"
"""Entry point group of formats."""
OWN: tuple[Format, ...] = get_args(Format)

Reader = Callable[[Path, str | None, Any], Iterator[Case | Skipped]]
"""Reader of a format: gets a file or folder, the name of the score to use (None: the only one) and the config's section
of the environment; yields cases, and an entry for everything that is left out.

It raises MissingInput with file, line and field for whatever cannot be read.
"""


def import_cases(
    experiment: Experiment, path: Path, name: str | None = None, score: str | None = None, *, as_json: bool = False
) -> str:
    """Add the cases of a file or folder to the run's store, all or none. Cases that are already stored do not change.

    Args:
        experiment: config of the run.
        path: file or folder.
        name: name of the format; by default the ending of the path says it.
        score: name of the score to use, of a format that has several.
        as_json: whether the last line of the summary is JSON.

    Returns:
        Summary with the numbers of cases and facts, and of entries that were left out.

    Raises:
        MissingInput: there is no such file, it cannot be read, or it has no case.
        DamagedFile: a line or row is not a case.
        ConfigError: there is no such format, or the run holds attempts of other conditions.
    """
    skipped = Counter[str]()

    def cases() -> Iterator[Case]:
        skipped.clear()
        empty = True
        for entry in _entries(experiment, path, name, score):
            if isinstance(entry, Skipped):
                skipped[entry.reason] += 1
            else:
                empty = False
                yield entry
        if empty:
            reasons = "; ".join(_left_out(skipped)) or "it holds none"
            raise MissingInput(
                f"{path} has no attempt to learn from ({reasons}): see docs/traces.md for what one needs."
            )

    source = "cases" if name is None or name in OWN else name
    stored = store_cases(experiment, cases, source, str(path))
    lines = [
        f"{stored.cases} cases are in {experiment.store_url}, {stored.new_facts} of their facts new: {stored.rated} "
        f"are rated, {stored.failures} failures wait for advice",
        *_left_out(skipped),
    ]
    return "\n".join([*lines, json.dumps(stored._asdict() | {"skipped": skipped})] if as_json else lines)


def export_cases(experiment: Experiment, path: Path, name: str | None = None, *, exact: bool = False) -> str:
    """Write the cases of a run to a file. Return a sentence with their number.

    Args:
        experiment: config of the run.
        path: the file; an earlier one is replaced.
        name: `cases` or `parquet`; by default the ending of the path says it.
        exact: write all facts, with their origin, so that an import restores them.

    Raises:
        MissingInput: the run has no such attempts.
        ConfigError: there is no such format, or a return is no score from 0 to 1 and the cases are not exact.
        StoreError: the store cannot be read, or a fact is damaged.
    """
    if name not in (None, *OWN):
        raise ConfigError(f"There is no format {name!r}: choose one of {', '.join(OWN)}.")
    with closing(open_whole_store(experiment)) as store:
        cases = stored_cases(store, exact=exact)
        if (first := next(cases, None)) is None:
            raise MissingInput(f"No attempts of the run {experiment.name!r} in {store.url}: collect or import first.")
        count = write_cases(path, chain([first], cases), _own(name))
    return f"{count} cases are in {path}"


def _entries(experiment: Experiment, path: Path, name: str | None, score: str | None) -> Iterator[Case | Skipped]:
    """Return what a reader yields. Raises ConfigError, MissingInput."""
    if name is None or name in OWN:
        if score is not None:
            raise ConfigError(f"--score {score}: a case has one score; name another program's records with --format.")
        return read_cases(path, _own(name))
    if name not in (names := plugin_names(IMPORTERS)):
        raise ConfigError(f"There is no format {name!r}: choose one of {', '.join(sorted({*OWN, *names}))}.")
    read: Reader = load_plugin(IMPORTERS, name, "format")
    return read(path, score, experiment.environment)


def _own(name: str | None) -> Format | None:
    return cast("Format | None", name)


def _left_out(skipped: Counter[str]) -> list[str]:
    return [f"skipped {count} {reason}" for reason, count in skipped.items()]
