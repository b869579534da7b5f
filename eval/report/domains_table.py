"""Report about several domains: the success of every arm in each of them, with one reflector for all."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from retroformer.experiment.config import Experiment
from retroformer.markdown import plain, table

from ..measure.rates import rates_of
from ..measure.results import ArmResult
from .document import Report
from .files import place_of, write_files

_Played = Mapping[str, Sequence[ArmResult]]
"""Results of a domain's arms by actor or repeat; under the empty name if it has neither."""


def write_domains_table(played: Sequence[tuple[Experiment, _Played]]) -> Path:
    """Write report.md and report.html of the run with a table of all domains; return the path of report.html.

    Unfinished tasks count as failures.
    """
    run = played[0][0].model_copy(update={"domain": ""})
    rows = [row for experiment, results in played for row in _rows(experiment, results)]
    header = ["domain", "arm", "tasks", "unfinished", "solved at trial 0", "solved by the last trial", "more"]
    shown = table(header, rows, "Share of the tasks of each domain that were solved.")
    text = (
        f"# {plain(run.name)}: {len(played)} domains, one reflector\n\n## Solved in each domain\n\n"
        "Share of held-out tasks solved, with 95% intervals over tasks; unfinished tasks count as failures. The "
        f"adapters are trained on the ratings of all domains.\n\n{shown}\n"
    )
    title = f"{run.name}: {len(played)} domains, one reflector"
    report = Report(title=title, run=run.name, place=place_of(run), text=text)
    return write_files(report, run.report_folder)


def _rows(experiment: Experiment, results: _Played) -> Iterator[list[str]]:
    """Yield the table's rows of one domain."""
    link = f"[report](<{experiment.domain}/report.md>)"
    for arms in results.values():
        rates = rates_of(arms, experiment.seed)
        for arm in rates.all_tasks:
            first, last = arm.solved_by(0), arm.solved_by(-1)
            shares = (str(rates.intervals.of(solved)) for solved in (first, last))
            yield [plain(experiment.domain), plain(arm.name), str(rates.tasks), str(arm.incomplete), *shares, link]
