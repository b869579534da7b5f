"""Tests of the report: well-formed tables, numbers equal to the results, and no model text that can break the page."""

import html.parser
import re
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eval.report.files import read_report
from eval.report.html import to_html
from eval.report.markdown import to_markdown
from retroformer.config.file import load
from retroformer.files.document import Report, Table, chapter, strong, table
from retroformer.method.records import Outcome
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.store import open_store
from tests.support.evaluations import CONFIG, write_evaluation


class HtmlTables(html.parser.HTMLParser):
    """Tags of an HTML page and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1] and data.strip():
            self.rows[-1][-1] += data.strip()


def test_the_numbers_of_the_table_are_those_of_the_outcomes(folder: Path) -> None:
    assert ["arm", "by trial 0", "by trial 1", "last return"] in [
        row[:4] for row in HtmlTables((folder / "report.html").read_text()).rows
    ]
    text = (folder / "report.md").read_text()
    assert "| trained | 0.200 [0.000, 0.500] | 0.800 [0.500, 1.000] | 0.800 | 0 | 0 |" in text
    assert "| hopeless | 0.200 [0.000, 0.500] | 0.200 [0.000, 0.500] | 0.200 | 0 | 1 |" in text


def test_a_difference_is_paired_with_its_interval_and_exact_p(folder: Path) -> None:
    # Only trained solved 6, the other arm none: 2 / 2**6.
    text = (folder / "report.md").read_text()
    assert "| trained | no reflection | 0.600 [0.300, 0.900] | 6 | 0 | 0.0312 |" in text
    assert "| hopeless | no reflection | 0.000 [0.000, 0.000] (covers 0) | 0 | 0 | 1.0000 |" in text


def test_solved_failures_are_counted(folder: Path) -> None:
    section = (
        (folder / "report.md")
        .read_text()
        .partition("## Solved of the 8 tasks that failed at trial 0")[2]
        .partition("\n## ")[0]
    )
    assert "| trained | 6: 0.750 [0.375, 1.000] |" in section
    assert "| hopeless | 0: 0.000 [0.000, 0.000] |" in section


def test_the_report_describes_the_actor(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert (
        "The actor is a language model (kind `household`): the adapter `actor`, sha256 `cdcdcdcdcdcd`, served by this "
        "run; it may write any text as an action (choice `free`), at temperature 0. An attempt has at most 15 actions "
        "(`loop.actions`; the environment itself ends it after 50). The agent is told the true outcome of its attempts "
        "(evaluator `oracle`: the game is won), as in the papers."
    ) in text
    assert "| trained | written by the model `ppo` | as at trial 0 |" in text


def test_a_single_arm_has_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.partition("    trained:")[0]
    text = (write_evaluation(config, {"eval/no reflection": 0}) / "report.md").read_text()
    assert "| no reflection | 0.200 [0.000, 0.500] | 0.200 [0.000, 0.500] |" in text
    assert "first - second" not in text
    assert "Differences" not in text


def test_training_seeds_are_pooled_per_task_and_shown_separately(pooled: str) -> None:
    # Riddles 2, 3 and 4 count fully, 5, 6 and 7 half: 2 + 3 + 1.5 of 10, and 4.5 of the 8 failures.
    rates = dict(re.findall(r"^\| (trained\S*) \| 0.200 \S+ \S+ \| (\S+) \[", pooled, re.MULTILINE))
    assert rates == {"trained": "0.650", "trained/ppo-1": "0.800", "trained/ppo-2": "0.500"}
    counts = dict(re.findall(r"^\| (trained\S*) \| ([\d.]+): ", pooled, re.MULTILINE))
    assert counts == {"trained": "4.5", "trained/ppo-1": "6", "trained/ppo-2": "3"}
    (difference,) = re.findall(
        r"^\| trained \| no reflection \| 0.450 \[.+\] \| 0.450 \[[^|]+\] \| (.*) \|$", pooled, re.MULTILINE
    )
    assert difference == "- | - | -"
    assert (
        "| hopeless | no reflection | 0.000 [0.000, 0.000] (covers 0) | 0.000 [0.000, 0.000] | 0 | 0 | 1.0000 |"
        in pooled
    )
    assert "| trained | Say " in pooled


def test_the_report_says_that_intervals_of_single_models_exclude_seed_variation(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "they do not cover variation between training seeds." in text
    assert "pools" not in text


def test_intervals_of_pooled_seeds_cover_other_seeds_and_come_first(pooled: str) -> None:
    assert "seeds and tasks are resampled together, and the interval covers other tasks and other training" in pooled
    assert "| first arm | second arm | first - second | with these seeds |" in pooled
    (both, alone) = re.findall(
        r"^\| trained \| no reflection \| (0.450 \[\S+ \S+\])(?: \(.*\))? \| (0.450 \[\S+ \S+\]) \|",
        pooled,
        re.MULTILINE,
    )[0]
    (low, high), (low_alone, high_alone) = (
        map(float, re.findall(r"\[([\d.]+), ([\d.]+)\]", interval)[0]) for interval in (both, alone)
    )
    assert low < low_alone
    assert high > high_alone
    assert "An arm with one model does not cover variation between training seeds." in pooled


PLANNED = """
  comparisons:
    - {first: trained, second: no reflection, trial: 1, mean: 0.7, low: 0.3}
    - {first: trained, second: no reflection, mean: 0.8}
    - {first: hopeless, second: no reflection, low: -0.05}
"""


def test_planned_comparisons_are_met_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    text = (write_evaluation(CONFIG.rstrip() + PLANNED, wins) / "report.md").read_text()
    section = text.partition("## Planned comparisons")[2].partition("## ")[0]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| trained") or "hope" in line
    ]
    assert [row[2] for row in rows] == [
        "8 tasks that failed at trial 0, by trial 1",
        "8 tasks that failed at trial 0, by the last trial",
        "8 tasks that failed at trial 0, by the last trial",
    ]
    assert [(row[4].split()[0], row[5]) for row in rows] == [("0.750", "met"), ("0.750", "missed"), ("0.000", "met")]
    assert rows[1][3] == "mean at least 0.8, lower bound above 0"


def test_text_of_a_model_stays_text_in_its_cell(folder: Path) -> None:
    html_text = HtmlTables((folder / "report.html").read_text())
    # The page's own script, and no other.
    assert html_text.tags.count("script") == 1
    assert "b" not in html_text.tags
    widths = {tuple(row[:2]): len(row) for row in html_text.rows}
    written = [row for row in html_text.rows if row[:1] == ["trained"] and "<script>" in row[1]]
    assert {(len(row), row[2]) for row in written} == {(5, "solved"), (5, "failed")}
    assert widths["ppo", "abababababab"] == 6


def test_every_row_of_a_table_has_the_cells_of_its_header(folder: Path) -> None:
    tables = (folder / "report.html").read_text().split("<table ")[1:]
    assert len(tables) >= 5
    for shown in tables:
        assert "<caption" in shown
        widths = {len(row) for row in HtmlTables(shown.partition("</table>")[0]).rows}
        assert len(widths) == 1


def test_the_html_report_is_self_contained_with_its_figure(folder: Path) -> None:
    html_text = (folder / "report.html").read_text()
    assert '<svg class="chart" role="img"' in html_text
    assert not re.findall(r'(?:src|href)="(?!#|data:)', html_text)
    text = (folder / "report.md").read_text()
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert pictures == ["solved.svg", "differences.svg"]
    for picture in pictures:
        assert ElementTree.parse(folder / picture).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_report_has_its_provenance_and_the_causes_of_invalid_attempts(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert r"- 1 x The line was \<b\>cut\</b\>." in text
    assert "Commit `" in text
    assert "\nrun: riddles\n" in text
    assert "`sqlite:///runs/riddles/experience.db`" in text


def test_text_is_text_in_both_forms_and_spans_have_a_style() -> None:
    cells = table([{"a": "1", "b": "<i>2</i> | [x](y)"}], ("A ", strong("*caption*")))
    report = Report(title="A & <B>", run="riddles", place="runs/riddles", chapters=(chapter("C", cells),))
    html_text = to_html(report)
    assert "<title>A &amp; &lt;B&gt; \N{EN DASH} Retroformer</title>" in html_text
    assert "<td>&lt;i&gt;2&lt;/i&gt; | [x](y)</td>" in html_text
    assert "A <strong>*caption*</strong>" in html_text
    assert html_text.startswith("<!doctype html>")
    text = to_markdown(report)
    assert "Table: A **\\*caption\\***" in text
    assert text.endswith("| 1 | \\<i\\>2\\</i\\> \\| \\[x\\](y) |\n")


def test_a_number_of_the_report_is_traced_to_the_store(folder: Path) -> None:
    report = read_report(folder)
    (solved,) = (one for one in report.chapters if one.title == "Solved by trial")
    assert solved.source == "eval.report.solved.by_trial"
    (shares,) = (part for part in solved.parts if isinstance(part, Table))
    columns = {column.trial: place for place, column in enumerate(shares.columns) if column.trial is not None}
    experiment = load(Path("riddles.yaml"))
    with closing(open_store(experiment)) as store:
        for row in shares.rows:
            (stored,) = report.arms[row[0].arms[0]]
            played = [attempt for arm in (FIRST_TRIAL, stored) for attempt in store.stream_trajectories(arm)]
            won = {key.task_id for key, attempt in played if attempt.outcome is Outcome.SUCCESS}
            assert row[columns[1]].value == len(won) / 10
    assert all(one.source for one in report.chapters)
