"""Overview: what each run holds, what failed and why, what it cost, and what is running now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retroformer.coach.stories.runs import OpenRun
from retroformer.method.records import Usage
from retroformer.run.stage_metrics import METRICS
from retroformer.run.store.rows import ArmCounts

from ..index import arms_of
from ..site import Page, Site
from ..table import arm_totals

_CAUSES = 10
"""Most causes of invalid attempts that are shown of a run."""


@dataclass(frozen=True)
class ArmLine:
    """An arm in one line."""

    arm: str
    stories: Counter[str]
    """Number of stories by outcome."""
    attempts: int
    advice: int
    invalid: int
    running: int
    """Tasks that a process works on now."""
    usage: Usage


@dataclass(frozen=True)
class StageLine:
    """A training stage whose adapter is in the run's folder."""

    name: str
    finished: bool
    changed: str
    """Time of the last change, in UTC."""


def overview(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show all runs."""
    outcomes: dict[tuple[str, str], Counter[str]] = {}
    for row in arm_totals(site.index):
        outcomes.setdefault((row["run"], row["arm"]), Counter())[row["outcome"]] = row["stories"]
    runs = [
        {
            "source": source,
            "arms": list(_arm_lines(source, outcomes)),
            "stages": _stage_lines(source.folder),
            "causes": source.store.cause_counts(source.store.arms(), _CAUSES),
            "total": sum(source.store.accounts().values(), start=Usage()),
        }
        for source in site.sources
    ]
    return Page("overview.html", "Overview", {"runs": runs})


def _arm_lines(source: OpenRun, outcomes: Mapping[tuple[str, str], Counter[str]]) -> Iterator[ArmLine]:
    store = source.store
    counts, running, accounts = store.arm_counts(), store.running_counts(), store.accounts()
    for arm in arms_of(source):
        facts = counts.get(arm, ArmCounts())
        yield ArmLine(
            arm=arm,
            stories=outcomes.get((source.name, arm), Counter()),
            attempts=facts.attempts,
            advice=facts.advice,
            invalid=facts.invalid,
            running=running.get(arm, 0),
            usage=accounts.get(arm, Usage()),
        )


def _stage_lines(folder: Path) -> list[StageLine]:
    """Return the finished stages and those that have only checkpoints, in the order in which they last changed."""
    finished = {path.name: path for path in _folders(folder) if (path / METRICS).is_file()}
    # The checkpoints of a stage are in a folder with its name and a fingerprint of its settings.
    begun = {path.name.rpartition("-")[0]: path for path in _folders(folder / "checkpoints")}
    paths = begun | finished
    changed = {name: path.stat().st_mtime for name, path in paths.items()}
    return [
        StageLine(name, name in finished, f"{datetime.fromtimestamp(changed[name], UTC):%Y-%m-%d %H:%M}")
        for name in sorted(paths, key=lambda name: changed[name])
    ]


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink()]
