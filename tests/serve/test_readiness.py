"""Tests of an endpoint that is not ready yet, and of processes that live but do not respond."""

import asyncio
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from retroformer.errors import ServiceError
from serve.api import OpenAI, application
from serve.endpoint import ListenAddress
from serve.guards import LOADING_SECONDS, Guards
from serve.supervisor import HEALTH, Service, supervise
from tests.serve.clock import MovableClock, running_clock
from tests.serve.running import Endpoint, ready_line, start, tiny_config
from tests.support.waiting import becomes_true
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Upper bound for anything here on a loaded machine."""
CHAT: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}


@pytest.mark.slow
def test_an_unresponsive_worker_is_restarted_and_requests_wait_for_it(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "base")
    process = start(tmp_path, config=tiny_config(base))
    assert process.stderr is not None
    endpoint = Endpoint(process, ready_line(process), tmp_path)
    try:
        with httpx.Client(base_url=endpoint.url, timeout=PATIENCE_SECONDS) as client:
            assert client.get(endpoint.url.removesuffix("/v1") + HEALTH).status_code == 200
            stopped = endpoint.pid_of("serve.worker")
            os.kill(stopped, signal.SIGSTOP)
            assert "worker does not answer any more" in process.stderr.readline()
            assert client.post("/chat/completions", json=CHAT).status_code == 200
            assert endpoint.pid_of("serve.worker") != stopped
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)


def test_until_the_models_are_loaded_requests_wait_and_are_then_refused_temporarily() -> None:
    async def statuses() -> list[int]:
        loop, loaded = running_clock(), asyncio.get_running_loop().create_future()
        app = Guards(application(OpenAI(loaded).routes(hand_over=False)), loaded)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            health = await client.get(HEALTH)
            waiting = asyncio.create_task(client.get("/v1/models"))
            await asyncio.sleep(0.1)
            assert not waiting.done()
            loop.advance(LOADING_SECONDS)
            refused = await waiting
            waiting = asyncio.create_task(client.get("/no/such/route"))
            await asyncio.sleep(0.1)
            loaded.set_result(None)
            answers = health, refused, await waiting
        assert [answer.headers.get("retry-after") for answer in answers] == ["5", "5", None]
        assert health.json()["error"]["message"] == "The models are being loaded."
        return [answer.status_code for answer in answers]

    with asyncio.Runner(loop_factory=MovableClock) as runner:
        assert runner.run(statuses()) == [503, 503, 404]


SILENT = """
import http.server, pathlib, sys, threading
from serve.supervisor import read_first_line

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if pathlib.Path("silent").exists():
            threading.Event().wait()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        return

print(len(read_first_line()), sys.argv)
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
SECRET = "s" * 1_000_000
"""More than the buffer of a pipe."""


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Service, int]:
    """Server that responds until a file `silent` exists, and keeps living; and its port. Two silent probes suffice."""
    monkeypatch.setattr("serve.supervisor.SILENT_PROBES", 2)
    monkeypatch.setattr("serve.supervisor.PROBE_PAUSE_SECONDS", 0.2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    (tmp_path / "answering.py").write_text(SILENT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["answering", str(port)]
    log = tmp_path / "clock.log"
    return Service("clock", command, log, dict(os.environ), lambda _: answers(port), first_line=SECRET), port


def answers(port: int) -> bool:
    return ListenAddress("127.0.0.1", port).get(HEALTH, seconds=2)[0] is not None


def test_an_unresponsive_service_is_restarted_and_gets_its_secrets_through_a_pipe(
    clock: tuple[Service, int], caplog: pytest.LogCaptureFixture
) -> None:
    stop, failures = threading.Event(), list[Exception]()
    service, port = clock

    def run() -> None:
        try:
            supervise([service], Path("ready").touch, stop)
        except ServiceError as error:
            failures.append(error)

    supervision = threading.Thread(target=run)
    supervision.start()
    try:
        assert becomes_true(Path("ready").exists)
        Path("silent").touch()
        assert becomes_true(lambda: "The clock does not answer any more" in caplog.text)
        Path("silent").unlink()
        assert becomes_true(lambda: answers(port))
    finally:
        stop.set()
        supervision.join()
    assert failures == []
    assert "killed by SIGKILL" in caplog.text
    logged = Path("clock.log").read_text()
    assert logged.startswith(f"{len(SECRET) + 1} ")
    assert "ssss" not in logged


def test_a_child_that_dies_before_it_reads_its_secrets_does_not_end_the_supervisor(tmp_path: Path) -> None:
    log = tmp_path / "log"
    service = Service("none", ["no_such_module_anywhere"], log, dict(os.environ), lambda _: True, first_line=SECRET)
    service.start()
    assert becomes_true(lambda: not service.alive)
    service.stop(time.monotonic())


def test_no_other_user_may_read_the_log_of_a_service(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run")
    log.chmod(0o644)
    Service("none", [], log, {}, lambda _: True)
    assert (log.stat().st_mode & 0o777, log.read_text()) == (0o600, "")
    before = os.umask(0)
    try:
        Service("none", [], tmp_path / "new", {}, lambda _: True)
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
