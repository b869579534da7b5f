"""A report as it is stored: its Markdown, its figures as numbers, and the arms behind the names in its tables.

`report.json` holds it; `report.md`, `report.html` and the page of the viewer are made from it.
"""

from pathlib import Path

from pydantic import Field, ValidationError

from retroformer.errors import DamagedFile, MissingInput
from retroformer.files.bounded import MIB, read_bytes
from retroformer.markdown import plain
from retroformer.records import Record

from ..view.charts import IntervalChart, LineChart

FILE = "report.json"
_LONGEST_BYTES = 64 * MIB


class Figure(Record):
    """A chart of the report."""

    name: str
    """Name in the report's addresses, and of its file."""
    caption: str
    chart: LineChart | IntervalChart

    @property
    def file_name(self) -> str:
        return f"{self.name}.svg"

    @property
    def markdown(self) -> str:
        """Paragraph of the report's text where the figure stands."""
        return f"![{plain(self.caption)}]({self.file_name})"


class Report(Record):
    """A report about an evaluation."""

    title: str
    run: str
    """Name of the run, or of a domain of it, in the store."""
    place: str
    """What `retroformer view` opens to show the run: its folder, or EXPERIMENT.yaml if its store is elsewhere."""
    text: str
    """The whole report as Markdown. A paragraph that begins with `Table: ` is the caption of the table below it."""
    figures: tuple[Figure, ...] = ()
    arms: dict[str, tuple[str, ...]] = Field(default={})
    """Names in the store, one for each training seed, by the name of an arm or seed in the tables."""


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
