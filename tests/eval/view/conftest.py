"""A site of one run, with its index up to date, and a client that asks it as a browser would."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from starlette.testclient import TestClient

from eval.view.index import Index
from eval.view.server import SiteServer, application
from eval.view.site import Site
from retroformer.coach.stories.runs import open_runs
from tests.eval.view.serving import serving
from tests.support.browser import running_browser
from tests.support.stories import write_run

PORT = 8765


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "doors"
    folder.mkdir(parents=True)
    write_run(folder)
    return folder


@pytest.fixture
def site(run_folder: Path, tmp_path: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        sources = stack.enter_context(open_runs(run_folder))
        index = Index(sources, tmp_path / "index.db")
        index.update()
        yield Site(sources, index)


@pytest.fixture
def client(site: Site) -> Iterator[TestClient]:
    with TestClient(application(site, PORT), base_url=f"http://127.0.0.1:{PORT}") as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a file: as long as it runs, its driver's event loop is the thread's, and no other can start."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    """Address of the site, served as `retroformer view` serves it."""
    with serving(SiteServer(site, 0)) as address:
        yield address
