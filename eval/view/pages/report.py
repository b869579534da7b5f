"""Report: the report of an evaluation, with links to the stories behind its figures and tables."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import RetroformerError
from retroformer.files.document import Cell, Report

from ...report.files import FILE, read_report
from ...report.html import Address, ReportPage
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
    page = None if shown is None else ReportPage(shown, _addresses(site, source, shown))
    choices = {other.name: site.link("report", run=other.name) for other in site.sources}
    choices |= {name: site.link("report", run=source.name, part=name) for name in parts if name}
    content = {"source": source, "page": page, "choices": choices, "chosen": part or source.name}
    return Page("report.html", f"Report: {source.name}", content)


def _addresses(site: Site, source: OpenRun, report: Report) -> Address:
    """Return the addresses within the site of what stands behind a report; only of what the index holds."""
    run, runs = source.name, {other.name for other in site.sources}
    held = {side.name for side in sides(site.index)} if report.run == run else set[str]()

    def address(cell: Cell) -> str:
        if cell.part:
            domain = f"{run.partition('/')[0]}/{cell.part}"
            return site.link("report", run=domain) if domain in runs else site.link("report", run=run, part=cell.part)
        stored = [report.arms[name] for name in cell.arms if name in report.arms]
        if len(stored) == 2:
            names = [_side(run, names_of_side) for names_of_side in stored]
            return site.link("compare", a=names[0], b=names[1]) if held.issuperset(names) else ""
        if cell.task:
            single = bool(stored) and len(stored[0]) == 1 and site.index.holds(run, stored[0][0], cell.task)
            return site.link("story", run=run, arm=stored[0][0], task=cell.task) if single else ""
        if not stored or not any(_side(run, [arm]) in held for arm in stored[0]):
            return ""
        # The seeds of an arm are together under its name, which ends in a slash.
        return site.link("stories", run=run, arm=stored[0][0] if len(stored[0]) == 1 else f"{_parent(stored[0])}/")

    return address


def _parent(stored: Sequence[str]) -> str:
    return stored[0].rpartition("/")[0]


def _side(run: str, stored: Sequence[str]) -> str:
    return Side(run, stored[0] if len(stored) == 1 else _parent(stored), tuple(stored)).name


def report_of(source: OpenRun) -> Report | None:
    """Return a run's own report, if it has one that can be read."""
    folder = parts_of(source).get("")
    with suppress(RetroformerError):
        return None if folder is None else read_report(folder)
    return None


def parts_of(source: OpenRun) -> dict[str, Path]:
    """Return the folders of a run's reports by the part's name, which is empty for the run's own."""
    reports = source.folder / "eval"
    domain = source.name.partition("/")[2]
    own = reports if not domain else _report_folders(reports).get(domain)
    parts = {"": own} if own is not None and (own / FILE).is_file() else {}
    if own is not None:
        parts |= _report_folders(own)
    if domain and (reports / FILE).is_file():
        parts[_ALL_DOMAINS] = reports
    return parts


def _report_folders(folder: Path) -> dict[str, Path]:
    """Return the folders within a folder that hold a report, by name."""
    return {path.parent.name: path.parent for path in sorted(folder.glob(f"*/{FILE}")) if not path.parent.is_symlink()}
