"""Tests of the HTTP client: deadlines, bombs, proxies and certificates, against real servers."""

import asyncio
import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

import retroformer as rf
from retroformer.endpoint.compression import UnreadableBody
from retroformer.endpoint.http_client import NoAnswer, certificates, exchange, fetch_now, http_client, proxy_for
from retroformer.errors import ConfigError
from tests.support.codes import enter, opens
from tests.support.raw_server import Answer, RawServer, Request, Write, http

NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NETWORK, *(name.lower() for name in NETWORK), *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)


def drip(head: bytes) -> Answer:
    """Send a byte every 0.2 s behind this head, for a minute."""

    def answer(_: Request, write: Write) -> None:
        write(head)
        for _ in range(300):
            time.sleep(0.2)
            write(b" ")

    return answer


def packed(encoding: str, content: bytes) -> Answer:
    return lambda _, write: write(http("200 OK", content, f"content-encoding: {encoding}"))


SIDE: dict[str, Answer] = {
    "bytes of a body that drips": drip(b"HTTP/1.1 200 OK\r\ncontent-length: 9000\r\n\r\n"),
    "bytes of a head that drips": drip(b"HTTP/1.1 200 OK\r\nx: "),
    "chunks that drip": drip(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n"),
    "a bomb of gzip": packed("gzip", gzip.compress(bytes(50_000_000))),
    "a bomb of zstd": packed("zstd", zstandard.compress(bytes(50_000_000))),
    "another encoding": packed("br", b"\x00"),
    "damaged data": packed("gzip", b"no gzip"),
    "half of a gzip": packed("gzip", gzip.compress(b"{}" * 99)[:-9]),
    "half of the second member": packed("gzip", gzip.compress(b"{}") + gzip.compress(b"{}" * 99)[:-9]),
    "something behind a gzip": packed("gzip", gzip.compress(b"{}") + b"<html>"),
    "empty members": packed("gzip", gzip.compress(b"") * 200_000),
    "a bomb on the way": lambda request, write: write(
        http("200 OK", b"{}")
        if request.path == "/elsewhere"
        else http("302 Found", gzip.compress(bytes(50_000_000)), "content-encoding: gzip", "location: /elsewhere")
    ),
    "no end": lambda _, write: write(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(64_000_000)),
}
"""What a server may do with a question on the side."""


@pytest.mark.parametrize("side", SIDE)
def test_no_server_holds_a_caller_or_fills_its_memory(side: str) -> None:
    with RawServer(SIDE[side]) as server:
        begun = time.monotonic()
        with pytest.raises(
            NoAnswer, match=r"no answer within 2 s|more than 16,000,000|encoding|damaged|cut short|cannot be reached"
        ):
            fetch_now("GET", server.url, 2.0)
        assert time.monotonic() - begun < 8


@pytest.mark.parametrize("side", ["a bomb of gzip", "a bomb on the way", "no end"])
def test_a_library_that_is_given_the_client_reads_no_more_either(side: str) -> None:
    async def read(url: str) -> None:
        async with http_client(url, timeout=20.0) as client:
            await client.get(url)

    with RawServer(SIDE[side]) as server, pytest.raises(UnreadableBody, match="more than 16,000,000"):
        asyncio.run(read(server.url))


def test_all_members_of_a_gzip_are_read() -> None:
    words = [b"One, ", b"", b"two, " * 10_000, b"three"]
    with RawServer(packed("gzip", b"".join(map(gzip.compress, words)))) as server:
        assert fetch_now("GET", server.url, 5.0).content == b"".join(words)


def test_no_cookie_of_a_server_is_sent_back() -> None:
    async def ask_twice(url: str) -> None:
        async with http_client(url, timeout=5.0) as client:
            for _ in range(2):
                await exchange(client, "GET", url)

    cookie = f"set-cookie: filling={'x' * 5000}"
    with RawServer(lambda _, write: write(http("200 OK", b"{}", cookie))) as server:
        asyncio.run(ask_twice(server.url))
        assert ["cookie" in request.headers for request in server.requests] == [False, False]


def test_a_server_that_does_not_speak_tls_is_not_a_lack_of_permission() -> None:
    with RawServer(lambda _, write: write(http("200 OK", b"{}"))) as server:
        with pytest.raises(NoAnswer, match="SSL") as caught:
            fetch_now("GET", server.url.replace("http:", "https:"), 5.0)
        assert "Operation not permitted" not in str(caught.value)


@pytest.mark.parametrize("side", ["bytes of a body that drips", "a bomb of gzip", "no end"])
def test_a_question_on_the_side_neither_fails_nor_delays_the_agent(side: str, tmp_path: Path) -> None:
    def answer(request: Request, write: Write) -> None:
        if request.path == "/provenance":
            SIDE[side](request, write)
        write(http("200 OK", b'{"choices": [{"message": {"content": "Enter 7."}}], "usage": {}}'))

    url = f"sqlite:///{tmp_path}/mine.db"
    with RawServer(answer) as server, rf.Reflector(server.url, store=url, unadvised=0.0, timeout_seconds=5) as coach:

        @coach.improve(trials=2, score=opens)
        def agent(task: str, advice: str = "") -> str:
            return enter("7", advice)

        begun = time.monotonic()
        assert agent("Open 7") == "7 opens it"
        assert time.monotonic() - begun < 5


BROKEN: list[tuple[str, str, str]] = [
    ("ALL_PROXY", "socks5://127.0.0.1:1", "needs a package: run `pip install socksio`, or unset ALL_PROXY."),
    ("all_proxy", "socks4://127.0.0.1:1", "is not the address of a proxy"),
    ("HTTPS_PROXY", "http://me:a-long-password@", "is not the address of a proxy"),
    ("HTTPS_PROXY", "http://proxy:notaport", "is not the address of a proxy"),
    ("https_proxy", "http://[::1", "is not the address of a proxy"),
    ("SSL_CERT_FILE", "/removed/cert.pem", "which holds no certificates: correct or unset SSL_CERT_FILE."),
    ("SSL_CERT_DIR", "/removed", "which holds no certificates: correct or unset SSL_CERT_DIR."),
    ("REQUESTS_CA_BUNDLE", "/removed/cert.pem", "which holds no certificates: correct or unset REQUESTS_CA_BUNDLE."),
    ("CURL_CA_BUNDLE", __file__, "which holds no certificates: correct or unset CURL_CA_BUNDLE."),
]


@pytest.mark.parametrize(("name", "value", "words"), BROKEN)
def test_a_variable_that_cannot_be_followed_is_one_sentence_and_never_raises_into_an_agent(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        fetch_now("GET", "https://model.example/v1", 2.0)
    assert name in str(caught.value)
    assert words in str(caught.value)
    assert "a-long-password" not in str(caught.value)
    with rf.Reflector("https://model.example/v1", store=f"sqlite:///{tmp_path}/mine.db", unadvised=0.0) as coach:

        @coach.improve(trials=3, score=opens)
        def agent(task: str, advice: str = "") -> str:
            return enter("7", advice)

        assert agent("Open 7") == "0000 fails; the note says 7"
    assert words in caplog.text
    assert "Traceback" not in caplog.text


@pytest.fixture
def proxy() -> Iterator[RawServer]:
    with RawServer(lambda _, write: write(http("200 OK", b"{}"))) as opened:
        yield opened


def test_a_server_elsewhere_is_asked_through_the_proxy_and_this_machine_never(
    proxy: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.host)
    assert fetch_now("GET", "http://model.example/v1", 5.0).status == 200
    assert [request.path for request in proxy.requests] == ["http://model.example/v1"]
    with RawServer(lambda _, write: write(http("404 Not Found", b"{}"))) as server:
        port = server.host.partition(":")[2]
        for host in ("127.0.0.1", "localhost", "LOCALHOST", "0.0.0.0", "127.1", "[::ffff:127.0.0.1]"):
            assert fetch_now("GET", f"http://{host}:{port}/v1", 5.0).status == 404
    assert len(proxy.requests) == 1


@pytest.mark.parametrize(
    ("exceptions", "url", "direct"),
    [
        ("model.example", "http://model.example/v1", True),
        ("MODEL.example", "http://model.EXAMPLE/v1", True),
        (".example", "http://model.example/v1", True),
        ("*.example", "http://model.example/v1", True),
        ("*", "http://model.example/v1", True),
        ("other, model.example", "http://model.example/v1", True),
        ("model.example:80", "http://model.example/v1", True),
        ("model.example:81", "http://model.example/v1", False),
        ("del.example", "http://model.example/v1", False),
        ("10.0.0.0/8", "http://10.1.2.3/v1", True),
        ("10.0.0.0/8", "http://11.1.2.3/v1", False),
        ("fd00::/8", "http://[fd00::1]:8000/v1", True),
        ("[fd00::1]", "http://[fd00::1]/v1", True),
        ("http://model.example", "http://model.example/v1", True),
        ("", "http://[::1]:8000/v1", True),
        ("", "ws://127.0.0.1:8000/ws", True),
        ("", "http://[::]:8000/v1", True),
        ("", "http://model.localhost:8000/v1", True),
        ("", "http://notlocalhost/v1", False),
        ("", "http://10.0/v1", False),
        ("", "ws://model.example/ws", False),
    ],
)
def test_exceptions_from_the_proxy_are_read_in_all_their_forms(
    exceptions: str, url: str, direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert proxy_for(url) == (None if direct else "http://proxy.example:3128")


def test_certificates_of_the_environment_are_trusted_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import certifi

    one = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----")
    (tmp_path / "own.pem").write_text(one[0] + one[1])
    assert len(certificates().get_ca_certs()) > 50
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "own.pem"))
    assert len(certificates().get_ca_certs()) == 1
