"""Tests of the site as one file in a real browser: from disk, by keyboard, narrow, dark, printed, without a network."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from eval.view.export import export_site
from retroformer.coach.stories.runs import open_runs
from retroformer.run.store import Store
from tests.support.evaluations import POOLED, WINS, write_evaluation
from tests.support.stories import write_run


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Address of the file of two runs: one with several candidates and a mark, one with a report."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        evaluated = folder / write_evaluation(POOLED, WINS).parent
    with closing(Store(f"sqlite:///{write_run(folder)}", "doors")) as store:
        store.marks.add("collect", "door-1", "leaking", "Names the key.")
    with ExitStack() as stack:
        runs = [run for path in (folder, evaluated) for run in stack.enter_context(open_runs(path))]
        export_site(runs, folder / "out.html", 12, folder / "index.db")
    return (folder / "out.html").as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    complaints, requests = list[str](), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(address)
    yield page
    page.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith("data:")] == [address]


def test_links_lead_from_a_comparison_to_a_story_and_back(page: Page) -> None:
    page.get_by_role("navigation", name="Parts").get_by_role("link", name="Compare").click()
    expect(page.locator("#compare-1")).to_be_in_viewport()
    page.locator("#compare-2").get_by_role("link", name="Story of capital-02 in eval/hopeless").click()
    story = page.locator(":target")
    expect(story.get_by_role("heading", level=1)).to_have_text("capital-02")
    expect(story).to_be_in_viewport()
    story.get_by_role("link", name="All stories").click()
    expect(page.locator("#stories")).to_be_in_viewport()


def test_a_candidate_of_the_tree_is_reached(page: Page) -> None:
    story = page.locator("#story-1")
    story.get_by_role("link", name="1.0", exact=True).click()
    expect(page.locator(":target")).to_have_text("Trial 1, candidate 0")
    expect(page.locator(":target")).to_be_in_viewport()
    story.get_by_text("Prompt and tokens").first.click()
    expect(story.locator("pre").first).to_have_text("The door stayed shut.")


def test_keys_move_through_the_steps_and_stories_from_where_the_reader_is(page: Page, address: str) -> None:
    page.goto(f"{address}#story-2")
    page.keyboard.press("j")
    expect(page.locator('[id="story-2-t0.0-s1"]')).to_be_focused()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator('[id="story-2-t0.0-s1"]')).to_be_focused()
    for key, story in (("n", 3), ("n", 4), ("p", 3)):
        page.keyboard.press(key)
        page.wait_for_url(f"**/out.html#story-{story}")
    page.keyboard.press("j")
    expect(page.locator('[id="story-3-t0.0-s1"]')).to_be_focused()
    page.keyboard.press("/")
    expect(page.locator('[id="story-3-t0.0-s1"]')).to_be_focused()


def test_the_table_of_stories_is_sorted_by_a_click(page: Page) -> None:
    table = page.locator("#stories table")
    table.get_by_role("columnheader", name="Attempts").get_by_role("button").click()
    expect(table.locator("tbody tr").first).to_contain_text("door-1")
    table.get_by_role("columnheader", name="Task").get_by_role("button").click()
    expect(table.locator("tbody tr").first).to_contain_text("capital-02")


def test_a_narrow_screen_does_not_scroll_sideways(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_dark_mode_is_dark_and_paper_is_light(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    page.emulate_media(color_scheme="dark")
    assert ground() == "rgb(20, 23, 27)"
    page.emulate_media(color_scheme="dark", media="print")
    assert ground() == "rgb(255, 255, 255)"
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_has_no_serious_complaint(scheme: Literal["light", "dark"], page: Page) -> None:
    page.emulate_media(color_scheme=scheme)
    violations = Axe().run(page).response["violations"]
    serious = [one for one in violations if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []


def test_no_other_script_or_style_runs(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.owned = 1";
          document.body.append(script);
          document.body.setAttribute("style", "display: none");
        }"""
    )
    assert page.evaluate("window.owned === undefined")
    expect(page.locator("body")).to_be_visible()
    assert page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')") == "refused"
    page.close()
