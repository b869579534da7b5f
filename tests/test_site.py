"""Tests of the documentation as a site: it is built without a warning, no link is broken, and the notebook runs."""

import ast
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbclient
import nbformat
import pytest

from tests.support.runs import ROOT

NOTEBOOK = ROOT / "docs/tutorial.ipynb"
ADDRESSES = {"a": "href", "img": "src", "link": "href", "script": "src"}


class Links(HTMLParser):
    """Addresses and anchors in a page."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses, self.anchors = list[str](), set[str]()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if address := values.get(ADDRESSES.get(tag, "")):
            self.addresses.append(address)
        self.anchors |= {value for value in (values.get("id"), values.get("name")) if value}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_every_link_of_the_site_leads_to_a_file_and_a_heading_of_it(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) >= 30
    broken = []
    for page, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(address)
            if parts.scheme:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = pages[target].anchors if target in pages else {parts.fragment}
            if not target.exists() or (parts.fragment and parts.fragment not in anchors):
                broken.append(f"{page.relative_to(site)}: {address}")
    assert not broken


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+rel=\"?stylesheet[^>]+href=\"?https?:")
    assert not [page.name for page in site.rglob("*.html") if loaded.search(page.read_text())]


def test_a_linked_source_file_is_a_page_with_its_text(site: Path) -> None:
    words = (ROOT / "retroformer/method/rollout.py").read_text().split('"""')[1].split()
    assert set(words[1:8]) <= set(
        re.sub(r"<[^>]+>", "", (site / "files/retroformer/method/rollout.py.html").read_text()).split()
    )


def test_the_cells_of_the_notebook_are_python() -> None:
    cells = [cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"]
    assert len(cells) >= 5
    for cell in cells:
        ast.parse(cell.source)


@pytest.mark.slow  # It serves and trains a real model.
def test_the_notebook_runs_and_training_opens_more_boxes(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    said = "".join(
        output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    )
    base, trained = (int(re.search(rf"^{name}: (\d+) of 24", said, re.MULTILINE)[1]) for name in ("base", "reflector"))  # type: ignore[index]
    assert base < trained
