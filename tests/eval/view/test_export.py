"""Tests of the site as one file: what it holds and leaves out, its links, and what is refused."""

import re
from contextlib import closing
from html import unescape
from pathlib import Path

import pytest

from eval.report.files import FILE
from eval.view.export import Anchors, export_site, select_stories
from eval.view.site import Site
from retroformer.__main__ import main
from retroformer.coach.stories.runs import open_runs
from retroformer.errors import ConfigError, MissingInput, StoreError
from retroformer.run.store import Store
from tests.eval.view.test_pages import text_of
from tests.support.evaluations import POOLED, WINS, write_evaluation


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an evaluation of 40 stories with its report; return the folder of the run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / write_evaluation(POOLED, WINS).parent


def exported(*runs: Path, stories: int = 100) -> str:
    file = Path("out.html")
    main(["view", *map(str, runs), "--export", str(file), "--stories", str(stories)])
    return file.read_text(encoding="utf-8")


def part(html: str, anchor: str) -> str:
    """Return the text of the part at an anchor."""
    here = html.partition(f'<div class="page" id="{anchor}">')[2].partition('<div class="page"')[0]
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", here)).split())


def test_the_file_holds_the_pages_of_the_site(run: Path, run_folder: Path) -> None:
    html = exported(run, run_folder)
    shown = text_of(html)
    assert "This file holds all 43 stories." in shown
    assert "eval/hopeless 2 0 8 1 8 8 1,870" in part(html, "overview")
    assert part(html, "report-1").startswith("riddles: does the advice help?")
    assert "collect, sft 4 3.5" in part(html, "learning-2")
    assert "A is riddles: eval/trained (2 seeds) , B is riddles: eval/no reflection ." in shown
    assert "7 Solved by A, not by B" in shown
    assert "43 stories." in part(html, "stories")


def test_a_story_has_all_its_candidates_and_prompts(run_folder: Path, run: Path) -> None:
    html = exported(run_folder)
    story = part(html, "story-1")
    assert "Trial 1, candidate 1 failed return 0.5 rating +0.5 Advice of sft Look for a key." in story
    assert "First step that differs 2 look You look." in story
    assert "Other candidates Trial 1, candidate 0" in story
    assert "temperature 0, seed" not in story
    assert "sft; 30 prompt and 20 of at most 20 completion tokens" in story
    assert story.count("user The door stayed shut.") == 4
    assert 'href="#story-1-t1.0"' in html
    assert 'id="story-1-t1.0"' in html


def test_marks_are_shown_with_their_stories(run_folder: Path, run: Path) -> None:
    assert 'id="review"' not in exported(run_folder)
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.marks.add("eval/trained", "door-2", "leaking", "Names the key.")
    html = exported(run_folder)
    assert "door-2 eval/trained leaking Names the key." in part(html, "review")
    # Its task comes first of the evaluated ones, which take turns with the collected ones.
    assert "Next story door-2 doors, split train, run doors, arm eval/trained" in part(html, "story-2")
    assert part(html, "story-2").endswith("Marked as leaking : Names the key.")


def test_every_link_leads_to_a_part_of_the_file(run: Path, run_folder: Path) -> None:
    for stories in (100, 5):
        html = exported(run, run_folder, stories=stories)
        addresses = set(re.findall(r'href="([^"]*)"', html)) - {"data:,"}
        anchors = re.findall(r'\bid="([^"]*)"', html)
        assert len(anchors) == len(set(anchors)) > 50
        assert len(addresses) > 50
        assert {unescape(address) for address in addresses} <= {f"#{anchor}" for anchor in anchors}
        assert not re.search(r"<(form|input|select|textarea|iframe|img)\b|\bsrc=", html)


def test_the_file_says_what_it_leaves_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    html = exported(run, stories=8)
    left_out = "This file holds 8 of 40 stories: stories of marked tasks first, then of those that some arms solved"
    assert left_out in text_of(html)
    assert capsys.readouterr().out.startswith(f"out.html shows riddles. {left_out}")
    assert 'id="story-8"' in html
    assert 'id="story-9"' not in html


def test_tasks_that_were_marked_or_that_arms_solved_differently_come_first(site: Site, run_folder: Path) -> None:
    def keys(most: int) -> list[tuple[str, str]]:
        rows, total = select_stories(site.index, most)
        assert total == 3
        return [(row["arm"], row["task"]) for row in rows]

    # The stages take turns. Of the two evaluated tasks, advice changed the return of the first.
    assert keys(9) == [("collect", "door-1"), ("eval/trained", "door-1"), ("eval/trained", "door-2")]
    assert keys(2) == keys(9)[:2]
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.marks.add("eval/trained", "door-2", "right")
    site.index.update()
    assert keys(2) == [("collect", "door-1"), ("eval/trained", "door-2")]


def test_stories_of_one_task_in_all_arms_stay_together(run: Path) -> None:
    html = exported(run, stories=8)
    tasks = re.findall(r'id="story-\d+">.*?<h1>(.*?)</h1>', html, re.DOTALL)
    # Two tasks that only the trained arm solved, in four arms each.
    assert tasks == ["capital-02"] * 4 + ["capital-03"] * 4


def test_a_damaged_report_is_a_sentence_in_the_file(run: Path) -> None:
    (run / "eval" / FILE).write_text("{}")
    html = exported(run)
    assert "eval/report.json is damaged (Field required): run `retroformer eval` again" in part(html, "report-1")
    assert 'id="story-40"' in html


@pytest.mark.parametrize("name", ["out.txt", "experience.db", "out", "folder.html"])
def test_only_an_html_file_is_written(name: str, run: Path) -> None:
    Path("folder.html").mkdir()
    with pytest.raises(ConfigError, match=f"{name} is not the name of an HTML file: end it with .html."):
        main(["view", str(run), "--export", name])


def test_a_run_that_is_not_there_leaves_no_file(run: Path) -> None:
    with pytest.raises(MissingInput, match="There is no run at"):
        main(["view", "nowhere.db", "--export", "new/out.html"])
    assert not Path("new").exists()


def test_a_file_is_replaced_only_by_a_whole_one(run: Path) -> None:
    Path("new").mkdir()
    file = Path("new/out.html")
    file.write_text("earlier")
    with open_runs(run) as runs:
        export_site(runs, file, 5, Path("index.db"))
        whole = file.read_text()
        assert whole.startswith("<!doctype html>")
        assert whole.endswith("</html>")
        runs[0].store.close()
        (run / "experience.db").unlink()
        with pytest.raises(StoreError):
            export_site(runs, file, 5, Path("index.db"))
    assert file.read_text() == whole
    assert list(Path("new").iterdir()) == [file]


def test_a_link_to_what_the_file_lacks_has_no_address() -> None:
    anchors = Anchors()
    anchors.add("stories", "stories")
    anchors.add("story-1", "story", run="a", arm="b", task="c")
    assert anchors("story", run="a", arm="b", task="c", at="1.0") == "#story-1-t1.0"
    assert anchors("story", run="a", arm="b", task="d") == ""
    assert anchors("stories", run="a", arm="b") == anchors("stories") == "#stories"
    # The table of the file has no filters.
    assert anchors("stories", run="a", outcome="failed") == anchors("stories", q="word") == ""
