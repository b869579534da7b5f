"""Tests of the report: well-formed tables, numbers equal to the results, and no model text that can break the page."""

import html.parser
import json
import re
from contextlib import closing
from pathlib import Path
from xml.etree import ElementTree

import pytest

from eval.play.verify import VerifiedModel
from eval.report.files import read_report
from eval.report.html import to_html
from eval.report.markdown import to_markdown
from retroformer.config.file import load
from retroformer.files.document import Report, Table, chapter, strong, table
from retroformer.method.records import Key, Outcome, Usage
from retroformer.run.arm_names import FIRST_TRIAL
from retroformer.run.promotions import History
from retroformer.run.provenance import ADAPTER_FILES
from retroformer.run.store import open_store
from tests.support.characters import CAPITAL, advice, attempt_at
from tests.support.evaluations import CONFIG, POOLED, WINS, write_evaluation, write_stages
from tests.support.facts import add_trajectory


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
    return report_of(CONFIG, {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0})


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the Markdown of the same report with two training seeds of trained, which solve 6 and 3 of 8."""
    monkeypatch.chdir(tmp_path)
    return (report_of(POOLED, WINS | {"eval/trained/ppo-1": 6, "eval/trained/ppo-2": 3}) / "report.md").read_text()


def report_of(config: str, wins: dict[str, int]) -> Path:
    """Write the report of ten riddles; return its folder."""
    verified = [
        VerifiedModel("ppo", "ab" * 32, True, "Say|Paris\nnow", True),
        VerifiedModel("base", None, False, "Lyon", None),
    ]
    return write_evaluation(config, wins, verified)


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
    text = (report_of(config, {"eval/no reflection": 0}) / "report.md").read_text()
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


def test_an_arm_costs_what_its_run_collected_and_all_its_stages_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    assert "cost to make" not in (report_of(CONFIG, wins) / "report.md").read_text(), "nothing was trained here"
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo")
    with closing(open_store(experiment)) as store:
        for arm, calls in (("collect", 7), ("written", 2), ("eval/trained", 100)):
            store.declare(arm, {})
            add_trajectory(
                store, Key(arm=arm, task_id="another"), attempt_at(CAPITAL).model_copy(update={"usage": Usage()})
            )
            store.charge(arm, Usage(calls=calls, prompt_tokens=10 * calls))
    section = (report_of(CONFIG, wins) / "report.md").read_text().partition("cost to make and to use")[2]
    row = next(line for line in section.splitlines() if line.startswith("| trained "))
    # 12,345 tokens in each of three stages; calls of the evaluation are not those of making.
    assert row.split(" | ")[1:6] == ["0", "9", "90", "37,035", "0"]
    assert "| hopeless " not in section.partition("## ")[0]
    metrics = experiment.folder / "ppo" / "metrics.json"
    metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"resumed_from_update": 2}))
    text = (report_of(CONFIG, wins) / "report.md").read_text()
    row = next(line for line in text.partition("cost to make and to use")[2].splitlines() if line[:10] == "| trained ")
    assert row.split(" | ")[1:6] == ["0", "9", "90", "37,035", "-"], "the CPU time of a resumed stage was not measured"
    assert text.count("| 12,345 | - |") == 1


def test_a_promoted_adapter_costs_what_it_cost_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG + "    served: {kind: model, model: reflector}\n"
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0, "eval/served": 6}
    Path("riddles.yaml").write_text(config)
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo")
    for name in ADAPTER_FILES:
        (experiment.folder / "ppo" / name).write_text("weights")

    def costs() -> set[str]:
        section = (report_of(config, wins) / "report.md").read_text().partition("cost to make and to use")[2]
        rows = [line for line in section.splitlines() if line.startswith(("| trained ", "| served "))]
        return {row.split(" | ")[4] for row in rows[:2]}

    assert costs() == {"37,035"}
    history = History(experiment.folder)
    history.append((), "first", history.keep("ppo", experiment.folder / "ppo"), "nothing was served before")
    assert costs() == {"37,035"}


def test_an_arm_does_not_pay_for_adapters_and_retries_that_others_were_trained_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arms = {"near": "ppo-near", "live": "grpo", "imitating": "sft"}
    config = CONFIG + "".join(f"    {name}: {{kind: model, model: {model}}}\n" for name, model in arms.items())
    wins = dict.fromkeys(("eval/no reflection", "eval/trained", "eval/hopeless", *(f"eval/{name}" for name in arms)), 0)
    Path("riddles.yaml").write_text(config)
    experiment = load(Path("riddles.yaml"))
    write_stages(experiment, "sft", "reward", "ppo-near", "grpo")
    with closing(open_store(experiment)) as store:
        for arm, calls in (("collect", 7), ("grpo", 30), ("document", 500), ("collect 2", 1000)):
            store.declare(arm, {})
            played = attempt_at(CAPITAL).model_copy(update={"usage": Usage()})
            for trial in range(2):
                add_trajectory(store, Key(arm=arm, task_id="another", trial=trial), played)
            store.add_reflection(Key(arm=arm, task_id="another", trial=1), 0, advice("Paris?"))
            store.charge(arm, Usage(calls=calls))
    for path in experiment.folder.glob("*/metrics.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rounds": [1]}))
    folder = report_of(config, wins)
    section = (folder / "report.md").read_text().partition("cost to make and to use")[2].partition("\n## ")[0]
    rows = [
        line.strip("| ").split(" | ")
        for line in section.splitlines()
        if line.startswith(tuple(f"| {arm} " for arm in arms))
    ]
    # Four updates of four groups, with 7.5 distinct texts each; the second round was read by none of them.
    assert {row[0]: (row[1], row[2], row[4]) for row in rows} == {
        "near": ("1", "8", "37,035"),
        "live": ("121", "39", "24,690"),
        "imitating": ("1", "8", "12,345"),
    }
    drawn = (folder / "ratings.svg").read_text()
    assert "<title>live returns</title>" in drawn
    assert "<title>PPO</title>" not in drawn, "it read as many ratings as the SFT it started from"


PLANNED = """
  comparisons:
    - {first: trained, second: no reflection, trial: 1, mean: 0.7, low: 0.3}
    - {first: trained, second: no reflection, mean: 0.8}
    - {first: hopeless, second: no reflection, low: -0.05}
"""


def test_planned_comparisons_are_met_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    text = (report_of(CONFIG.rstrip() + PLANNED, wins) / "report.md").read_text()
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


def test_the_headline_is_made_of_sentences_that_can_be_quoted(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    assert (
        "- **trained** solves 80.0% of 10 tasks within 2 attempts, 60.0 points more than *no reflection* (95% interval "
        "over tasks: 30.0 to 90.0; p = 0.0312)." in text
    )
    assert (
        "- The data do not show a difference between **hopeless** (20.0% of 10 tasks within 2 attempts) and "
        "*no reflection*: 0.0 points (95% interval over tasks: 0.0 to 0.0; p = 1.0000)." in text
    )


def test_the_headline_begins_with_what_training_was_worth(folder: Path) -> None:
    sentences = [line for line in (folder / "report.md").read_text().splitlines() if line.startswith("- ")]
    assert sentences[0].startswith(
        "- **trained** solves 80.0% of 10 tasks within 2 attempts, 60.0 points more than *hopeless* (95% interval"
    ), "the base writes the advice of this arm"
    assert sum("**trained**" in sentence for sentence in sentences) == 2


def test_of_several_trained_arms_only_the_last_is_also_compared_with_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = CONFIG.replace("    trained:", "    earlier: {kind: model, model: sft}\n    trained:")
    wins = {"eval/no reflection": 0, "eval/earlier": 6, "eval/trained": 6, "eval/hopeless": 0}
    conclusion = read_report(report_of(config, wins)).conclusion
    assert [sentence.arms for sentence in conclusion] == [
        ("trained", "hopeless"),
        ("earlier", "hopeless"),
        ("trained", "no reflection"),
        ("hopeless", "no reflection"),
    ]


def test_the_headline_compares_the_arms_of_the_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}
    text = (report_of(f"{CONFIG.rstrip()}\n  examples: [trained, hopeless]\n", wins) / "report.md").read_text()
    assert (
        "- **hopeless** solves 20.0% of 10 tasks within 2 attempts, 60.0 points fewer than *trained* (95% interval "
        "over tasks: 30.0 to 90.0; p = 0.0312)." in text
    )


def test_an_interval_above_0_is_no_claim_where_the_exact_test_of_two_models_disagrees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wins = {"eval/no reflection": 0, "eval/trained": 5, "eval/hopeless": 0}
    text = (report_of(CONFIG, wins) / "report.md").read_text()
    # Five tasks that only one arm solved: 2 / 2**5.
    assert "- The data do not show a difference between **trained** (70.0% of 10 tasks within 2 attempts) and" in text
    assert "50.0 points (95% interval over tasks: 20.0 to 80.0; p = 0.0625)." in text


def test_pooled_seeds_claim_a_difference_if_the_interval_over_seeds_and_tasks_excludes_0(pooled: str) -> None:
    # The exact test of ppo-2 alone, with three tasks, has p = 2 / 2**3.
    claim = (
        r"- \*\*trained\*\* solves 65.0% of 10 tasks within 2 attempts, 45.0 points more than \*no reflection\* "
        r"\(95% interval over training seeds and tasks: 1\d.0 to \d\d.0\)\."
    )
    assert re.search(claim, pooled)


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
