"""Overview: what each run showed, what it holds, what failed and why, what it cost, and what is running now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retroformer.coach.stories.reading import story_arms
from retroformer.coach.stories.runs import OpenRun
from retroformer.method.records import Usage
from retroformer.run.stage_metrics import METRICS
from retroformer.run.store.rows import ArmCounts

from ...report.html import ReportPage
from ..site import Page, Site
from .report import report_of

_SENTENCES = 3
"""Most sentences of the report's headline that are shown of a run."""
_CAUSES = 10
"""Most causes of invalid attempts that are shown of a run."""


def overview(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show all runs."""
    outcomes: dict[tuple[str, str], Counter[str]] = {}
    query = "SELECT run, arm, outcome, count(*) FROM story GROUP BY run, arm, outcome"
    with site.index.connect() as connection:
        for run, arm, outcome, stories in connection.execute(query):
            outcomes.setdefault((run, arm), Counter())[outcome] = stories
    runs = [
        {
            "source": source,
            "report": ReportPage(written) if (written := report_of(source)) is not None else None,
            "arms": list(_arms(source, outcomes)),
            "stages": _stages(source.folder),
            "causes": source.store.cause_counts(source.store.arms(), _CAUSES),
            "total": sum(source.store.accounts().values(), start=Usage()),
        }
        for source in site.sources
    ]
    return Page("overview.html", "Overview", {"runs": runs, "sentences": _SENTENCES})


def _arms(source: OpenRun, outcomes: Mapping[tuple[str, str], Counter[str]]) -> Iterator[Mapping[str, Any]]:
    """Yield each arm with its stories by outcome, its facts, the tasks that processes work on now, and its cost."""
    store = source.store
    counts, running, accounts = store.arm_counts(), store.running_counts(), store.accounts()
    for arm in story_arms(store):
        yield {
            "arm": arm,
            "stories": outcomes.get((source.name, arm), Counter()),
            "facts": counts.get(arm, ArmCounts()),
            "running": running.get(arm, 0),
            "usage": accounts.get(arm, Usage()),
        }


def _stages(folder: Path) -> list[tuple[str, bool, str]]:
    """Return the training stages in the order in which they last changed: name, if it is finished, and time in UTC."""
    finished = {path.name: path for path in folders(folder) if (path / METRICS).is_file()}
    # The checkpoints of a stage are in a folder with its name and a fingerprint of its settings.
    begun = {path.name.rpartition("-")[0]: path for path in folders(folder / "checkpoints")}
    paths = begun | finished
    changed = {name: path.stat().st_mtime for name, path in paths.items()}
    return [
        (name, name in finished, f"{datetime.fromtimestamp(changed[name], UTC):%Y-%m-%d %H:%M}")
        for name in sorted(paths, key=lambda name: changed[name])
    ]


def folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
