"""A report as one HTML file that opens without a network, in the design of the viewer."""

from ..view.inline import inline
from ..view.rendering import templates
from .blocks import sections_of
from .document import Report


def to_html(report: Report) -> str:
    """Return the file. Its content security policy runs this style and this script, and loads nothing."""
    front, *sections = sections_of(report)
    shown = {"title": report.title, "report": report, "front": front, "sections": sections, "here": ""}
    return templates().get_template("report_file.html").render(shown, inline=inline("sort.js"))
