"""Tests of the report's page: the same report as in report.html, with links to the stories behind it."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from eval.report.files import FILE
from eval.view.index import Index
from eval.view.server import application
from eval.view.site import Site
from retroformer.coach.stories.runs import open_runs
from tests.eval.view.conftest import PORT
from tests.eval.view.test_pages import read, text_of
from tests.support.evaluations import POOLED, WINS, write_evaluation


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an evaluation with two training seeds of an arm; return the folder of its report."""
    monkeypatch.chdir(tmp_path)
    return write_evaluation(POOLED, WINS)


@pytest.fixture
def reader(report: Path, tmp_path: Path) -> Iterator[TestClient]:
    with ExitStack() as stack:
        sources = stack.enter_context(open_runs(report.parent))
        site = Site(sources, Index(sources, tmp_path / "index.db"))
        site.index.update()
        yield stack.enter_context(TestClient(application(site, PORT), base_url=f"http://127.0.0.1:{PORT}"))


def links(client: TestClient, within: str) -> dict[str, str]:
    """Return the addresses in the part of the page with this id, by the text of their links."""
    html = client.get("/report").text
    part = html.partition(f'id="{within}"')[2].partition("</table>" if "table" in within else "</figure>")[0]
    found = re.findall(r'<a href="([^"#]+)">(.*?)</a>', part)
    return {re.sub("<[^>]+>", "", text): unescape(address) for address, text in found}


def test_the_page_shows_what_the_file_shows(reader: TestClient, report: Path) -> None:
    in_file = text_of((report / "report.html").read_text())
    in_site = read(reader, "/report")
    command = "The attempts behind every number: retroformer view runs/riddles"
    assert in_file.replace(f" {command}", "") == in_site
    assert command not in in_site
    assert in_file.count("retroformer view") == 1


def test_figures_and_tables_link_to_the_stories_of_an_arm(reader: TestClient) -> None:
    hopeless = "stories?run=riddles&arm=eval%2Fhopeless"
    # The two seeds of an arm are shown together.
    pooled = "stories?run=riddles&arm=eval%2Ftrained%2F"
    for part in ("figure-solved", "figure-differences", "table-solved-by-trial"):
        assert {"hopeless": hopeless, "trained": pooled}.items() <= links(reader, part).items()
    assert links(reader, "table-solved-by-trial")["trained/ppo-2"].endswith("arm=eval%2Ftrained%2Fppo-2")
    assert "20 stories" in text_of(reader.get(f"/{pooled}").text)


def test_a_difference_links_to_its_comparison_and_a_piece_of_advice_to_its_story(reader: TestClient) -> None:
    differences = links(reader, "table-differences-after-the-last-trial-paired-by-task")
    interval = "0.650 [0.350, 0.900]"
    compared = text_of(reader.get("/" + differences[interval]).text)
    assert "riddles: eval/trained (2 seeds)" in compared
    assert f"1 85% 20% {interval}" in compared, "both give the same interval"
    written = links(reader, "table-advice-that-the-arms-wrote")
    assert written["capital-02"] == "story?run=riddles&arm=eval%2Fhopeless&task=capital-02"


def test_the_overview_begins_with_the_conclusion_the_models_and_the_date(reader: TestClient) -> None:
    shown = read(reader, "/")
    first = shown.index("trained solves 85.0% of 10 tasks within 2 attempts, 65.0 points more than hopeless")
    assert first < shown.index("calls,")
    about = (
        r"actor household actor, base model of the reflectors SmolLM2-135M-Instruct, seed 0, written 2\d{3}-\d\d-\d\d"
    )
    assert re.search(about, shown)


def test_learning_shows_the_figure_of_the_report_in_its_colours(reader: TestClient) -> None:
    in_report, in_learning = (
        re.findall(r'<g class="(s\d)"><title>(trained|hopeless|no reflection)<', reader.get(path).text)
        for path in ("/report", "/learning")
    )
    assert in_report == in_learning
    assert len(in_report) == 3


def test_a_run_without_a_report_says_who_writes_it(client: TestClient) -> None:
    assert "There is no report yet: retroformer eval writes it." in read(client, "/report")


def test_a_damaged_report_is_named_with_the_way_out(reader: TestClient, report: Path) -> None:
    (report / FILE).write_text("{}")
    answer = reader.get("/report")
    assert answer.status_code == 500
    assert "eval/report.json is damaged (Field required): run `retroformer eval` again" in text_of(answer.text)


@pytest.mark.parametrize("part", ["nobody", "../..", "../../../etc"])
def test_only_parts_of_the_report_are_opened(part: str, reader: TestClient) -> None:
    answer = reader.get("/report", params={"part": part})
    assert answer.status_code == 404
    assert f"has no report {part!r}." in text_of(answer.text)
