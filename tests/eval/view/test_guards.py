"""Tests of what keeps the site local: hosts, origins, the content security policy and files outside the site."""

import pytest
from starlette.testclient import TestClient

from tests.eval.view.conftest import PORT


@pytest.mark.parametrize(
    "host", ["example.org", f"example.org:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1.evil:{PORT}"]
)
def test_another_host_is_refused(host: str, client: TestClient) -> None:
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert "doors" not in answer.text


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"[::1]:{PORT}"])
def test_names_of_this_machine_are_answered(host: str, client: TestClient) -> None:
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://example.org", "null", f"https://127.0.0.1:{PORT}", "http://127.0.0.1:1"])
def test_another_origin_is_refused(origin: str, client: TestClient) -> None:
    assert client.get("/stories", headers={"origin": origin}).status_code == 403


def test_a_request_that_changes_something_needs_an_origin(client: TestClient) -> None:
    assert client.post("/").status_code == 403
    assert client.post("/", headers={"origin": f"http://127.0.0.1:{PORT}"}).status_code == 405


@pytest.mark.parametrize("path", ["/", "/stories", "/static/style.css", "/nowhere", "/static/none"])
def test_every_answer_has_the_policy(path: str, client: TestClient) -> None:
    policy = client.get(path).headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2fetc/passwd",
    ],
)
def test_no_file_outside_the_folder_of_static_files_is_served(path: str, client: TestClient) -> None:
    assert client.get(path).status_code == 404
