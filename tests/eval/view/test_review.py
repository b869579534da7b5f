"""Tests of marks: stored as facts and shown; a form from elsewhere, or a wrong one, stores none."""

import pytest
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient

from eval.view.site import Site
from tests.eval.view.conftest import PORT
from tests.eval.view.test_pages import STORY, read

ORIGIN = {"origin": f"http://127.0.0.1:{PORT}"}


def marks(site: Site) -> list[tuple[str, str, str, str]]:
    history = site.sources[0].store.marks.history()
    return [(mark.arm, mark.task_id, mark.verdict, mark.note) for mark in history]


def test_a_story_is_marked_in_the_browser(browser: Browser, address: str, site: Site) -> None:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    page.goto(f"{address}/story?run=doors&arm=collect&task=door-1")
    page.get_by_label("This story is").select_option("leaking")
    page.get_by_label("Note").fill("Names the key.\nSecond line.")
    page.get_by_role("button", name="Mark").click()
    expect(page.get_by_label("This story is")).to_have_value("leaking")
    page.goto(f"{address}/review")
    expect(page.get_by_role("row", name="door-1 collect leaking Names the key. Second line.")).to_be_visible()
    page.goto(f"{address}/stories?mark=leaking")
    expect(page.get_by_text("1 story.")).to_be_visible()
    page.close()
    assert marks(site) == [("collect", "door-1", "leaking", "Names the key.\nSecond line.")]


def test_the_latest_mark_counts_and_can_be_taken_back(client: TestClient, site: Site) -> None:
    for verdict in ("right", "wrong", ""):
        assert client.post("/mark", data={**STORY, "verdict": verdict}, headers=ORIGIN).status_code == 200
    assert [verdict for _, _, verdict, _ in marks(site)] == ["right", "wrong", ""]
    assert "No story is marked." in read(client, "/review")


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({**STORY, "task": "door-9", "verdict": "right"}, "There is no story of the task"),
        ({**STORY, "run": "x", "verdict": "right"}, "There is no run"),
        ({**STORY, "verdict": "great"}, "is no verdict: choose one of right, wrong, leaking."),
        ({**STORY, "verdict": "right", "note": "x" * 4001}, "at most 4000"),
        ({**STORY, "verdict": "right", "note": "x" * 70_000}, "at most 4000"),
        ({**STORY, "verdict": "right", "note": "\0"}, "The mark was not stored"),
    ],
)
def test_a_wrong_form_stores_nothing(form: dict[str, str], sentence: str, client: TestClient, site: Site) -> None:
    answer = client.post("/mark", data=form, headers=ORIGIN)
    assert answer.status_code == 400
    assert sentence in answer.text.replace("&#39;", "'")
    assert marks(site) == []


def test_a_form_of_another_site_stores_nothing(client: TestClient, site: Site) -> None:
    for headers in ({}, {"origin": "https://example.org"}, {"origin": "null"}):
        assert client.post("/mark", data={**STORY, "verdict": "right"}, headers=headers).status_code == 403
    assert marks(site) == []
