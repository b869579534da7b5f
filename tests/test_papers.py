"""Every page of the papers' experiments runs: on answers from a real endpoint here, on the embedded model when slow."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from collect.rate import rate_reflections
from eval.compare import compare_arms
from retroformer.assembly import Page
from retroformer.config_file import load
from tests.support.data import require_data
from tests.support.endpoint import Endpoint
from tests.support.runs import ROOT

PAGES = sorted((ROOT / "configs" / "paper").glob("*.yaml"))
TASKS = 3
RUST = shutil.which("rustc") or shutil.which("rustc", path=str(Path.home() / ".cargo" / "bin"))
SMALL = (
    *("loop.trials=2", "loop.environment_processes=1", f"eval.tasks={TASKS}", f"collect.tasks={TASKS}"),
    *("train.base_model=embedded", "train.quantization=none"),
)
PROBLEMS = [
    {
        "id": f"add-{number}",
        "prompt": f'def add_{number}(n):\n    """The sum of n and {number}."""\n',
        "entry_point": f"add_{number}",
        "tests": [f"assert add_{number}(1) == {number + 1}"],
    }
    for number in range(TASKS)
]


def data_of(page: Path, folder: Path) -> Path:
    """Where the data of a page are; a file of one's own is made on the spot. Skips where they are not."""
    section = yaml.safe_load(page.read_text())["environment"]
    if section["split"].endswith(".jsonl"):
        (folder / section["split"]).write_text("".join(f"{json.dumps(one)}\n" for one in PROBLEMS))
        return folder
    found = require_data(str(section["name"]))
    if section["split"].endswith("rust") and RUST is None:
        pytest.skip("no Rust compiler: install rustc")
    return found


def opened(page: Path, folder: Path, *overrides: str) -> Page:
    words = (f"environment.data={data_of(page, folder)}", *SMALL, *overrides)
    return Page(page, words, load(page, words))


def endpoints_at(page: Path, url: str) -> list[str]:
    """Overrides that send every model of the page to this address."""
    text = yaml.safe_load(page.read_text())
    named = ["actor", "reflector"] + ["evaluator"] * ("endpoint" in text.get("evaluator", {}))
    actors = [f"eval.actors.{name}" for name in text.get("eval", {}).get("actors", {})]
    return [f"{section}.endpoint.base_url={url}" for section in named] + [f"{name}.base_url={url}" for name in actors]


def trains(page: Path) -> bool:
    return "train" in yaml.safe_load(page.read_text())


def play(page: Page, *, collects: bool) -> str:
    """Run the page's first stage; what it said, or the report it wrote."""
    if collects:
        return asyncio.run(rate_reflections(page))
    asyncio.run(compare_arms(page))
    return (page.experiment.folder / "eval" / "report.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETROFORMER_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_papers_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Endpoint() as server:
        page = opened(path, tmp_path, *endpoints_at(path, server.url))
        said = play(page, collects=trains(path))
        assert server.requests
    if trains(path):
        assert f"rollouts  {TASKS}" in said or "rated" in said
    else:
        arms = page.experiment.eval.arms
        assert all(f"| {arm} |" in said for arm in arms)


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_the_papers_runs_on_the_embedded_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = yaml.safe_load(path.read_text())
    small = {"model": "base"}
    for section in ("actor", "reflector", "evaluator"):
        if "endpoint" in text.get(section, {}):
            text[section]["endpoint"] = small
    for actor in text["eval"].get("actors", {}):
        text["eval"]["actors"][actor] = small
    for arm in text["eval"]["arms"].values():
        if arm["kind"] == "model":
            arm["model"] = "base"
    text["serve"] = {"port": 0}
    embedded = tmp_path / "embedded.yaml"
    embedded.write_text(yaml.safe_dump(text, sort_keys=False))
    # A model this small ends few attempts by itself, and every action costs seconds.
    short = ("actor.max_new_tokens=40", "reflector.max_new_tokens=40", "loop.actions=5")
    said = play(opened(embedded, tmp_path, *short), collects=trains(path))
    assert "rated" in said or "| arm |" in said or "| actor |" in said
