"""A real OpenEnv server in a process of its own."""

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.runs import ROOT


@pytest.fixture(scope="package")
def url() -> Iterator[str]:
    # The server inherits the socket: nobody else can take its port, and clients wait until it accepts.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, number = listening.getsockname()[1], listening.fileno()
        program = [sys.executable, "-m", "tests.support.openenv_server", str(number)]
        server = subprocess.Popen(program, cwd=ROOT, pass_fds=[number])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()
