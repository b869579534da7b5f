"""Tests of the client of language models, against a real server that behaves and misbehaves."""

import asyncio
import base64
import json
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import ValidationError

from retroformer.config.sections.base import Endpoint as EndpointSection
from retroformer.endpoint.http_client import fetch
from retroformer.endpoint.model import Completion, LanguageModel, Prompt
from retroformer.errors import ConfigError, EndpointFailure
from retroformer.method.records import Message, Usage
from tests.support.endpoint import MISBEHAVIOURS, Behaviour, Body, Endpoint
from tests.support.raw_server import RawServer, Request, Write, http

HELLO = (Message(role="system", content="Be brief."), Message(role="user", content="Hello?"))


@pytest.fixture
def server() -> Iterator[Endpoint]:
    with Endpoint(reply=lambda body: " Good day. ") as opened:
        yield opened


def ask(
    section: EndpointSection,
    prompt: Prompt = HELLO,
    *,
    url: str = "",
    seed: int | None = None,
    stop: tuple[str, ...] = (),
    choices: tuple[str, ...] | None = None,
) -> Completion:
    async def once() -> Completion:
        model = LanguageModel(section, section.base_url or url)
        try:
            return await model.complete(
                prompt, temperature=0.5, max_new_tokens=20, seed=seed, stop=stop, choices=choices
            )
        finally:
            await model.close()

    return asyncio.run(once())


def test_a_chat_is_sent_as_it_is_and_the_answer_comes_back_untouched(server: Endpoint) -> None:
    section = EndpointSection(base_url=server.url, model="big")
    assert ask(section).text == " Good day. "
    assert server.requests == [
        {
            "model": "big",
            "temperature": 0.5,
            "max_tokens": 20,
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
        }
    ]


def test_the_config_adds_fields_to_a_request_removes_them_and_names_the_limit(server: Endpoint) -> None:
    fields = {"temperature": None, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}
    fields |= {"max_tokens": None, "max_completion_tokens": 20}
    ask(EndpointSection(base_url=server.url, model="big", extra_body=fields))
    assert server.requests == [
        {
            "model": "big",
            "max_completion_tokens": 20,
            "reasoning_effort": "low",
            "chat_template_kwargs": {"enable_thinking": False},
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}],
        }
    ]


@pytest.mark.parametrize("name", ["model", "messages", "prompt", "stream", "n"])
def test_the_config_cannot_change_what_the_client_itself_writes(name: str) -> None:
    with pytest.raises(ValidationError, match=f"the client itself writes {name}: leave it out"):
        EndpointSection(extra_body={name: 1})


def test_a_plain_prompt_goes_to_completions(server: Endpoint) -> None:
    section = EndpointSection(base_url=server.url, api="completions")
    assert ask(section, "Once upon", stop=("\n",)).text == " Good day. "
    assert (server.requests[0]["prompt"], server.requests[0]["stop"]) == ("Once upon", ["\n"])


def test_a_chat_to_a_completions_endpoint_is_its_turns_in_lines(server: Endpoint) -> None:
    ask(EndpointSection(base_url=server.url, api="completions"))
    assert server.requests[0]["prompt"] == "Be brief.\nHello?"


def test_a_plain_prompt_to_a_chat_endpoint_is_one_turn_of_the_user(server: Endpoint) -> None:
    ask(EndpointSection(base_url=server.url), "Hello?")
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Hello?"}]


def test_the_usage_that_the_server_reports_is_charged(server: Endpoint) -> None:
    server.usage = {"prompt_tokens": 2000, "completion_tokens": 500, "total_tokens": 2500}
    usage = ask(EndpointSection(base_url=server.url, dollars_per_million=(3.0, 15.0))).usage
    # 2000 * 3 / 1e6 + 500 * 15 / 1e6
    assert usage == Usage(calls=1, prompt_tokens=2000, completion_tokens=500, dollars=0.0135)


@pytest.mark.parametrize(
    "reported",
    [
        None,
        {},
        [],
        {"prompt_tokens": "many", "completion_tokens": None},
        {"prompt_tokens": -1, "completion_tokens": -1},
    ],
)
def test_a_server_that_reports_no_usage_is_charged_a_token_for_four_characters(
    server: Endpoint, reported: dict[str, object] | None
) -> None:
    server.usage = reported
    # "Be brief.Hello?" has 15 characters, " Good day. " has 11.
    assert ask(EndpointSection(base_url=server.url)).usage == Usage(calls=1, prompt_tokens=4, completion_tokens=3)


def test_a_seed_is_sent_as_such_to_a_remote_endpoint(server: Endpoint) -> None:
    ask(EndpointSection(base_url=server.url), seed=17)
    assert server.requests[0]["seed"] == 17
    assert "stop" not in server.requests[0]


@pytest.mark.parametrize("choices", [(" yes\n", " no\n"), ()])
def test_choices_travel_to_the_experiments_own_server(server: Endpoint, choices: tuple[str, ...]) -> None:
    # It refuses an empty list, which must not become an unconstrained request.
    ask(EndpointSection(), url=server.url, stop=("\n",), choices=choices)
    assert (server.requests[0]["stop"], server.requests[0]["choices"]) == (["\n"], list(choices))


def test_choices_are_refused_where_another_server_would_ignore_them(server: Endpoint) -> None:
    with pytest.raises(ConfigError, match=r"cannot be held to choices: only the experiment's own server can"):
        ask(EndpointSection(base_url=server.url), choices=("yes", "no"))
    assert server.requests == []


def test_one_bad_answer_is_forgiven_within_the_call(server: Endpoint) -> None:
    server.script.append(Behaviour.ERROR)
    assert ask(EndpointSection(base_url=server.url)).text == " Good day. "
    assert len(server.requests) == 2


SAID = {
    Behaviour.ERROR: "answered 500: out of memory.",
    Behaviour.BUSY: "answered 429: slow down.",
    Behaviour.REFUSED: "answered 400: the name is not free.",
    Behaviour.GARBAGE: "answered with something that is not a completion: '<html>Welcome",
    Behaviour.SILENT: "gave no answer within 0.2 s.",
    Behaviour.CUT: "cannot be reached: RemoteProtocolError: peer closed connection",
}


@pytest.mark.parametrize("behaviour", MISBEHAVIOURS)
def test_an_endpoint_that_misbehaves_is_one_sentence_with_its_address(server: Endpoint, behaviour: Behaviour) -> None:
    server.behaviour = behaviour
    patience = {Behaviour.SILENT: 0.2, Behaviour.TRICKLE: 1.5}.get(behaviour, 20.0)
    with pytest.raises(EndpointFailure) as failure:
        ask(EndpointSection(base_url=server.url, model="big", timeout_seconds=patience))
    sentence = str(failure.value)
    assert sentence.startswith(f"The model 'big' at {server.url} ")
    assert SAID.get(behaviour, "") in sentence
    assert "\n" not in sentence
    assert len(sentence) < 500


def test_an_unpaired_surrogate_is_replaced_when_sent_and_stored() -> None:
    with Endpoint(reply=lambda body: "half \ud83d of it") as server:
        assert ask(EndpointSection(base_url=server.url)).text == "half ? of it"


def test_an_address_without_a_server_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound but not listening: a connection is refused.
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        with pytest.raises(EndpointFailure, match="cannot be reached: ConnectError: Connection refused"):
            ask(EndpointSection(base_url=address))


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:8000/v1", "ftp://127.0.0.1/v1", "http://"])
def test_an_address_that_no_http_client_reaches_is_refused_before_it_is_asked(address: str) -> None:
    with pytest.raises(ValidationError, match="It must begin with http:// or https://"):
        EndpointSection(base_url=address)


def test_the_key_is_read_from_the_named_variable(server: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    assert ask(EndpointSection(base_url=server.url, api_key_env="SOME_KEY")).text
    monkeypatch.delenv("SOME_KEY")
    assert ask(EndpointSection(base_url=server.url, api_key_env="SOME_KEY")).text


def refuses(request: Request, write: Write) -> None:
    """Answer, as some servers do, with the received key or the whole header that held it."""
    said = f"Incorrect API key provided: {request.headers['authorization'].split()[1]}"
    write(http("401 Unauthorized", f'{{"error": {{"message": "{said}"}}}}'.encode()))


def refusal(section: EndpointSection) -> str:
    with pytest.raises(EndpointFailure) as failure:
        ask(section)
    return str(failure.value)


def test_a_user_and_password_in_the_address_are_sent_and_not_shown() -> None:
    with RawServer(refuses) as server:
        sentence = refusal(EndpointSection(base_url=f"http://me:pass%40word-X1@{server.host}/v1"))
        sent = base64.b64decode(server.requests[0].headers["authorization"].removeprefix("Basic ")).decode()
    assert (server.requests[0].path, sent) == ("/v1/chat/completions", "me:pass@word-X1")
    assert (
        f"The model 'base' at http://me:***@{server.host}/v1 answered 401: Incorrect API key provided: ***." == sentence
    )


def test_a_key_in_the_query_of_the_address_is_sent_and_not_shown() -> None:
    with RawServer(refuses) as server:
        sentence = refusal(EndpointSection(base_url=f"http://{server.host}/v1?api_key=QUERY-KEY-77&version=2"))
    assert server.requests[0].path == "/v1/chat/completions?api_key=QUERY-KEY-77&version=2"
    assert f"http://{server.host}/v1?api_key=***&version=2 answered 401" in sentence


@pytest.mark.parametrize("length", [20, 280, 1000])
def test_a_key_that_an_endpoint_repeats_is_hidden_completely(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ("sk-marked" * 120)[:length]
    monkeypatch.setenv("SOME_KEY", key)
    with RawServer(refuses) as server:
        sentence = refusal(EndpointSection(base_url=server.url, api_key_env="SOME_KEY"))
        assert server.requests[0].headers["authorization"] == f"Bearer {key}"
    assert sentence.endswith("answered 401: Incorrect API key provided: ***.")


def test_a_key_in_an_invalid_answer_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-marked-in-an-answer")

    def answer(request: Request, write: Write) -> None:
        write(http("200 OK", f'["{request.headers["authorization"]}"]'.encode()))

    with RawServer(answer) as server:
        sentence = refusal(EndpointSection(base_url=server.url, api_key_env="SOME_KEY"))
    assert "answered with something that is not a completion: \"['Bearer ***']\"." in sentence


def answered(body: Any, api: Literal["chat", "completions"] = "chat") -> Completion:
    """Return what the client reads from this answer with status 200."""
    with RawServer(lambda _, write: write(http("200 OK", json.dumps(body).encode()))) as server:
        return ask(EndpointSection(base_url=server.url, api=api, timeout_seconds=5.0))


def choice(reason: Any = "stop", content: Any = "Look.", **fields: Any) -> Body:
    return {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": reason, **fields}


USAGE = {"prompt_tokens": 7, "completion_tokens": 20}
FAULT = {"code": 502, "message": "Provider returned error"}


@pytest.mark.parametrize(
    "body",
    [
        {"choices": [choice("error", error=FAULT)]},
        {"choices": [choice("error", "")]},
        {"choices": [choice("abort", "")]},
        {"choices": [choice("cancelled")]},
        {"choices": [choice(error=FAULT)]},
        {"choices": [choice()], "error": FAULT},
        {"choices": [{"message": {"role": "assistant", "content": "Look.", "error": "overloaded"}}]},
        {"error": FAULT},
        {"choices": [choice("FAILED", None)]},
        {"choices": [choice("ERROR_TOXIC")]},
        {"choices": [choice(None, finish_details={"type": "server_error"})]},
    ],
)
def test_an_error_is_no_answer_wherever_it_stands(body: Body) -> None:
    with pytest.raises(EndpointFailure, match="something that is not a completion") as failed:
        answered(body | {"usage": USAGE})
    assert failed.value.usage.prompt_tokens == 7


@pytest.mark.parametrize(
    ("reason", "read"),
    [
        *(
            (reason, "stop")
            for reason in ("stop", "STOP", "end_turn", "stop_sequence", "eos", "tool_calls", "complete")
        ),
        *((reason, "length") for reason in ("length", "max_tokens", "MAX_TOKENS", "model_length", "content_filter")),
        *((reason, "length") for reason in ("SAFETY", "RECITATION", "incomplete", "pause_turn", "unheard of", 7)),
        (None, None),
        ("", None),
    ],
)
def test_any_end_but_a_natural_one_is_a_cut(reason: Any, read: str | None) -> None:
    second = choice("length", "No.", index=1)
    assert answered({"choices": [second, choice(reason)], "usage": USAGE}).finish_reason == read
    text = {"index": 0, "text": "Look.", "finish_reason": reason}
    assert answered({"choices": [text]}, "completions").finish_reason == read
    others = ({"stop_reason": reason}, {"finish_details": {"type": reason}})
    assert [answered({"choices": [choice(None, **other)]}).finish_reason for other in others] == [read, read]


@pytest.mark.parametrize(
    ("choices", "read"),
    [
        ([choice("length", None)], "length"),
        ([choice("stop", None)], "stop"),
        ([choice("content_filter", None)], "length"),
        ([{"index": 0, "message": {"role": "assistant"}, "finish_reason": "MAX_TOKENS"}], "length"),
        ([{"index": 0, "finish_reason": "SAFETY"}], "length"),
        ([], "length"),
    ],
)
def test_an_empty_turn_that_was_paid_for_is_the_models_own(choices: list[Body], read: str) -> None:
    completion = answered({"choices": choices, "usage": USAGE})
    assert (completion.text, completion.finish_reason, completion.usage.completion_tokens) == ("", read, 20)
    with pytest.raises(EndpointFailure, match="something that is not a completion"):
        answered({"choices": choices})


COMPLETION = b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}'


def test_a_key_is_sent_without_the_line_feed_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    section = EndpointSection(model="big", api_key_env="KEY_OF_THE_TEST")
    with RawServer(lambda _, write: write(http("200 OK", COMPLETION))) as server:
        monkeypatch.setenv("KEY_OF_THE_TEST", "a-key-from-a-file\r\n")
        assert ask(section, url=server.url).text == "Hi"
        assert server.requests[0].headers["authorization"] == "Bearer a-key-from-a-file"
        monkeypatch.setenv("KEY_OF_THE_TEST", "“a-key-from-a-letter”")
        with pytest.raises(ConfigError, match=r"^KEY_OF_THE_TEST has a character that no HTTP header takes"):
            ask(section, url=server.url)


@pytest.mark.parametrize("kind", [b"text/plain", b"image/png", b""])
def test_a_completion_is_read_whatever_type_the_server_states(kind: bytes) -> None:
    answer = http("200 OK", b"\n\n " + COMPLETION).replace(b"application/json", kind)
    with RawServer(lambda _, write: write(answer)) as server:
        assert ask(EndpointSection(model="big"), url=server.url).text == "Hi"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_certificate_that_nobody_signed_is_the_reason_that_the_sentence_gives(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*made, *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with RawServer(lambda _, write: write(http("200 OK", COMPLETION)), context) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(EndpointFailure, match="certificate verify failed: self-signed certificate"):
            ask(EndpointSection(model="big"), url=url)


@pytest.mark.parametrize("status", ["302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_to_another_host_gets_neither_key_nor_prompt(status: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-of-this-host-alone")
    answer = http("200 OK", b'{"choices": [{"message": {"content": "Good day."}}]}')
    with RawServer(lambda _, write: write(answer)) as other:
        there = http(status, b"", f"location: {other.url}/chat/completions")
        with RawServer(lambda _, write: write(there)) as server:
            section = EndpointSection(base_url=server.url, api_key_env="SOME_KEY", timeout_seconds=5.0)
            with pytest.raises(EndpointFailure, match=f"redirects to http://{other.host}") as caught:
                ask(section)
            assert (len(server.requests), caught.value.usage) == (1, Usage())
            assert not other.requests
            asyncio.run(fetch("GET", server.url, 5.0, headers={"Authorization": "Bearer sk-of-this-host-alone"}))
    assert "sk-of-this-host-alone" in str(server.requests)
    assert other.requests
    assert "sk-of-this-host-alone" not in str(other.requests)


def test_a_redirect_on_the_same_host_is_followed() -> None:
    def answer(request: Request, write: Write) -> None:
        moved = http("308 Permanent Redirect", b"", "location: /v2/chat/completions")
        write(http("200 OK", COMPLETION) if request.path.startswith("/v2") else moved)

    with RawServer(answer) as server:
        assert ask(EndpointSection(model="big"), url=server.url).text == "Hi"
