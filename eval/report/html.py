"""Conversion of a report's Markdown to one self-contained HTML page."""

import html
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.files import durable
from retroformer.secrets.redaction import redacted

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.2rem; }
table { border-collapse: collapse; font-size: 0.86rem; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ddd; padding: 0.35rem 0.7rem; text-align: left; vertical-align: top; }
th { background: #f5f5f5; } img { max-width: 100%; } pre { background: #f5f5f5; padding: 1rem; overflow-x: auto; }
"""


def to_html(text: str, title: str) -> str:
    """Return the HTML page. Raw HTML is escaped: text written by a model is shown as text."""
    from markdown_it import MarkdownIt

    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    head = f'<meta charset="utf-8"><title>{html.escape(title)}</title><style>{_STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}</body></html>\n'


def write_page(experiment: Experiment, text: str) -> Path:
    """Write report.md and report.html of a run without pictures; return the path of report.html."""
    folder, text = experiment.report_folder, redacted(text)
    folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(folder / "report.md", text)
    durable.write_text(folder / "report.html", to_html(text, f"Retroformer: {experiment.name}"))
    return folder / "report.html"
