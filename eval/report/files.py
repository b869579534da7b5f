"""Files of a report: report.json, which holds it, and report.md with its figures and report.html, made from it."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from retroformer.agents.actors import actor_kind
from retroformer.config.experiment import Experiment
from retroformer.endpoint.secrets.redaction import redact
from retroformer.errors import DamagedFile, MissingInput
from retroformer.files import durable
from retroformer.files.bounded import MIB, read_bytes
from retroformer.files.document import Chapter, Report
from retroformer.models.embedded import MODEL_NAME

from ..measure.results import ArmResult, arms_and_seeds
from ..view import charts
from .html import to_html
from .markdown import to_markdown

FILE = "report.json"
_LONGEST_BYTES = 64 * MIB


def write_files(
    experiment: Experiment, folder: Path, title: str, chapters: Iterable[Chapter], results: Sequence[ArmResult]
) -> Path:
    """Write a report, without secrets, whose cells are about these arms and their training seeds.

    Return the path of report.html.
    """
    written = Report(
        title=f"{experiment.name}: {title}",
        run=experiment.name,
        place=str(experiment.folder) if experiment.store is None else "EXPERIMENT.yaml",
        chapters=tuple(chapters),
        about=_about(experiment),
        arms={
            arm.name: arm.stored_names if isinstance(arm, ArmResult) else (arm.stored,)
            for arm in arms_and_seeds(results)
        },
    )
    report = Report.model_validate(_redacted(written.model_dump()))
    folder.mkdir(parents=True, exist_ok=True)
    durable.write_text(folder / FILE, report.model_dump_json(indent=1, exclude_defaults=True))
    durable.write_text(folder / "report.md", to_markdown(report))
    for figure in report.figures:
        durable.write_text(folder / figure.file_name, charts.file(figure.chart, figure.caption))
    durable.write_text(folder / "report.html", to_html(report))
    return folder / "report.html"


def _about(experiment: Experiment) -> str:
    """Return a sentence on the environment, the models, the seed and the time."""
    actor, reflector = experiment.actor, experiment.reflector.endpoint
    plays = f"{actor.kind} {actor.endpoint.model}" if actor_kind(experiment).asks_model else actor.kind
    base = experiment.train.base_model if reflector.base_url is None else f"at {reflector.base_url}"
    base = MODEL_NAME if base == "embedded" else base
    return (
        f"Environment {experiment.environment.name}, actor {plays}, base model of the reflectors {base}, seed "
        f"{experiment.seed}, written {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    )


def read_report(folder: Path) -> Report:
    """Read the report in a folder.

    Raises:
        MissingInput: there is none.
        DamagedFile: the file is not what an evaluation writes.
    """
    path = folder / FILE
    again = "run `retroformer eval` again, which plays nothing twice."
    try:
        return Report.model_validate_json(read_bytes(path, _LONGEST_BYTES))
    except MissingInput:
        raise  # It is too large, or no regular file.
    except FileNotFoundError:
        raise MissingInput(f"No {path}: {again}") from None
    except ValidationError as error:
        raise DamagedFile(f"{path} is damaged ({error.errors()[0]['msg']}): {again}") from None


def _redacted(value: Any) -> Any:
    """Return a value without secrets in its texts; names of arms, by which cells are linked, stay as they are."""
    if isinstance(value, dict):
        return {name: part if name in ("arm", "arms") else _redacted(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return tuple(map(_redacted, value))
    return redact(value) if isinstance(value, str) else value
