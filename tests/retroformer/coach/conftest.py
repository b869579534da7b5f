"""A reflector in a program, with its real server and store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import retroformer as rf
from tests.support.codes import advise
from tests.support.endpoint import Endpoint


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(advise) as opened:
        yield opened


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/mine.db"


@pytest.fixture
def coach(server: Endpoint, url: str) -> Iterator[rf.Reflector]:
    with rf.Reflector(server.url, store=url, unadvised=0.0) as opened:
        yield opened
