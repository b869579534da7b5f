"""Tests of an endpoint that is not ready yet, and of one whose worker lives but does not respond."""

import json
import os
import signal
import socket
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from retroformer.errors import ServiceError
from serve.probe import ServerAddress
from serve.supervisor import Service, supervise
from tests.serve.running import Endpoint, start
from tests.support.waiting import becomes_true
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Upper bound for anything here on a loaded machine."""
CHAT: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}


def has_worker(endpoint: Endpoint) -> bool:
    try:
        return bool(endpoint.pid_of("serve.worker"))
    except AssertionError:
        return False


@pytest.mark.slow
def test_health_reports_a_starting_or_unresponsive_worker_and_an_unresponsive_one_is_restarted(
    tmp_path: Path,
) -> None:
    base = save_tiny_model(tmp_path / "base")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = f"run: tiny\nenvironment: {{name: alfworld}}\ntrain: {{base_model: {base}}}\nserve: {{port: {port}}}\n"
    process = start(tmp_path, config=config)
    assert process.stdout is not None
    assert process.stderr is not None
    root = f"http://127.0.0.1:{port}"
    endpoint = Endpoint(process, f" at {root}/v1", tmp_path)
    try:
        assert becomes_true(lambda: has_worker(endpoint))
        stopped = endpoint.pid_of("serve.worker")
        os.kill(stopped, signal.SIGSTOP)  # While the worker is stopped, the endpoint cannot become ready.
        with httpx.Client(base_url=root, timeout=PATIENCE_SECONDS) as client, ExitStack() as exits:
            assert becomes_true(lambda: listens(port))
            for answer in (
                client.get("/health"),
                client.get("/v1/models"),
                client.get("/provenance"),
                client.post("/v1/chat/completions", json=CHAT),
                client.post("/v1/completions", json=CHAT),
                client.post("/api/v1/chat/completions", json=CHAT),
            ):
                assert (answer.status_code, int(answer.headers["retry-after"]) > 0) == (503, True)
            assert client.get("/health").json()["message"] == "The models are being loaded."
            os.kill(stopped, signal.SIGCONT)
            assert process.stdout.readline().startswith("Serving base")
            assert client.get("/health").status_code == 200
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200

            # Minutes of work: 128 answers in sequence.
            body = {"model": "base", "prompt": "One,", "max_tokens": 400, "n": 128, "stream": True}
            stream = exits.enter_context(client.stream("POST", "/v1/completions", json=body))
            pieces = stream.iter_lines()
            assert "choices" in next(pieces)
            os.kill(stopped, signal.SIGSTOP)
            assert becomes_true(lambda: client.get("/health").status_code == 503)
            # If the worker is killed, the client must retry requests that wait for it.
            lost = client.post("/v1/chat/completions", json=CHAT)
            assert (lost.status_code, "retry-after" in lost.headers) in ((503, True), (200, False))
            assert "worker does not answer any more" in process.stderr.readline()
            assert becomes_true(lambda: client.get("/health").status_code == 200)
            assert client.post("/v1/chat/completions", json=CHAT).status_code == 200
            assert endpoint.pid_of("serve.worker") != stopped
            *_, failure, done = filter(None, pieces)
            assert ("connection to the worker was lost" in json.loads(failure[6:])["error"]["message"], done) == (
                True,
                "data: [DONE]",
            )
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


SILENT = """
import http.server, pathlib, sys, threading

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if pathlib.Path("silent").exists():
            threading.Event().wait()
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        return

http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Service, ServerAddress]:
    """Server that responds until a file `silent` exists, and keeps living."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    (tmp_path / "answering.py").write_text(SILENT)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ServerAddress("127.0.0.1", free.getsockname()[1])
    return (
        Service(
            "clock",
            ["answering", str(address.port)],
            tmp_path / "clock.log",
            dict(os.environ),
            answers=lambda: address.status("/health", timeout_seconds=2) == 200,
        ),
        address,
    )


def run_until(stop: threading.Event, service: Service, address: ServerAddress, failures: list[Exception]) -> None:
    try:
        supervise([service], lambda: address.status("/health") == 200, Path("ready").touch, stop, 0.05)
    except ServiceError as error:
        failures.append(error)


def test_an_unresponsive_service_is_restarted(
    service: tuple[Service, ServerAddress], caplog: pytest.LogCaptureFixture
) -> None:
    stop, failures = threading.Event(), list[Exception]()
    supervision = threading.Thread(target=run_until, args=(stop, *service, failures))
    supervision.start()
    try:
        assert becomes_true(Path("ready").exists)
        Path("silent").touch()
        assert becomes_true(lambda: "The clock does not answer any more" in caplog.text)
        Path("silent").unlink()
        assert becomes_true(lambda: service[1].status("/health") == 200)
    finally:
        stop.set()
        supervision.join()
    assert failures == []
    assert "killed by SIGKILL" in caplog.text


def test_services_receive_their_secrets_through_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    (tmp_path / "curious.py").write_text(
        "import sys\nfrom serve.private import read_private\n"
        "print(len(read_private(int(sys.argv[-1].partition('=')[2])).worker_key), sys.argv)"
    )
    secret = "s" * 1_000_000  # More than the buffer of a pipe.
    private = json.dumps({"worker_key": secret, "marker": "m"})
    service = Service("curious", ["curious"], tmp_path / "log", dict(os.environ), private=private)
    service.start()
    assert becomes_true(lambda: not service.alive)
    service.stop(time.monotonic())
    logged = (tmp_path / "log").read_text()
    assert logged.startswith("1000000 ")
    assert "ssss" not in logged


def test_a_child_that_dies_before_it_reads_its_secrets_does_not_end_the_supervisor(tmp_path: Path) -> None:
    service = Service("none", ["no_such_module_anywhere"], tmp_path / "log", dict(os.environ), private="s" * 1_000_000)
    service.start()
    assert becomes_true(lambda: not service.alive)
    service.stop(time.monotonic())


def test_no_other_user_may_read_the_log_of_a_service(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run")
    log.chmod(0o644)
    Service("none", [], log, {})
    assert (log.stat().st_mode & 0o777, log.read_text()) == (0o600, "")
    before = os.umask(0)
    try:
        Service("none", [], tmp_path / "new", {})
    finally:
        os.umask(before)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600
