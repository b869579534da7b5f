"""Writes the files of a report: report.json, report.md with its figures, and report.html."""

from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.files import durable
from retroformer.secrets.redaction import redacted

from .document import FILE, Report
from .html import to_html


def write_files(report: Report, folder: Path) -> Path:
    """Write all files of the report, without secrets; return the path of report.html."""
    folder.mkdir(parents=True, exist_ok=True)
    report = report.model_copy(update={"text": redacted(report.text)})
    durable.write_text(folder / FILE, report.model_dump_json(indent=1))
    durable.write_text(folder / "report.md", report.text)
    for figure in report.figures:
        durable.write_text(folder / figure.file_name, figure.chart.file(figure.caption))
    durable.write_text(folder / "report.html", to_html(report))
    return folder / "report.html"


def place_of(experiment: Experiment) -> str:
    """Return what `retroformer view` opens to show the run."""
    return str(experiment.folder) if experiment.store is None else "EXPERIMENT.yaml"
