"""Exports the cases of a run to a file, and imports cases from one."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from retroformer.cases.case import Case
from retroformer.cases.files import read_cases, write_cases
from retroformer.cases.stored import exported_arms, stored_cases
from retroformer.cases.storing import CaseWriter
from retroformer.errors import MissingInput
from retroformer.experiment.config import Experiment
from retroformer.experiment.storage import open_whole_store


def export_cases(experiment: Experiment, path: Path) -> str:
    """Write the cases of a run to a file, whose name says its format. Return a sentence with their number.

    Raises:
        MissingInput: the run has no attempts to learn from.
        ConfigError: the file has another ending, or a return is no score from 0 to 1.
    """
    with closing(open_whole_store(experiment)) as store:
        arms = exported_arms(store)
        if not arms:
            raise MissingInput(f"No attempts of the run {experiment.name!r} in {store.url}: collect or import first.")

        def cases() -> Iterator[Case]:
            for arm in arms:
                yield from stored_cases(store, arm)

        return f"{write_cases(path, cases())} cases are in {path}"


def import_cases(experiment: Experiment, path: Path) -> str:
    """Add the cases of a file to the run's store, all or none. Cases that are already stored do not change.

    Raises:
        MissingInput: there is no such file.
        DamagedFile: a line or row is not a case.
        ConfigError: the run holds attempts of other conditions.
    """
    with CaseWriter(experiment) as writer:
        stored = writer.add_whole(lambda: read_cases(path))
        return (
            f"{stored.cases} cases are in {writer.store.url}, {stored.new_facts} of their facts new: {stored.rated} "
            f"are rated, {stored.failures} failures wait for advice"
        )
