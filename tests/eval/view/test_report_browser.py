"""Tests of report.html in a real browser: sorting, keyboard, narrow, dark, printed, and without a network."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

from eval.play.verify import VerifiedModel
from retroformer.config.file import load
from tests.support.evaluations import POOLED, WINS, write_evaluation, write_stages

CONFIG = POOLED.replace("eval:", "serve: {adapters: {ppo-1: runs/riddles/ppo, ppo-2: runs/second/ppo}}\neval:", 1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the report of an evaluation of two training seeds, as a file."""
    folder = tmp_path_factory.mktemp("evaluation")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("riddles.yaml").write_text(CONFIG)
        experiment = load(Path("riddles.yaml"))
        write_stages(experiment, "sft", "reward", "ppo")
        write_stages(experiment, "reward", "ppo", within="second", seed=2)
        verified = [VerifiedModel(name, "ab" * 32, True, True, "Say|Paris\nnow", True) for name in ("ppo-1", "ppo-2")]
        yield (folder / write_evaluation(CONFIG, WINS, verified) / "report.html").as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page()
    page.set_default_timeout(120_000)
    complaints, outside = list[str](), list[str]()
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: outside.append(request.url) if request.url != address else None)
    page.goto(address)
    yield page
    page.close()
    assert complaints == []
    assert [url for url in outside if not url.startswith("data:")] == []


def column(table: Locator, number: int) -> list[str]:
    return [row.locator("th, td").nth(number).inner_text() for row in table.locator("tbody tr").all()]


def test_a_click_sorts_a_column_of_numbers_down_up_and_back(page: Page) -> None:
    table = page.locator("#table-solved-by-trial")
    head = table.get_by_role("columnheader", name="by trial 1")
    order = column(table, 0)
    assert order == ["no reflection", "trained", "trained/ppo-1", "trained/ppo-2", "hopeless"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert column(table, 0) == ["trained/ppo-1", "trained", "trained/ppo-2", "no reflection", "hopeless"]
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert column(table, 0)[-1] == "trained/ppo-1"
    head.get_by_role("button").click()
    expect(table.locator("[aria-sort]")).to_have_count(0)
    assert column(table, 0) == order


def test_tables_are_sorted_by_keyboard(page: Page) -> None:
    table = page.locator("#table-solved-by-trial")
    table.locator("xpath=..").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    first = table.get_by_role("columnheader", name="arm")
    expect(first.get_by_role("button")).to_be_focused()
    page.keyboard.press("Enter")
    expect(first).to_have_attribute("aria-sort", "ascending")
    assert column(table, 0) == ["hopeless", "no reflection", "trained", "trained/ppo-1", "trained/ppo-2"]
    page.keyboard.press("Space")
    expect(first).to_have_attribute("aria-sort", "descending")


def test_numbers_with_words_and_missing_ones_are_sorted_by_their_value(page: Page) -> None:
    table = page.locator("#table-differences-after-the-last-trial-paired-by-task")
    table.get_by_role("columnheader", name="McNemar p").get_by_role("button").click()
    assert [text.split(",")[0] for text in column(table, 6)] == ["1.0000", "-", "-"]
    table.get_by_role("columnheader", name="only first solved").get_by_role("button").click()
    assert column(table, 4) == ["0", "-", "-"]


def test_each_heading_table_and_figure_has_an_address(page: Page) -> None:
    addresses = page.eval_on_selector_all("h2[id], table[id], figure[id]", "all => all.map(one => one.id)")
    assert len(addresses) == len(set(addresses)) > 20
    assert {"solved-of-the-tasks-that-failed-at-trial", "table-served-models", "figure-divergence"} <= set(addresses)
    for link in page.locator("nav.contents a").all():
        assert (link.get_attribute("href") or "")[1:] in addresses
    page.locator("nav.contents").get_by_role("link", name="Served models").click()
    assert page.url.endswith("#served-models")
    assert page.locator("table:not(:has(caption))").count() == page.locator("figure:not(:has(figcaption))").count() == 0


def test_a_narrow_screen_scrolls_only_tables_and_breaks_no_interval(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    box = page.locator(".wide:has(#table-solved-by-trial)")
    assert box.evaluate("box => box.scrollWidth > box.clientWidth")
    lines = page.eval_on_selector_all(".interval", "all => all.map(one => one.getClientRects().length)")
    assert len(lines) > 20
    assert set(lines) == {1}


def test_the_dark_mode_is_dark_and_paper_is_light(page: Page) -> None:
    def ground() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    light = ground()
    page.emulate_media(color_scheme="dark")
    assert ground() == "rgb(20, 23, 27)"
    page.emulate_media(color_scheme="dark", media="print")
    assert ground() == light == "rgb(255, 255, 255)"
    expect(page.locator("nav.contents")).to_be_hidden()
    assert page.pdf(format="A4").startswith(b"%PDF")


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_has_no_serious_complaint(scheme: Literal["light", "dark"], page: Page) -> None:
    page.emulate_media(color_scheme=scheme)
    violations = Axe().run(page).response["violations"]
    assert [one["id"] for one in violations if one["impact"] in ("serious", "critical")] == []


def test_no_other_script_or_style_runs(browser: Browser, address: str) -> None:
    page = browser.new_page()
    page.goto(address)
    page.evaluate(
        """() => {
          for (const [name, text] of [["script", "window.owned = 1"], ["style", "body { display: none }"]]) {
            const element = document.createElement(name);
            element.textContent = text;
            document.body.append(element);
          }
        }"""
    )
    assert page.evaluate("window.owned === undefined")
    expect(page.locator("body")).to_be_visible()
    assert page.evaluate("fetch('https://example.org').then(() => 'sent', () => 'refused')") == "refused"
    page.close()
