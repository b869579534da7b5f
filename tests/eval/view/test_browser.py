"""Tests of the site in a real browser: keyboard, live updates, narrow and dark screens, and accessibility."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from eval.view.site import Site
from retroformer.method.records import Key
from retroformer.run.arm_names import COLLECT
from retroformer.run.store import NewTrajectory, Store
from tests.support.stories import DOOR, attempt

STORY = "/story?run=doors&arm=collect&task=door-1"
PAGES = [
    "/",
    "/stories",
    "/stories?q=nothing",
    STORY,
    f"{STORY}&at=1.2",
    "/prompt?run=doors&arm=collect&task=door-1&at=1.0",
    "/compare?show=won",
    "/learning",
    "/report",
    "/review",
    "/nowhere",
]


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    complaints = list[str]()
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    yield page
    page.close()
    assert [text for text in complaints if "404" not in text] == []


def test_a_story_is_reached_from_the_overview_by_clicks(page: Page, address: str) -> None:
    page.goto(address)
    page.get_by_role("link", name="1 solved later in collect").click()
    page.get_by_role("link", name="door-1").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("door-1")
    expect(page.locator(".differs").first).to_contain_text("look")


def test_equal_steps_stand_side_by_side(page: Page, address: str) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{address}{STORY}")
    first, second = (page.locator(f'[id="{step}"]').bounding_box() for step in ("t0.0-s1", "t1.1-s1"))
    assert first is not None
    assert second is not None
    assert first["y"] == second["y"]
    assert first["x"] + first["width"] <= second["x"]


def test_steps_of_a_very_long_attempt_do_not_overlap(page: Page, address: str, run_folder: Path, site: Site) -> None:
    task = DOOR.model_copy(update={"id": "long"})
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.declare(COLLECT, {"loop": {"memory": 3}})
        store.add([NewTrajectory(Key(arm=COLLECT, task_id="long"), attempt(*["go"] * 450, task=task))])
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto(f"{address}/story?run=doors&arm=collect&task=long")
    boxes = [page.locator(f'[id="t0.0-s{number}"]').bounding_box() for number in (398, 399, 450)]
    tops = [box["y"] for box in boxes if box is not None]
    assert tops[0] < tops[1] < tops[2]


def test_keys_move_through_steps_and_stories(page: Page, address: str) -> None:
    page.goto(f"{address}{STORY}")
    page.keyboard.press("j")
    expect(page.locator('[id="t0.0-s1"]')).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator('[id="t1.1-s1"]')).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator('[id="t0.0-s2"]')).to_be_focused()
    for key, arm in (("n", "eval%2Ftrained"), ("p", "collect")):
        page.keyboard.press(key)
        page.wait_for_url(f"**/story?run=doors&arm={arm}&task=door-1")
    page.goto(f"{address}/stories")
    page.keyboard.press("/")
    expect(page.get_by_label("Search")).to_be_focused()
    page.keyboard.type("pull")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 story.")).to_be_visible()


def test_the_prompt_is_loaded_when_it_is_opened(page: Page, address: str) -> None:
    page.goto(f"{address}{STORY}")
    expect(page.get_by_text("The door stayed shut.")).to_have_count(0)
    page.get_by_text("Prompt and tokens").first.click()
    expect(page.locator("details pre")).to_have_text("The door stayed shut.")


def test_new_facts_appear_while_the_page_is_open(page: Page, address: str, site: Site, run_folder: Path) -> None:
    page.goto(f"{address}/stories")
    expect(page.get_by_text("3 stories.")).to_be_visible()
    with page.expect_response("**/version"):
        pass
    with closing(Store(f"sqlite:///{run_folder}/experience.db", "doors")) as store:
        store.declare(COLLECT, {"loop": {"memory": 3}})
        task = DOOR.model_copy(update={"id": "door-3"})
        store.add([NewTrajectory(Key(arm=COLLECT, task_id="door-3"), attempt("sleep", task=task))])
    site.index.update()
    expect(page.get_by_role("link", name="door-3")).to_be_visible()


@pytest.mark.parametrize("path", PAGES)
def test_no_page_scrolls_sideways_on_a_narrow_screen(path: str, page: Page, address: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.goto(f"{address}{path}")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_has_no_serious_complaint(scheme: Literal["light", "dark"], page: Page, address: str) -> None:
    page.emulate_media(color_scheme=scheme)
    serious = []
    for path in PAGES:
        page.goto(f"{address}{path}")
        violations = Axe().run(page).response["violations"]
        serious += [
            (path, violation["id"], violation["nodes"][0]["html"])
            for violation in violations
            if violation["impact"] in ("serious", "critical")
        ]
    assert serious == []
