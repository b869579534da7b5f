"""Names and texts in a report are text: forty payloads in every field of config, arms and advice run nothing."""

import json
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser

from eval.play.verify import VerifiedModel
from eval.report.files import read_report
from eval.view.pages.report import report
from retroformer.config.file import load
from retroformer.files.document import Table
from retroformer.files.text import storable
from tests.eval.view.test_payloads import PAYLOADS, served
from tests.support.evaluations import write_evaluation, write_stages

HARMLESS = ("word", "two words", "word/seed", "a longer sentence of many words " * 5)


def evaluated(folder: Path, texts: tuple[str, ...]) -> Path:
    """Write an evaluation with the texts as names of arms and models, as advice and causes, and in configs."""
    folder.mkdir()
    # The name of a model is that of a folder, too.
    names = [storable(text)[:80] for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        arms = {"no reflection": {"kind": "none"}}
        arms |= {f"trained {name}": {"kind": "model", "model": name} for name in names}
        arms |= {f"placebo {name}": {"kind": "placebo", "of": f"trained {name}"} for name in names[:3]}
        actor = {"kind": "household", "endpoint": {"model": names[0], "base_url": "http://127.0.0.1:1/<b>|`x`"}}
        config = {"run": "riddles", "environment": {"name": "alfworld"}, "loop": {"trials": 2, "actions": 15}}
        text = yaml.safe_dump({**config, "actor": actor, "eval": {"arms": arms}}, sort_keys=False)
        Path("riddles.yaml").write_text(text)
        hostile = {"run": names[0], "lists": names, "sections": {name: {name: name} for name in names}}
        write_stages(load(Path("riddles.yaml")), "sft", **hostile)
        metrics = json.loads(Path("runs/riddles/sft/metrics.json").read_text())
        metrics["inputs"]["optimizer"] = {name: name for name in names}
        metrics["code"] = {"commit": names[0]}
        Path("runs/riddles/sft/metrics.json").write_text(json.dumps(metrics))
        verified = [VerifiedModel(name, "ab" * 32, True, True, name, True) for name in names]
        wins = {f"eval/{name}": number % 8 for number, name in enumerate(arms)}
        path = write_evaluation(text, wins, verified, advised="\n\n".join(texts)[:3000])
    return folder / path


def elements(browser: Browser, url: str) -> set[str]:
    """Open a page on a narrow screen; return the names of its elements with those of their attributes."""
    page, complaints = browser.new_page(viewport={"width": 360, "height": 700}), list[str]()
    page.set_default_timeout(120_000)
    page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("request", lambda request: complaints.append(request.url) if "example.org" in request.url else None)
    page.goto(url)
    page.locator("details").evaluate_all("all => all.forEach(one => { one.open = true; })")
    page.locator("thead button").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    names = "e => e.map(x => x.localName + ' ' + x.getAttributeNames().sort().join(' '))"
    seen = set(page.eval_on_selector_all("body *", names))
    assert not set(page.inner_text("body")) & set("\x1b\x07\x9b\u202e\u2066\u200b\ufeff")
    page.close()
    assert complaints == []
    return seen


@pytest.mark.slow
def test_no_payload_runs_or_breaks_the_report(browser: Browser, tmp_path: Path) -> None:
    seen = dict[tuple[str, str], set[str]]()
    for kind, texts in (("harmless", HARMLESS), ("hostile", PAYLOADS)):
        folder = evaluated(tmp_path / kind, texts)
        seen[kind, "file"] = elements(browser, (folder / "report.html").as_uri())
        with served(folder.parent, tmp_path / f"{kind}.db") as (_, address):
            seen[kind, "site"] = elements(browser, f"{address}/report")
    for place in ("file", "site"):
        assert seen["hostile", place] - seen["harmless", place] == set()


@pytest.mark.slow
def test_every_arm_keeps_its_name_and_its_stories(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "hostile", PAYLOADS)
    assert len(read_report(folder).arms) == len(PAYLOADS) + 4
    with served(folder.parent, tmp_path / "index.db") as (site, _):
        shown = report(site, {}).shown
    page = shown["page"]
    table = next(part for chapter in page.report.chapters for part in chapter.parts if isinstance(part, Table))
    assert all("href" in page.cell(row[0]) for row in table.rows)
    assert table.rows[1][0].words == f"trained {PAYLOADS[0]}"
