"""Report: the report of an evaluation, with links to the stories behind its figures and tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from retroformer.coach.stories.runs import OpenRun
from retroformer.files.document import Report

from ...report.files import FILE, read_report
from ...report.html import ReportLinks, ReportPage
from ..site import NoSuchPage, Page, Site
from .compare import Side, sides

_ALL_DOMAINS = "all domains"


def report(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show the report of a run, or a part of it: of an actor, of a repeat, or of all domains together."""
    source = site.source(parameters.get("run", ""))
    parts = parts_of(source)
    part = parameters.get("part", "")
    if part not in ("", *parts):
        raise NoSuchPage(f"The run {source.name!r} has no report {part!r}.")
    folder = parts.get(part)
    shown = read_report(folder) if folder is not None else None
    page = None if shown is None else ReportPage(shown, _Links(site, source, shown))
    choices = {other.name: site.link("report", run=other.name) for other in site.sources}
    choices |= {name: site.link("report", run=source.name, part=name) for name in parts if name}
    content = {"source": source, "page": page, "choices": choices, "chosen": part or source.name}
    return Page("report.html", f"Report: {source.name}", content)


class _Links(ReportLinks):
    """Addresses within the site of what stands behind a report; only of what the index holds."""

    def __init__(self, site: Site, source: OpenRun, report: Report) -> None:
        self._run, self._index, self._link = source.name, site.index, site.link
        self._runs = {other.name for other in site.sources}
        self._sides = {side.name for side in sides(site.index)} if report.run == source.name else set()

    def stories(self, stored: Sequence[str]) -> str:
        if not any(_side(self._run, [arm]) in self._sides for arm in stored):
            return ""
        # The seeds of an arm are together under its name, which ends in a slash.
        arm = stored[0] if len(stored) == 1 else f"{stored[0].rpartition('/')[0]}/"
        return self._link("stories", run=self._run, arm=arm)

    def story(self, stored: str, task_id: str) -> str:
        held = self._index.holds(self._run, stored, task_id)
        return self._link("story", run=self._run, arm=stored, task=task_id) if held else ""

    def comparison(self, first: Sequence[str], second: Sequence[str]) -> str:
        names = [_side(self._run, stored) for stored in (first, second)]
        return self._link("compare", a=names[0], b=names[1]) if self._sides.issuperset(names) else ""

    def part(self, name: str) -> str:
        domain = f"{self._run.partition('/')[0]}/{name}"
        return (
            self._link("report", run=domain) if domain in self._runs else self._link("report", run=self._run, part=name)
        )


def _side(run: str, stored: Sequence[str]) -> str:
    arm = stored[0] if len(stored) == 1 else stored[0].rpartition("/")[0]
    return Side(run, arm, tuple(stored)).name


def parts_of(source: OpenRun) -> dict[str, Path]:
    """Return the folders of a run's reports by the part's name, which is empty for the run's own."""
    whole = source.folder / "eval"
    domain = source.name.partition("/")[2]
    own = whole if not domain else _report_folders(whole).get(domain)
    parts = {"": own} if own is not None and (own / FILE).is_file() else {}
    if own is not None:
        parts |= _report_folders(own)
    if domain and (whole / FILE).is_file():
        parts[_ALL_DOMAINS] = whole
    return parts


def _report_folders(folder: Path) -> dict[str, Path]:
    """Return the folders within a folder that hold a report, by name."""
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{FILE}")) if not path.parent.is_symlink()}
