"""Tests of the report: well-formed tables, numbers equal to the results, and no model text that can break the page."""

import html.parser
import re
from pathlib import Path

import pytest

from eval.measure.results import arm_results
from eval.play.arms import single_model_arms
from eval.play.verify import VerifiedModel
from eval.report.html import to_html
from eval.report.input import ReportInput
from eval.report.report import write_report
from retroformer.arm_names import FIRST_TRIAL
from retroformer.experiment.file import load
from retroformer.records import Key, Outcome
from retroformer.store import Store
from tests.support.characters import PRICE, advice, attempt_at, task

TASKS = [task(f"capital-{number:02d}") for number in range(10)]
CONFIG = """
run: riddles
environment: {name: alfworld}
loop: {trials: 2, actions: 15}
actor: {kind: household, endpoint: {model: actor}}
eval:
  arms:
    no reflection: {kind: none}
    trained: {kind: model, model: ppo}
    hopeless: {kind: model, model: base}
"""
SCRIPT = "Say <script>alert('Paris')</script> | or **not**\n\n# Lyon"


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a report on ten riddles: 2 solved at once, trained solves 6 of 8 retries, others none."""
    monkeypatch.chdir(tmp_path)
    return report_of(tmp_path, CONFIG, {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0})


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the Markdown of the same report with two training seeds of trained, which solve 6 and 3 of 8."""
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("model: ppo", "model: [ppo-1, ppo-2]")
    wins = {"eval/no reflection": 0, "eval/trained/ppo-1": 6, "eval/trained/ppo-2": 3, "eval/hopeless": 0}
    return (report_of(tmp_path, config, wins) / "report.md").read_text()


def report_of(tmp_path: Path, config: str, wins: dict[str, int]) -> Path:
    """Write a report on ten riddles, 2 solved at once, with `wins` solved retries per stored arm; return its folder."""
    (tmp_path / "riddles.yaml").write_text(config)
    experiment = load(tmp_path / "riddles.yaml")
    store = Store(experiment.store_url, experiment.run)
    for number, riddle in enumerate(TASKS):
        first = Outcome.SUCCESS if number < 2 else Outcome.FAILURE
        store.add_trajectory(Key(arm=FIRST_TRIAL, task_id=riddle.id), attempt_at(riddle, (float(number < 2),), first))
        for stored, solved in wins.items() if number >= 2 else ():
            key = Key(arm=stored, task_id=riddle.id, trial=1)
            won = number < 2 + solved
            if stored != "eval/no reflection":
                store.add_reflection(key, 0, advice(SCRIPT if "trained" in stored else "Lyon!"))
            retry = Outcome.SUCCESS if won else Outcome.FAILURE
            store.add_trajectory(key, attempt_at(riddle, (float(won),), retry))
    store.add_invalid(Key(arm="eval/hopeless", task_id=TASKS[5].id, trial=1), "The line was <b>cut</b>.", PRICE)
    verified = [
        VerifiedModel("ppo", "ab" * 32, True, "Say|Paris\nnow", True),
        VerifiedModel("base", None, False, "Lyon", None),
    ]
    arms = {name: list(single_model_arms(name, arm)) for name, arm in experiment.eval.arms.items()}
    outcomes = arm_results(store, TASKS, arms, experiment.loop.trials)
    written = write_report(ReportInput(experiment, TASKS, outcomes, verified, store, "cd" * 32))
    store.close()
    assert written == Path("runs/riddles/eval/report.html")
    return tmp_path / "runs" / "riddles" / "eval"


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


def test_solved_failures_are_counted_and_compared(folder: Path) -> None:
    section = (
        (folder / "report.md")
        .read_text()
        .partition("## Solved of the 8 tasks that failed at trial 0")[2]
        .partition("\n## ")[0]
    )
    assert "| trained | 6: 0.750 [0.375, 1.000] |" in section
    assert "| hopeless | 0: 0.000 [0.000, 0.000] |" in section
    assert "| trained | no reflection | 0.750 [0.375, 1.000] |" in section
    assert "| hopeless | trained | -0.750 [-1.000, -0.375] |" in section


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
    text = (report_of(tmp_path, config, {"eval/no reflection": 0}) / "report.md").read_text()
    assert "| no reflection | 0.200 [0.000, 0.500] | 0.200 [0.000, 0.500] |" in text
    assert "first - second" not in text
    assert "Differences" not in text


def test_training_seeds_are_pooled_per_task_and_shown_separately(pooled: str) -> None:
    # Riddles 2, 3 and 4 count fully, 5, 6 and 7 half: 2 + 3 + 1.5 of 10, and 4.5 of the 8 failures.
    rates = dict(re.findall(r"^\| (trained\S*) \| 0.200 \S+ \S+ \| (\S+) \[", pooled, re.MULTILINE))
    assert rates == {"trained": "0.650", "trained/ppo-1": "0.800", "trained/ppo-2": "0.500"}
    counts = dict(re.findall(r"^\| (trained\S*) \| ([\d.]+): ", pooled, re.MULTILINE))
    assert counts == {"trained": "4.5", "trained/ppo-1": "6", "trained/ppo-2": "3"}
    (difference,) = re.findall(r"^\| trained \| no reflection \| 0.450 \[.+\] \| (.*) \|$", pooled, re.MULTILINE)
    assert difference == "- | - | 0.2500, the largest of 2"
    assert "| hopeless | no reflection | 0.000 [0.000, 0.000] (covers 0) | 0 | 0 | 1.0000 |" in pooled
    assert "| trained/ppo-1 | Say " in pooled


def test_the_report_says_that_intervals_of_single_models_exclude_seed_variation(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "they do not cover variation between training seeds." in text
    assert "pools" not in text


def test_the_report_limits_intervals_of_pooled_seeds_to_these_seeds(pooled: str) -> None:
    assert "they say nothing" not in pooled
    assert "the interval covers other tasks with these seeds" in pooled
    assert "An arm with one model does not cover variation between training seeds." in pooled


def test_a_difference_is_claimed_where_the_exact_test_agrees(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "- **trained** solves more tasks than *no reflection*: 0.600 [0.300, 0.900] (p = 0.0312)." in text
    assert (
        "- The data do not show a difference between **hopeless** and *no reflection*: 0.000 [0.000, 0.000] "
        "(p = 1.0000)." in text
    )


def test_an_interval_above_0_is_no_claim_where_the_exact_test_disagrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 5, "eval/hopeless": 0}
    text = (report_of(tmp_path, CONFIG, wins) / "report.md").read_text()
    # Five tasks that only one arm solved: 2 / 2**5.
    assert "- The data do not show a difference between **trained** and *no reflection*: 0.500 [0.200" in text
    assert "(p = 0.0625)." in text


def test_pooled_seeds_claim_a_difference_only_if_each_of_them_does(pooled: str) -> None:
    # Alone, ppo-1 has p = 2 / 2**6 and ppo-2, with three tasks, 2 / 2**3.
    assert (
        "- The data do not show a difference between **trained** and *no reflection*: 0.450 [0.200, 0.700] "
        "(p = 0.2500, the largest of 2)." in pooled
    )


def test_text_of_a_model_stays_text_in_its_cell(folder: Path) -> None:
    html_text = HtmlTables((folder / "report.html").read_text())
    assert "script" not in html_text.tags
    assert "b" not in html_text.tags
    widths = {tuple(row[:2]): len(row) for row in html_text.rows}
    written = [row for row in html_text.rows if row[1:2] == ["trained"] and row[0].startswith("capital")]
    assert len(written) == 3
    assert all("<script>" in row[2] and row[3] == "solved" for row in written)
    assert widths["ppo", "abababababab"] == 6


def test_every_row_of_a_table_has_the_cells_of_its_header(folder: Path) -> None:
    tables = (folder / "report.html").read_text().split("<table>")[1:]
    assert len(tables) >= 5
    for table in tables:
        widths = {len(row) for row in HtmlTables(table.partition("</table>")[0]).rows}
        assert len(widths) == 1


def test_the_html_report_is_self_contained_with_its_figure(folder: Path) -> None:
    html_text = (folder / "report.html").read_text()
    assert 'src="data:image/png;base64,' in html_text
    assert "curve.png" not in html_text
    assert "http://" not in html_text.replace("http://localhost/v1", "")
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_has_its_provenance_and_the_causes_of_invalid_attempts(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert "- 1 x The line was <b>cut</b>." in text
    assert "Commit `" in text
    assert "\nrun: riddles\n" in text
    assert "`sqlite:///runs/riddles/experience.db`" in text


def test_markdown_becomes_html_with_tables_and_without_raw_html() -> None:
    html_text = to_html("# A & B\n\n| a | b |\n| --- | --- |\n| 1 | <i>2</i> |\n", "A & <B>")
    assert "<title>A &amp; &lt;B&gt;</title>" in html_text
    assert "<td>&lt;i&gt;2&lt;/i&gt;</td>" in html_text
    assert html_text.startswith("<!doctype html>")
