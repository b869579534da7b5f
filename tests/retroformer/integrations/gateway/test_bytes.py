"""Tests that the gateway forwards a recorded conversation, and everything else, byte for byte."""

import gzip
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tests.support.attacks import statuses
from tests.support.gateway import RunningGateway, gateway, write_gateway_config
from tests.support.raw_server import RawServer, Request, Write
from tests.support.raw_server import http as response
from tests.support.vault_provider import KEY, chunk, chunked, head, play, sse, tool_call_events
from tests.support.waiting import becomes_true

# Spaces, escapes, the order of keys and unknown fields are the agent's own.
ASK = (
    b'{ "stream":true,"model" : "small",  "messages":'
    b'[{"role":"user","content":"\\u00d6ffne \xf0\x9f\x94\x92 den Tresor"}], "x": 1.0}'
)
GO_ON = json.dumps(
    {
        "model": "small",
        "messages": [
            {"role": "user", "content": "Öffne 🔒 den Tresor"},
            {"role": "assistant", "tool_calls": [{"id": "call-1", "function": {"name": "enter", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "call-1", "content": "It stays shut."},
        ],
    },
    ensure_ascii=False,
).encode()
PLAIN = json.dumps(
    {
        "id": "2",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Ünsure.", "reasoning_content": "Hm."}}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
).encode()
JSON = {"Content-Type": "application/json"}
OF_CONNECTION = {"connection", "transfer-encoding", "date", "server", "keep-alive"}


class Seen(NamedTuple):
    """An exchange as its two ends see it."""

    request: tuple[str, bytes, dict[str, str]]
    status: tuple[int, str]
    headers: list[tuple[str, str]]
    body: bytes


def exchange(
    provider: RawServer, host: str, method: str, path: str, body: bytes | None, headers: dict[str, str]
) -> Seen:
    """Send one request to the provider or to a gateway before it."""
    provider.requests.clear()
    connection = http.client.HTTPConnection(host, timeout=60)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    (received,) = provider.requests
    sent = {name: value for name, value in received.headers.items() if name not in {"host", *OF_CONNECTION}}
    shown = [(name.lower(), value) for name, value in answer.getheaders() if name.lower() not in OF_CONNECTION]
    return Seen((received.path, received.body, sent), (answer.status, answer.reason), shown, content)


@pytest.fixture(autouse=True)
def _no_requests(provider: RawServer) -> Iterator[None]:
    yield
    provider.requests.clear()


def streamed(data: bytes, *headers: str, size: int = 37) -> list[bytes]:
    return [head("text/event-stream", *headers), *chunked(data, size)]


CONVERSATION: list[tuple[str, bytes, list[bytes]]] = [
    ("a stream with tool calls, cut anywhere", ASK, streamed(sse(tool_call_events("0000"), "\r\n"))),
    ("a compressed stream", ASK, streamed(gzip.compress(sse(tool_call_events("0000"))), "content-encoding: gzip")),
    ("a plain answer", GO_ON, [response("200 OK", PLAIN, "x-request-id: 1", "set-cookie: a=1", "set-cookie: b=2")]),
    ("garbage in a stream", ASK, streamed(b"data: {half\n\nevent: ping\n: comment\n\ndata: [DONE]\n\n\xff\xfe")),
    ("no JSON", ASK, [response("200 OK", b"<html>")]),
    ("a refusal", ASK, [response("429 Slow Down", b'{"error": {"message": "slow down"}}', "retry-after: 7")]),
    ("a body that is no JSON", b"\x00{no json", [response("400 Bad Request", b"{}")]),
    ("an empty answer", ASK, [b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n"]),
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/runs/bytes/v1/chat/completions"])
@pytest.mark.parametrize(
    ("body", "pieces"), [entry[1:] for entry in CONVERSATION], ids=[entry[0] for entry in CONVERSATION]
)
def test_a_recorded_conversation_passes_byte_for_byte(
    running: RunningGateway, provider: RawServer, path: str, body: bytes, pieces: list[bytes]
) -> None:
    def answer(_: Request, write: Write) -> None:
        for piece in pieces:
            write(piece)

    provider.answer = answer
    headers = {
        "Authorization": f"Bearer {KEY}",
        "Content-Type": "application/json",
        "Accept-Encoding": "gzip, deflate",
        "OpenAI-Organization": "mine",
        "X-Stainless-Lang": "python",
    }
    direct = exchange(provider, provider.host, "POST", "/v1/chat/completions", body, headers)
    forwarded = exchange(provider, running.host, "POST", path, body, headers)
    assert forwarded == direct
    assert direct.request[1] == body
    assert direct.request[2]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/models?after=a%2Fb&x=%20", None),
        ("GET", "/v1/files/a%2Fb%20c/content", None),
        ("POST", "/v1/responses", ASK),
        ("POST", "/v1/files", bytes(range(256)) * 5000),
        ("GET", "/v1/chat/completions?limit=1", None),
    ],
)
def test_every_other_request_passes_byte_for_byte(
    running: RunningGateway, provider: RawServer, method: str, path: str, body: bytes | None
) -> None:
    provider.answer = lambda request, write: write(response("200 OK", request.body[::-1], "location: /elsewhere"))
    direct = exchange(provider, provider.host, method, path, body, {})
    for prefix in ("", "/runs/other"):
        assert exchange(provider, running.host, method, prefix + path, body, {}) == direct


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/runs/packed/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_compressed_request_passes_byte_for_byte(
    running: RunningGateway, provider: RawServer, path: str, encoding: str
) -> None:
    provider.answer = lambda _, write: write(response("200 OK", PLAIN))
    packed, headers = gzip.compress(ASK), {"Content-Encoding": encoding, "Accept-Encoding": "identity"} | JSON
    direct = exchange(provider, provider.host, "POST", path.removeprefix("/runs/packed"), packed, headers)
    assert exchange(provider, running.host, "POST", path, packed, headers) == direct
    assert direct.request[1] == packed


def test_a_compressed_request_is_recorded_and_gets_advice(running: RunningGateway, provider: RawServer) -> None:
    provider.answer = lambda _, write: write(response("200 OK", PLAIN))
    headers = {"Content-Encoding": "gzip", "Accept-Encoding": "identity"} | JSON
    for _ in range(2):
        packed = gzip.compress(ASK)
        sent = exchange(provider, running.host, "POST", "/runs/zipped/v1/chat/completions", packed, headers).request
        scored = httpx.post(f"http://{running.host}/runs/zipped/score", json={"score": 0}, timeout=60)
        assert scored.json()["advice"].startswith("Look around.")
    assert "content-encoding" not in sent[2]
    first, second = json.loads(sent[1])["messages"]
    assert first["content"].endswith("- Look around.")
    assert second == json.loads(ASK)["messages"][0]


def test_a_long_key_and_a_long_query_pass(running: RunningGateway, provider: RawServer) -> None:
    provider.answer = lambda _, write: write(response("200 OK", b"{}"))
    path, headers = f"/v1/models?after={'a' * 20_000}", {"Authorization": f"Bearer {'k' * 20_000}"}
    direct = exchange(provider, provider.host, "GET", path, None, headers)
    assert exchange(provider, running.host, "GET", path, None, headers) == direct


def test_a_redirect_is_the_agents_to_follow(running: RunningGateway, provider: RawServer) -> None:
    provider.answer = lambda _, write: write(response("307 Temporary Redirect", b"", "location: http://127.0.0.1:9/v1"))
    answer = exchange(provider, running.host, "POST", "/runs/moved/v1/chat/completions", ASK, JSON)
    assert answer.status[0] == 307
    assert ("location", "http://127.0.0.1:9/v1") in answer.headers


def test_a_stream_is_forwarded_as_it_comes(running: RunningGateway, provider: RawServer) -> None:
    first, rest = sse([chunk({"content": "Wait."})])[:-20], sse([chunk({"content": "Wait."})])[-20:]

    def answer(request: Request, write: Write) -> None:
        write(head())
        write(b"%x\r\n%s\r\n" % (len(first), first))
        assert becomes_true(seen.__len__)
        write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(rest), rest))

    seen = list[bytes]()
    provider.answer = answer
    with httpx.stream(
        "POST", f"{running.of_run('slow')}/chat/completions", content=ASK, headers=JSON, timeout=300
    ) as stream:
        seen += stream.iter_raw()
    assert b"".join(seen) == first + rest


def test_names_of_run_and_task_stay_at_the_gateway(running: RunningGateway, provider: RawServer) -> None:
    provider.answer = play
    names = {"X-Retroformer-Run": "mine", "X-Retroformer-Task": "one", "Connection": "X-Hop", "X-Hop": "1"} | JSON
    sent = exchange(provider, running.host, "POST", "/v1/chat/completions", ASK, names).request[2]
    assert not [name for name in sent if "retroformer" in name or name == "x-hop"]


def test_a_provider_that_breaks_off_breaks_off_for_the_agent_and_is_not_recorded(
    running: RunningGateway, provider: RawServer
) -> None:
    whole = b"".join(chunked(sse(tool_call_events("0000"))))
    provider.answer = lambda _, write: write(head() + whole[: len(whole) // 2])
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{running.of_run('broken')}/chat/completions", content=ASK, headers=JSON)
    provider.answer = lambda _, write: write(response("200 OK", PLAIN)[:-10])
    answer = httpx.post(f"{running.of_run('broken')}/chat/completions", content=ASK, headers=JSON)
    assert answer.status_code == 502
    assert "ended its answer early" in answer.json()["error"]["message"]
    assert httpx.post(f"http://{running.host}/runs/broken/score", json={"score": 0}).status_code == 409


def test_a_provider_that_switches_to_another_protocol_is_refused(running: RunningGateway, provider: RawServer) -> None:
    switch = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    provider.answer = lambda _, write: write(switch)
    for base in (running.of_run("switched"), f"http://{running.host}/v1"):
        answer = httpx.post(f"{base}/chat/completions", content=ASK, headers=JSON)
        assert (answer.status_code, "another protocol" in answer.text) == (502, True)


def test_an_agent_that_leaves_ends_the_call_of_the_provider(running: RunningGateway, provider: RawServer) -> None:
    def answer(_: Request, write: Write) -> None:
        write(head())
        while True:
            write(b"5\r\n: hi\n\r\n")

    provider.answer = answer
    provider.left.clear()
    with httpx.stream("POST", f"{running.of_run('gone')}/chat/completions", content=ASK, headers=JSON) as stream:
        next(stream.iter_raw())
    assert becomes_true(provider.left.is_set)


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2E/admin", "/runs/mine/v1/../../admin", "/v1/a%2f../../b"])
def test_no_path_leads_out_of_the_address_of_the_provider(
    running: RunningGateway, provider: RawServer, path: str
) -> None:
    request = f"GET {path} HTTP/1.1\r\nHost: {running.host}\r\nConnection: close\r\n\r\n"
    assert statuses(running.host, request.encode()) == [400]
    assert not provider.requests


def test_an_unknown_route_is_refused_with_the_routes_that_exist(running: RunningGateway, provider: RawServer) -> None:
    answer = httpx.get(f"http://{running.host}/chat/completions")
    assert answer.status_code == 404
    assert "use /v1, /runs/NAME/v1 or /runs/NAME/score" in answer.json()["error"]["message"]
    assert httpx.get(f"http://{running.host}/health").json() == {"status": "ok"}
    assert not provider.requests


@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
def test_a_bomb_of_the_provider_reaches_the_agent_and_is_not_held_in_memory(
    running: RunningGateway, provider: RawServer, kind: str
) -> None:
    packed = gzip.compress(bytes(1_000_000_000), 1)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-encoding: gzip\r\ncontent-length: {len(packed)}\r\n\r\n"
    provider.answer = lambda _, write: write(head.encode() + packed)
    before = peak(running.process.pid)
    headers = JSON | {"Accept-Encoding": "gzip"}
    url = f"{running.of_run('bomb')}/chat/completions"
    with httpx.stream("POST", url, content=ASK, headers=headers, timeout=60) as stream:
        assert b"".join(stream.iter_raw()) == packed
    assert peak(running.process.pid) - before < 300_000


def peak(pid: int) -> int:
    """Return the largest memory of a process so far, in kB."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def test_the_gateway_asks_its_provider_through_the_proxy_of_the_environment(
    tmp_path: Path, provider: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.answer = lambda _, write: write(response("200 OK", PLAIN))
    monkeypatch.setenv("HTTP_PROXY", f"http://{provider.host}")
    config = write_gateway_config(tmp_path, "http://127.0.0.1:9/v1")
    with gateway(config, "http://model.example/v1") as behind:
        assert httpx.get(f"http://{behind.host}/v1/models", trust_env=False).status_code == 200
    assert [request.path for request in provider.requests] == ["http://model.example/v1/models"]
