"""One gateway for the tests of a module, with a provider that each test scripts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.codes import advise
from tests.support.endpoint import Endpoint
from tests.support.gateway import RunningGateway, gateway, write_gateway_config
from tests.support.raw_server import RawServer, http


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gateway")


@pytest.fixture(scope="module")
def url(folder: Path) -> str:
    return f"sqlite:///{folder}/mine.db"


@pytest.fixture(scope="module")
def provider() -> Iterator[RawServer]:
    with RawServer(lambda request, write: write(http("200 OK", b"{}"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def reflector() -> Iterator[Endpoint]:
    with Endpoint(advise) as opened:
        yield opened


@pytest.fixture(scope="module")
def running(folder: Path, provider: RawServer, reflector: Endpoint) -> Iterator[RunningGateway]:
    pytest.importorskip("aiohttp")
    pytest.importorskip("retroformer.integrations.gateway.service")
    with gateway(write_gateway_config(folder, reflector.url), provider.url) as opened:
        yield opened
