"""A real OpenEnv server in a process of its own."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.runs import ROOT
from tests.support.waiting import becomes_true


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="package")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen([sys.executable, "-m", "tests.support.openenv_server", str(port)], cwd=ROOT)
    try:
        becomes_true(lambda: _answers(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
