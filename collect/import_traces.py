"""Imports attempts that another program recorded as cases, each rated or waiting for advice."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from retroformer.cases.storing import CaseWriter
from retroformer.errors import MissingInput
from retroformer.experiment.config import Experiment
from retroformer.traces.attempt import Skipped, TracedAttempt
from retroformer.traces.formats import trace_format
from retroformer.traces.grouping import cases_of


def import_traces(experiment: Experiment, path: Path, name: str, score: str | None, *, as_json: bool) -> str:
    """Store the cases of a file or folder, all or none; return a summary, with a last line of JSON if `as_json`.

    Raises:
        ConfigError: there is no format of this name, or the run holds attempts of other conditions.
        MissingInput: a line or field cannot be read, or there is no attempt with a score.
        StoreError: the store cannot be written.
    """
    read = trace_format(name)
    skipped = Counter[str]()
    attempts = list(_attempts(read(path, score), skipped))
    if not attempts:
        reasons = "; ".join(f"skipped {count} {reason}" for reason, count in skipped.items()) or "it holds none"
        raise MissingInput(f"{path} has no attempt to learn from ({reasons}): see docs/traces.md for what one needs.")
    cases = list(cases_of(attempts))
    with CaseWriter(experiment, source=name) as writer:
        stored = writer.add_whole(cases.__iter__)
        url = writer.store.url
    counts = {
        "attempts": len(attempts),
        "rated": stored.rated,
        "waiting": stored.failures,
        "new_facts": stored.new_facts,
        "skipped": dict(skipped),
    }
    lines = [
        f"{len(attempts)} attempts are in {url}: {stored.rated} rated pieces of advice, and {stored.failures} failures "
        f"that wait for advice ({stored.new_facts} new facts)",
        *(f"skipped {count} {reason}" for reason, count in skipped.items()),
    ]
    return "\n".join([*lines, json.dumps(counts)] if as_json else lines)


def _attempts(read: Iterator[TracedAttempt | Skipped], skipped: Counter[str]) -> Iterator[TracedAttempt]:
    for entry in read:
        if isinstance(entry, Skipped):
            skipped[entry.reason] += 1
        else:
            yield entry
