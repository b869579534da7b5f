import asyncio
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from retroformer.config.file import load
from retroformer.endpoint.own_server import _pass_warnings_on, provenance, run_own_server
from retroformer.errors import EndpointFailure, ProvenanceError, ServiceError
from retroformer.run.provenance import Provenance, ServedModel
from tests.support.processes import listening_at
from tests.support.runs import ROOT

CONFIG = "run: served\nenvironment: {name: alfworld}\n"
SAID = Provenance(
    models={"base": ServedModel(base_sha256="b", adapter_sha256=None, chat_template_sha256="t")},
    dtype="float32",
    versions={"torch": "2"},
)


@contextmanager
def server_that_answers(status: int, body: str) -> Iterator[str]:
    """Start an HTTP server with this answer to /provenance, and yield its base_url."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answered = status if self.path == "/provenance" else 404
            self.send_response(answered)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def test_provenance_is_read_at_the_same_host_as_the_api() -> None:
    with server_that_answers(200, SAID.model_dump_json()) as url:
        assert asyncio.run(provenance(url)) == SAID


@pytest.mark.parametrize(("status", "body"), [(404, "{}"), (200, json.dumps({"models": 3})), (200, "<html>")])
def test_an_endpoint_without_provenance_is_not_trusted(status: int, body: str) -> None:
    with server_that_answers(status, body) as url, pytest.raises(ProvenanceError, match="/provenance"):
        asyncio.run(provenance(url))


def test_an_endpoint_that_is_down_or_broken_is_a_failure_of_the_infrastructure() -> None:
    with server_that_answers(503, "starting") as url, pytest.raises(EndpointFailure, match="503: starting"):
        asyncio.run(provenance(url))
    with pytest.raises(EndpointFailure, match="cannot be asked"):
        asyncio.run(provenance(url))


def test_a_server_that_cannot_start_reports_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    overrides = [f"serve.adapters={{mine: {tmp_path / 'runs/served/ppo'}}}"]

    async def use() -> None:
        async with run_own_server(config, overrides, load(config, overrides)):
            raise AssertionError("it started without its adapter")

    with pytest.raises(ServiceError, match="expected a folder with adapter_model"):
        asyncio.run(use())


def test_a_line_of_any_length_does_not_stop_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    words = "import sys; sys.stderr.write('x' * 200_000 + '\\n' * 200_000 + 'WARNING: last'); print('done')"

    async def output() -> list[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", words, **pipes)
        assert process.stdout
        assert process.stderr
        last = deque[str](maxlen=2)
        await asyncio.wait_for(_pass_warnings_on(process.stderr, last), 60)
        return [(await process.stdout.readline()).decode().strip(), *last]

    assert asyncio.run(output()) == ["done", "", "WARNING: last"]
    assert capfd.readouterr().err == "WARNING: last\n"


def test_an_experiment_is_served_while_its_stage_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)

    async def use() -> str:
        async with run_own_server(config, ["serve.host=0.0.0.0"], load(config)) as url:
            assert listening_at(int(url.removesuffix("/v1").rpartition(":")[2])) == {"127.0.0.1"}
            assert set((await provenance(url)).models) >= {"base"}
            return url

    url = asyncio.run(use())
    with pytest.raises(EndpointFailure):
        asyncio.run(provenance(url))
