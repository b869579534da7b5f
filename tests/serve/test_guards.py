"""Tests of an endpoint with keys: which clients are let in, and what stays private."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import KEYS, Endpoint, children, http_request, send, status_of
from tests.support.attacks import Target, attacks, may_be_read_by_pages, served_attacks, statuses
from tests.support.processes import listening_at

CHAT: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}
ROUTES = (
    ("GET", "/v1/models"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/embeddings"),
    ("POST", "/v1/engines/base/embeddings"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/worker_generate"),
    ("POST", "/worker_get_status"),
    ("GET", "/provenance"),
    ("GET", "/load"),
    ("GET", "/docs"),
    ("GET", "/redoc"),
    ("GET", "/openapi.json"),
    ("GET", "/docs/oauth2-redirect"),
    ("GET", "/no/such/route"),
    ("POST", "/health"),
    ("GET", "/health/"),
    ("GET", "//health"),
    ("GET", "/health/../v1/models"),
    ("GET", "/health%2f..%2fv1/models"),
    ("GET", "/v1/models#/health"),
    ("GET", "/v1/models?/health"),
    ("GET", "/HEALTH"),
    ("TRACE", "/health"),
    ("PURGE", "/v1/models"),
)


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_but_health_asks_for_the_key(keyed: Endpoint, method: str, path: str) -> None:
    def answered(authorization: str) -> bytes:
        return send(keyed, f"{method} {path} HTTP/1.1\nHost: localhost\nConnection: close\n{authorization}\n")

    for shown in (
        "",
        "Authorization: Bearer wrong\n",
        "Authorization: Bearer sesame-3f9\n",
        "Cookie: key=sesame-3f9c\n",
    ):
        assert status_of(answered(shown)) == 401
    assert b"401" not in answered(f"Authorization: Bearer {KEYS[0]}\n")[:20]


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        (f"Bearer {KEYS[0]}", 200),
        (f"Bearer {KEYS[1]}", 200),
        (f"bearer  {KEYS[0]} ", 200),
        (KEYS[0], 401),
        (f"Basic {KEYS[0]}", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        (f"Bearer {','.join(KEYS)}", 401),
        (f"Bearer {KEYS[0]}x", 401),
        (f"Bearer {KEYS[0].upper()}", 401),
        (f"Bearer wrong\nAuthorization: Bearer {KEYS[0]}", 401),
        (f"Bearer {KEYS[0]}\nAuthorization: Bearer wrong", 401),
        (f"Bearer {'x' * 10_000}", 401),
        ("Bearer \xff\xfe", 401),
    ],
)
def test_only_one_complete_key_is_accepted(keyed: Endpoint, authorization: str, status: int) -> None:
    head = f"GET /v1/models HTTP/1.1\nHost: localhost\nConnection: close\nAuthorization: {authorization}\n\n"
    assert status_of(send(keyed, head)) == status


def test_health_answers_everyone_and_reveals_nothing_else(keyed: Endpoint) -> None:
    url = keyed.url.removesuffix("/v1")
    answer = http_request("GET", f"{url}/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})
    assert http_request("HEAD", f"{url}/health").status_code == 200


def test_a_key_is_in_no_log_command_line_or_environment_of_the_servers(keyed: Endpoint) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}"}
    assert http_request("POST", f"{keyed.url}/chat/completions", json=CHAT, headers=headers).status_code == 200
    http_request("POST", f"{keyed.url}/chat/completions", content=b"{", headers=headers)
    send(keyed, f"GET /{KEYS[0]} HTTP/1.1\nAuthorization: Bearer {KEYS[0]}\nBroken\n\n")
    processes = [keyed.process.pid, *children(keyed.process.pid)]
    assert len(processes) == 2
    logs = sorted(keyed.logs.iterdir())
    assert [path.name for path in logs] == ["worker.log"]
    for path in logs:
        assert not any(key in path.read_text() for key in KEYS)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for pid in processes:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(key in command for key in KEYS)
        if pid != keyed.process.pid:
            assert not any(key in Path(f"/proc/{pid}/environ").read_text() for key in KEYS)


def test_no_web_page_may_read_an_answer(keyed: Endpoint) -> None:
    headers = {"Authorization": f"Bearer {KEYS[0]}", "Origin": "http://page.example"}
    answer = http_request("GET", f"{keyed.url}/models", headers=headers)
    assert not [name for name in answer.headers if name.startswith("access-control")]
    asked = {**headers, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = http_request("OPTIONS", f"{keyed.url}/chat/completions", headers=asked)
    assert preflight.status_code == 405
    assert "access-control-allow-origin" not in preflight.headers


def test_no_redirect_to_a_host_named_by_the_client_is_sent(keyed: Endpoint) -> None:
    head = f"GET /v1/models/ HTTP/1.1\nHost: page.example\nAuthorization: Bearer {KEYS[0]}\nConnection: close\n\n"
    answer = send(keyed, head)
    assert (status_of(answer), b"page.example" in answer) == (404, False)


def test_without_keys_a_page_of_another_site_and_a_malformed_request_are_refused(endpoint: Endpoint) -> None:
    host = endpoint.url.removeprefix("http://").removesuffix("/v1")
    target = Target(host, "/v1/chat/completions", json.dumps(CHAT).encode())
    assert statuses(host, target.request(f"Origin: http://{host}", "Sec-Fetch-Site: same-origin")) == [200]
    for name in ("localhost", "localhost:1234", "LocalHost.:80", "127.0.0.1:1", "[::1]:8000"):
        assert statuses(host, target.request(host=name)) == [200]
    assert served_attacks(target) == {}
    assert not may_be_read_by_pages(target)
    assert listening_at(int(host.partition(":")[2])) == {"127.0.0.1"}


def test_a_key_is_enough_under_any_host_name_but_a_malformed_request_is_still_refused(keyed: Endpoint) -> None:
    host = keyed.url.removeprefix("http://").removesuffix("/v1")
    key = f"Authorization: Bearer {KEYS[0]}"
    target = Target(host, "/v1/chat/completions", json.dumps(CHAT).encode(), headers=f"{key}\r\n")
    assert statuses(host, target.request("Origin: https://mine.example", host="mine.example")) == [200]
    refused = {name: sent for name, sent in attacks(target).items() if sent[1] not in (421, 403)}
    assert {name: statuses(host, request) for name, (request, _) in refused.items()} == {
        name: [status] for name, (_, status) in refused.items()
    }
