"""Overview: what each run holds, what failed and why, what it cost, and what is running now."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from retroformer.records import Usage
from retroformer.stage_metrics import METRICS
from retroformer.store.rows import ArmCounts

from ..index import arms_of
from ..site import Page, Site
from ..sources import Source
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
            "stages": list(map(_stage_line, _stage_folders(source.folder))),
            "causes": source.store.cause_counts(source.store.arms(), _CAUSES),
            "total": sum(source.store.accounts().values(), start=Usage()),
        }
        for source in site.sources
    ]
    return Page("overview.html", "Overview", {"runs": runs})


def _arm_lines(source: Source, outcomes: Mapping[tuple[str, str], Counter[str]]) -> Iterator[ArmLine]:
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


def _stage_folders(folder: Path) -> list[Path]:
    """Return the folders of training stages, in the order in which they were last changed."""
    if not folder.is_dir():
        return []
    folders = [path for path in folder.iterdir() if path.is_dir() and not path.is_symlink() and _is_stage(path)]
    return sorted(folders, key=lambda path: path.stat().st_mtime)


def _is_stage(path: Path) -> bool:
    return any((path / name).exists() for name in (METRICS, "adapter_config.json", "checkpoint"))


def _stage_line(path: Path) -> StageLine:
    changed = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    return StageLine(path.name, (path / METRICS).is_file(), f"{changed:%Y-%m-%d %H:%M}")
