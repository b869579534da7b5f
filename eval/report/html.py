"""A report as one HTML file that opens without a network, in the design of the viewer."""

import base64
import hashlib

from ..view.rendering import FOLDER, templates
from .blocks import sections_of
from .document import Report


def to_html(report: Report) -> str:
    """Return the file. Its content security policy runs this style and this script, and loads nothing."""
    style, script = _static("figures.css") + _static("style.css"), _static("sort.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    front, *sections = sections_of(report)
    template = templates().get_template("report_file.html")
    return template.render(
        report=report, front=front, sections=sections, style=style, script=script, policy=policy, command=True
    )


def _static(name: str) -> str:
    return (FOLDER / "static" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return the hash of an inline style or script, as a content security policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
