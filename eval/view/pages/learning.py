"""Learning: success by attempt as in the report, what training did, and who wrote the advice."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from retroformer.coach.stories.runs import OpenRun
from retroformer.errors import RetroformerError
from retroformer.files.document import Part, Report, Words, chapter

from ...report.html import ReportPage
from ...report.training import TrainedAdapter, adapters_in, curve_table, reward_audit, sort_by_stage, training_figures
from ..index import Index
from ..site import Page, Site
from .overview import folders
from .report import report_of

_FLAGS = ("truncated", "copy", "repeated plan", "same steps")
"""Flags whose share is given of each author."""

Author = Mapping[str, Any]
"""Counts over the advice of one model in one arm."""


def learning(site: Site, parameters: Mapping[str, str]) -> Page:
    """Show one run."""
    source = site.source(parameters.get("run", ""))
    authors = advice_authors(site.index, source.name)
    shown = {"source": source, "page": _figures(source), "authors": authors, "author_flags": _FLAGS}
    return Page("learning.html", "Learning", shown)


def _figures(source: OpenRun) -> ReportPage:
    """Return the report's figure of success, and the curves and audits of the run's finished stages.

    Damaged files are left out.
    """
    parts, trained = list[Part | Words](), list[TrainedAdapter]()
    if (written := report_of(source)) is not None:
        parts += [figure for figure in written.figures if figure.name == "solved"]
    for path in folders(source.folder):
        with suppress(RetroformerError):
            trained += adapters_in([path])
    if trained := sort_by_stage(trained):
        parts += [*training_figures(trained), *curve_table(trained), *reward_audit(trained)]
    chapters = (chapter("Success and training", *parts),) if parts else ()
    return ReportPage(Report(title="Learning", run=source.name, place="", chapters=chapters))


def advice_authors(index: Index, run: str) -> list[Author]:
    """Return the models of each arm with counts over their advice, in the order of their first advice."""
    flags = ", ".join(f"sum(instr(flags, '[{flag}]') > 0) AS \"{flag}\"" for flag in _FLAGS)
    query = (
        "SELECT arm || ', ' || model AS name, arm, count(*) AS pieces, sum(words) AS words, count(rating) AS rated, "
        f"sum(rating > 0) AS gained, sum(rating < 0) AS harmed, sum(rating) AS rating, {flags} FROM advice "
        "WHERE run = :run AND words GROUP BY arm, model ORDER BY min(written_at), arm, model"
    )
    with index.connect() as connection:
        return [dict(row) for row in connection.execute(query, {"run": run})]
