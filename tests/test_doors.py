"""Tests that every HTTP server has the same guard and every connection the same client; they find each new one."""

import ast
import asyncio
import errno
import functools
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

import eval.view.server
from eval.view.server import SiteServer, open_site
from retroformer.coach.stories.runs import open_runs
from retroformer.config.file import load
from retroformer.endpoint.request_guard import BODY_SECONDS, CONNECTIONS, FORM, HEAD_SECONDS, listen
from retroformer.endpoint.secrets.url import SecretUrl
from retroformer.endpoint.server import Guard, server_of
from retroformer.integrations.gateway import service
from retroformer.integrations.mcp import adviser
from retroformer.integrations.otlp import listener
from tests.eval.view.serving import serving
from tests.serve.clock import MovableClock, running_clock
from tests.support.attacks import Target, may_be_read_by_pages, served_attacks, statuses
from tests.support.gateway import environment, gateway, write_gateway_config
from tests.support.processes import listening_at
from tests.support.raw_server import RawServer, http
from tests.support.runs import open_config
from tests.support.stories import write_run
from tests.support.waiting import becomes_true

ROOT = Path(__file__).parents[1]
SOURCE = [path for room in ("retroformer", "collect", "train", "serve", "eval") for path in (ROOT / room).rglob("*.py")]
GUARDED = {
    "eval/view/server.py": "view",
    "retroformer/integrations/mcp/adviser.py": "mcp",
    "retroformer/integrations/otlp/listener.py": "listen",
    "serve/worker.py": "tests/serve/test_guards.py",
}
"""Modules that serve an application, and where it is attacked."""


@functools.cache
def dotted_names(path: Path) -> frozenset[str]:
    """Return the dotted names in the code of a module, not in its comments or texts."""
    return frozenset(name for node in ast.walk(ast.parse(path.read_text())) for name in names_of(node))


def names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [ast.unparse(node)] if isinstance(node, ast.Attribute | ast.Name) else []


def having(*words: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in SOURCE if not dotted_names(path).isdisjoint(words)}


def test_every_server_passes_the_guard() -> None:
    assert having("uvicorn", "hypercorn", "granian") == {"retroformer/endpoint/server.py"}
    assert having("server_of") - {"retroformer/endpoint/server.py"} == set(GUARDED)
    assert having("web.Application", "web.AppRunner", "web.run_app", "web.Server") == {
        "retroformer/integrations/gateway/routes.py",
        "retroformer/integrations/gateway/service.py",
    }
    assert "middlewares=[guard]" in (ROOT / "retroformer/integrations/gateway/routes.py").read_text()
    other = ("http.server", "socketserver", "wsgiref.simple_server", "asyncio.start_server", "websockets.sync.server")
    assert not having(*other)


@contextmanager
def started(folder: Path, *words: str) -> Iterator[str]:
    """Run a command that prints the address that it serves; yield host and port."""
    command = [sys.executable, "-m", "retroformer", *words]
    with subprocess.Popen(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().partition("http://")[2].partition("/")[0]
        finally:
            process.terminate()


@contextmanager
def target(name: str, folder: Path) -> Iterator[Target]:
    """Start a server, and yield a request that it serves."""
    if name == "gateway":
        with gateway(write_gateway_config(folder, "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1") as running:
            yield Target(running.host, "/runs/mine/score", b'{"invalid": true}')
    elif name == "view":
        (folder / "runs/doors").mkdir(parents=True)
        write_run(folder / "runs/doors")
        with (
            open_runs(folder / "runs/doors") as runs,
            open_site(runs) as site,
            serving(SiteServer(site, 0)) as address,
        ):
            origin = f"Origin: {address}\r\n"
            yield Target(address.removeprefix("http://"), "/mark", b"verdict=right", FORM, origin)
    elif name == "listen":
        (folder / "mine.yaml").write_text("run: mine\nenvironment: {name: agent}\n")
        with started(folder, "collect", "listen", "mine.yaml", "--port", "0") as host:
            yield Target(host, "/v1/traces", b'{"resourceSpans": []}')
    else:
        write_gateway_config(folder, "http://127.0.0.1:9/v1")
        with started(folder, "mcp", "gateway.yaml", "--http", "0") as host:
            accept = "Accept: application/json, text/event-stream\r\n"
            yield Target(host, "/mcp", b'{"jsonrpc": "2.0", "method": "ping", "id": 1}', headers=accept)


@pytest.mark.parametrize("name", ["gateway", "view", "listen", "mcp"])
def test_a_web_page_of_another_site_and_a_malformed_request_are_refused(name: str, tmp_path: Path) -> None:
    with target(name, tmp_path) as attacked:
        assert served_attacks(attacked) == {}
        assert not may_be_read_by_pages(attacked)
        port = attacked.host.partition(":")[2]
        assert listening_at(int(port)) == {"127.0.0.1"}
        names = {attacked.host, f"LocalHost:{port}", f"[::1]:{port}"} if name != "view" else {attacked.host}
        for host in names:
            sent = attacked.request(f"Origin: http://{host}", "Sec-Fetch-Site: same-origin", host=host)
            (status,) = statuses(attacked.host, sent)
            assert status not in (403, 415, 421)


def application(name: str, folder: Path, port: int, stack: ExitStack) -> Guard:
    """Return an application as its command serves it on this port."""
    if name == "view":
        write_run(folder)
        return eval.view.server.application(
            stack.enter_context(open_site(stack.enter_context(open_runs(folder)))), port
        )
    if name == "listen":
        return listener.app(folder)
    if name == "mcp":
        config = load(write_gateway_config(folder, "http://127.0.0.1:9/v1"), [])
        return adviser.application(adviser.adviser(stack.enter_context(adviser.reflector_of(config))))
    from serve.api import OpenAI
    from serve.api import application as api
    from serve.guards import Guards

    loaded = asyncio.get_running_loop().create_future()
    loaded.set_result(None)
    return Guards(api(OpenAI(loaded).routes(hand_over=True)), loaded)


@asynccontextmanager
async def served(name: str, folder: Path) -> AsyncIterator[tuple[socket.socket, str]]:
    """Serve an application in this event loop; yield a connection to it, and the head of a request with a body."""
    with ExitStack() as stack, socket.socket() as client:
        listening = stack.enter_context(listen(0))
        address = listening.getsockname()
        if name == "gateway":
            listening.close()
            config = open_config(write_gateway_config(folder, "http://127.0.0.1:9/v1"))
            serving = asyncio.create_task(service._serve(config, SecretUrl("http://127.0.0.1:9/v1"), address[1], 0.0))
        else:
            server = server_of(application(name, folder, address[1], stack))
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            await running_clock().wait_until(lambda: server.started)
        client.setblocking(False)
        await running_clock().wait_until(lambda: client.connect_ex(address) in (0, errno.EISCONN))
        host = f"127.0.0.1:{address[1]}"
        kind = f"Origin: http://{host}\r\nContent-Type: {FORM if name == 'view' else 'application/json'}"
        yield client, f"POST {ROUTES[name]} HTTP/1.1\r\nHost: {host}\r\n{kind}\r\n"
        if name == "gateway":
            serving.cancel()
        else:
            server.should_exit = server.force_exit = True
        await asyncio.wait({serving})


ROUTES = {
    "gateway": "/runs/mine/score",
    "view": "/mark",
    "listen": "/v1/traces",
    "mcp": "/mcp",
    "serve": "/v1/completions",
}
SLOW: dict[str, tuple[str, bytes, float]] = {
    "silence": ("", b"", HEAD_SECONDS),
    "a head that drips": ("{head}X: ", b"x", HEAD_SECONDS),
    "a body that drips": ("{head}Content-Length: 90000\r\n\r\n", b" ", BODY_SECONDS),
    "chunks that drip": ("{head}Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", BODY_SECONDS),
    "a chunk that drips": ("{head}Transfer-Encoding: chunked\r\n\r\nffff\r\n", b" ", BODY_SECONDS),
}
"""Beginning of a request, what drips afterwards, and the time that it has."""


def in_moved_time(attack: Callable[[MovableClock, socket.socket, str], Awaitable[None]], folder: Path) -> None:
    folders = {name: folder / name for name in ROUTES}
    for each in folders.values():
        each.mkdir()

    async def run() -> None:
        for name in ROUTES:
            async with served(name, folders[name]) as (client, head):
                await attack(running_clock(), client, head)

    with asyncio.Runner(loop_factory=MovableClock) as runner:
        runner.run(run())


async def rest(loop: MovableClock, client: socket.socket) -> bytes:
    """Return what the server sends until it closes the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := await asyncio.wait_for(loop.sock_recv(client, 65536), 30):
            received += part
            loop.advance(60)  # The gateway's server reads on for ten seconds after an answer.
    return received


@pytest.mark.parametrize("attack", SLOW)
def test_a_slow_request_is_cut_off_by_every_server(attack: str, tmp_path: Path) -> None:
    begin, drip, seconds = SLOW[attack]

    async def slowly(loop: MovableClock, client: socket.socket, head: str) -> None:
        await loop.sock_sendall(client, begin.format(head=head).encode())
        for _ in range(3):
            await asyncio.sleep(0.1)
            loop.advance(0.3 * seconds)
            await loop.sock_sendall(client, drip)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.sock_recv(client, 1), 0.2)
        loop.advance(0.3 * seconds)
        received = await rest(loop, client)
        assert not received or b" 408 " in received, head

    in_moved_time(slowly, tmp_path)


def test_chunks_without_end_are_cut_off_by_every_server(tmp_path: Path) -> None:
    async def endlessly(loop: MovableClock, client: socket.socket, head: str) -> None:
        await loop.sock_sendall(client, f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(1100):
                await loop.sock_sendall(client, b"10000\r\n" + bytes(65536) + b"\r\n")
        assert b" 413 " in await loop.sock_recv(client, 1000)

    in_moved_time(endlessly, tmp_path)


@contextmanager
def crowd(host: str, begin: Callable[[int], bytes], size: int = CONNECTIONS + 100) -> Iterator[None]:
    """Hold more connections than a server serves, each with the beginning of a request."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * CONNECTIONS, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for number in range(size):
            connection = socket.create_connection(("127.0.0.1", int(host.partition(":")[2])))
            stack.enter_context(connection).sendall(begin(number))
        yield


needs_many_files = pytest.mark.skipif(
    0 <= resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * CONNECTIONS,
    reason="this machine allows too few open files",
)


@needs_many_files
@pytest.mark.parametrize("name", ["gateway", "listen"])
def test_silent_connections_keep_nobody_out_at_the_usual_limit_of_open_files(name: str, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        with (
            target(name, tmp_path) as attacked,
            crowd(attacked.host, lambda number: b"GET / HTTP/1.1\r\nX: " * (number % 2)),
        ):
            assert statuses(attacked.host, attacked.request()) in ([200], [409])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@needs_many_files
def test_a_gateway_whose_connections_are_all_in_use_refuses_further_ones_until_some_end(tmp_path: Path) -> None:
    with gateway(write_gateway_config(tmp_path, "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1") as running:
        slow = Target(running.host, "/runs/mine/score", b"{}").request()[:-1]
        health = f"GET /health HTTP/1.1\r\nHost: {running.host}\r\nConnection: close\r\n\r\n".encode()

        def is_served() -> bool:
            with suppress(ConnectionResetError):  # The answer may be lost with a request that was not read.
                return statuses(running.host, health) == [200]
            return False

        def is_full() -> bool:
            # Some were closed before their heads had been read, as the next one came too soon.
            more.enter_context(crowd(running.host, lambda _: slow, 1))
            time.sleep(0.05)
            return not is_served()

        with crowd(running.host, lambda _: slow), ExitStack() as more:
            assert becomes_true(is_full)
        assert becomes_true(is_served)
        running.process.terminate()
        assert running.process.communicate()[1] == ""


def test_an_mcp_client_leaves_no_session_in_memory(tmp_path: Path) -> None:
    with target("mcp", tmp_path) as attacked:
        about = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "mine", "version": "1"}}
        asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
        headers = {"Accept": "application/json, text/event-stream"}
        answer = httpx.post(f"http://{attacked.host}/mcp", json=asked, headers=headers)
        assert (answer.status_code, "mcp-session-id" in answer.headers) == (200, False)


def test_an_upgrade_to_a_websocket_is_not_made(tmp_path: Path) -> None:
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAA"
    for name in ("gateway", "listen"):
        (tmp_path / name).mkdir()
        with target(name, tmp_path / name) as attacked:
            head = f"GET {attacked.path} HTTP/1.1\r\nHost: {attacked.host}\r\n{upgrade}\r\nConnection: close\r\n\r\n"
            (status,) = statuses(attacked.host, head.encode())
            assert status in (400, 404, 405)


KEYED = (
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer my-own-%s\r\n%s\r\n\r\n",
    b"GET /v1/\x00 HTTP/1.1\r\nX-Api-Key: my-own-%s\r\n%s\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nSubscription Key: my-own-%s\r\n%s\r\n\r\n",
)


def test_no_key_of_a_malformed_request_is_logged(tmp_path: Path) -> None:
    with gateway(write_gateway_config(tmp_path, "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1") as running:
        for number, fault in enumerate(
            (b"Bad Header: x", b"Content-Length: x", b": y", b"X: \x00", b"Bearer my-own-3")
        ):
            for form in KEYED:
                statuses(running.host, form % (b"%d" % number, fault))
        running.process.terminate()
        printed = running.process.communicate()
    assert "my-own" not in "".join(printed)


def test_a_call_whose_messages_cannot_be_read_is_forwarded(tmp_path: Path) -> None:
    bodies = [
        {"messages": [{"role": {"a": 1}}]},
        {"messages": [{"role": "user", "content": {"a": [1]}}, 7, None]},
        {"messages": [{"role": "assistant", "tool_calls": [{"function": [1]}, 3]}]},
        {"messages": [{"role": "tool", "content": [[[]], {"type": {}}], "tool_call_id": []}]},
    ]
    config = write_gateway_config(tmp_path, "http://127.0.0.1:9/v1")
    answer = http("200 OK", b'{"choices": [{"message": [[]]}]}')
    with RawServer(lambda _, write: write(answer)) as provider, gateway(config, provider.url) as running:
        calls = [httpx.post(f"{running.of_run('odd')}/chat/completions", json=body) for body in bodies]
        assert [call.status_code for call in calls] == [200] * len(bodies)
        assert len(provider.requests) == len(bodies)


@pytest.mark.parametrize("name", ["a" * 501, "%ff", "a%00b", "%ed%a0%80"])
def test_a_name_of_a_run_that_cannot_be_stored_is_refused_and_not_changed(name: str, tmp_path: Path) -> None:
    with gateway(write_gateway_config(tmp_path, "http://127.0.0.1:9/v1"), "http://127.0.0.1:9/v1") as running:
        request = f"POST /runs/{name}/score HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        body = 'Content-Type: application/json\r\nContent-Length: 17\r\n\r\n{"invalid": true}'
        assert statuses(running.host, (request + body).encode()) == [400]
        named = {"X-Retroformer-Run": "mine", "X-Retroformer-Task": name}
        asked = {"messages": [{"role": "user", "content": "Hi."}]}
        answer = httpx.post(f"http://{running.host}/v1/chat/completions", json=asked, headers=named)
        assert answer.status_code == 400
        assert "The name of the task cannot be stored" in answer.json()["error"]["message"]


def test_a_gateway_without_its_packages_is_one_sentence(tmp_path: Path) -> None:
    words = "import sys; sys.modules['uvloop'] = None; "
    words += (
        "from retroformer.__main__ import console; sys.argv = ['retroformer', 'gateway', 'gateway.yaml']; console()"
    )
    write_gateway_config(tmp_path, "http://127.0.0.1:9/v1")
    done = subprocess.run(
        [sys.executable, "-c", words], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "uvloop is not installed: run `pip install 'retroformer[gateway]'`.\n"


CLIENTS = {
    "AsyncClient",
    "aiohttp.ClientSession",
    "AsyncOpenAI",
    "HTTPConnection",
    "HTTPSConnection",
    "PoolManager",
    "urlopen",
}
CLIENTS |= {"httpx.Client", "openai.OpenAI", "requests.Session", "open_connection", "create_connection"}
CLIENTS |= {f"{library}.{call}" for library in ("httpx", "requests") for call in ("get", "post", "request", "stream")}


def opens_connections(path: Path) -> bool:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    called = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
    bases = {ast.unparse(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}
    last = {name.rpartition(".")[2] for name in called}
    return bool((called | last) & CLIENTS) or any("HttpxClient" in base for base in bases)


def test_every_client_is_the_same() -> None:
    found = {str(path.relative_to(ROOT)) for path in SOURCE if opens_connections(path)}
    assert found == {
        "retroformer/endpoint/http_client.py",
        "retroformer/integrations/gateway/upstream.py",
    }
    assert having("websockets.sync.client") == {"retroformer/integrations/openenv/server.py"}
    for path in ("endpoint/retries.py", "integrations/gateway/upstream.py", "integrations/openenv/server.py"):
        assert "from retroformer.endpoint.http_client import" in (ROOT / "retroformer" / path).read_text()
