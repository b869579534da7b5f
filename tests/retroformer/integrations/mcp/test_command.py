"""Tests of `retroformer mcp`: a real client asks for advice and reports its outcome, over both transports."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.errors import ConfigError, ServiceError
from retroformer.method.rating import ratings
from retroformer.run.store import Store
from tests.support.endpoint import Endpoint, require_ipv6
from tests.support.vault import advise

pytest.importorskip("mcp")
connection_module = pytest.importorskip("retroformer.integrations.mcp.connection")
adviser_module = pytest.importorskip("retroformer.integrations.mcp.adviser")

FAILURE = {"task": "Open the vault.", "attempt": "I entered 0. It stays shut. A note says 4711."}


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """Return a config whose reflector reads the code from the attempt."""
    with Endpoint(advise) as server:
        text = f"run: mine\nstore: sqlite:///{tmp_path}/mine.db\nenvironment: {{name: agent}}\n"
        text += f"reflector: {{endpoint: {{base_url: '{server.url}', model: r}}}}\n"
        (tmp_path / "mine.yaml").write_text(text)
        yield tmp_path / "mine.yaml"


def improve_once(server: object, folder: Path) -> None:
    """Fail, read the advice, report the success, and check what was stored and what is refused."""
    connection = connection_module.McpConnection(server, 100.0)
    try:
        assert [tool.name for tool in connection.changed_tools()] == ["advise", "outcome"]
        given = json.loads(connection.call("advise", FAILURE).content[0].text)
        assert given["advice"] == "Enter 4711."
        done = connection.call("outcome", {"run": given["run"], "score": 1.0})
        assert (done.isError, done.content[0].text) == (False, "Stored.")
        for name, arguments, words in (
            ("outcome", {"run": "nobody", "score": 1.0}, "There is no story 'nobody'"),
            ("advise", FAILURE | {"score": 1.0}, "ask for advice on a failure"),
        ):
            refused = connection.call(name, arguments)
            assert refused.isError
            assert words in refused.content[0].text
    finally:
        connection.close()
    with closing(Store(f"sqlite:///{folder}/mine.db", "mine")) as store:
        (rated,) = ratings(store, "collect", records=True)
    assert (rated.text, rated.rating) == ("Enter 4711.", 1.0)


def test_an_agent_gets_advice_over_standard_input_and_output(config: Path) -> None:
    command = (sys.executable, "-m", "retroformer", "mcp", str(config))
    improve_once(connection_module.McpServer(command=command), config.parent)


def test_an_agent_gets_advice_over_loopback_http(config: Path) -> None:
    command = [sys.executable, "-m", "retroformer", "mcp", str(config), "--http", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Advice is offered at http://127.0.0.1:")
        try:
            improve_once(connection_module.McpServer(url=line.split()[-1]), config.parent)
        finally:
            process.send_signal(signal.SIGINT)


def test_the_reflector_of_serve_may_be_on_an_ipv6_address(config: Path) -> None:
    require_ipv6()
    with Endpoint(advise, "::1") as server:
        port = server.url.removesuffix("/v1").rpartition(":")[2]
        keys = ["reflector.endpoint.base_url=", "serve.host=::1", f"serve.port={port}"]
        with adviser_module.reflector_of(load(config, keys)) as reflector:
            assert reflector.advise(FAILURE["task"], FAILURE["attempt"]).text == "Enter 4711."


def test_what_cannot_work_is_one_sentence(config: Path) -> None:
    with pytest.raises(ConfigError, match=r"set environment\.name=agent"):
        adviser_module.reflector_of(load(config, ["environment={name: alfworld}"]))
    with pytest.raises(ConfigError, match=r"set reflector\.endpoint\.base_url or serve\.port"):
        adviser_module.reflector_of(load(config, ["reflector.endpoint.base_url=", "serve.port=0"]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServiceError, match=f"Port {port} of 127.0.0.1 cannot be used"):
            adviser_module.serve_advice(load(config), port)
