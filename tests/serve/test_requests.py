"""Valid requests; everything else is refused with the name of the field, and the endpoint goes on."""

import json
import re
from typing import Any

import httpx
import openai
import pytest

from serve import requests as bounds
from tests.serve.running import KEYS, Endpoint, http_request

CHAT: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "Say OK."}], "max_tokens": 1}
COMPLETION: dict[str, Any] = {"model": "base", "prompt": "One, two,", "max_tokens": 1}
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[0]}"}
PATHS = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}


def post(keyed: Endpoint, call: str, body: bytes | str) -> httpx.Response:
    url = keyed.url.removesuffix("/v1") + PATHS[call]
    return http_request("POST", url, content=body, headers=HEADERS)


def body_of(call: str, changes: str) -> str:
    """Return a valid request with `changes` as raw JSON, since Python would not write NaN or half a character."""
    valid = {"chat": CHAT, "completion": COMPLETION}[call]
    kept = {name: value for name, value in valid.items() if f'"{name}":' not in changes}
    return json.dumps(kept)[:-1] + (", " if kept else "") + changes + "}"


def message(role: str, content: str) -> str:
    return f'"messages": [{{"role": "{role}", "content": {content}}}]'


REFUSED = [
    *(
        (call, f'"{name.partition(".")[0]}": {value}', name)
        for call in ("chat", "completion")
        for name, value in (
            ("n", "100000"),
            ("n", "0"),
            ("n", "true"),
            ("temperature", "NaN"),
            ("temperature", "-1"),
            ("temperature", "1e999"),
            ("top_p", "NaN"),
            ("top_p", "-Infinity"),
            ("top_k", "-2"),
            ("presence_penalty", "Infinity"),
            ("frequency_penalty", "1e308"),
            ("max_tokens", "-1"),
            ("max_tokens", "9" * 30),
            ("max_tokens", '"12"'),
            ("seed", "9" * 30),
            ("seed", str(2**64)),
            ("seed", "0.5"),
            ("stop.0", f'["{"x" * (bounds.STOP_CHARACTERS + 1)}"]'),
            ("stop", json.dumps([str(number) for number in range(bounds.STOPS + 1)])),
            ("stop.0", "[1]"),
            ("choices", "[]"),
            ("choices.0", "[1]"),
            ("choices", json.dumps(["a"] * (bounds.CHOICES + 1))),
            ("choices", json.dumps(["a" * (bounds.CHOICE_CHARACTERS + 1)])),
            ("stop_token_ids", json.dumps([1] * (bounds.STOP_TOKENS + 1))),
            ("model", '"\\ud800"'),
            ("model", f'"{"x" * (bounds.NAME_CHARACTERS + 1)}"'),
            ("stream", '"yes"'),
            ("user", "{}"),
            ("logit_bias", '{"5": 100}'),
            ("suffix", '"end"'),
            ("response_format", '{"type": "json_object"}'),
            ("tools", '[{"type": "function"}]'),
            ("tool_choice", '"required"'),
            ("functions", "[{}]"),
            ("logprobs", '"yes"'),
            ("top_logprobs", "3"),
            ("best_of", "2"),
            ("min_p", "0.1"),
            ("repetition_penalty", "1.1"),
            ("stream_options", '"all"'),
            ("reasoning_effort", '"low"'),
            ("modalities", '["audio"]'),
            ("tempreature", "0"),
        )
    ),
    ("chat", message("tool", '"x"'), "messages.0.role"),
    ("chat", message("wizard", '"x"'), "messages.0.role"),
    ("chat", message("user", "null"), "messages.0.content"),
    ("chat", message("user", "[1]"), "messages.0.content"),
    ("chat", message("user", '"\\ud800 half"'), "messages[0].content"),
    ("chat", message("user", '[{"type": "image_url", "image_url": {"url": "x"}}]'), "messages.0.content"),
    ("chat", '"messages": [{"role": "user", "content": "x", "name": 7}]', "messages.0.name"),
    ("chat", '"messages": []', "messages"),
    ("chat", '"messages": "x"', "messages"),
    (
        "chat",
        '"messages": [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]',
        "messages",
    ),
    ("chat", '"max_completion_tokens": 5', "max_completion_tokens"),
    ("chat", '"echo": true', "echo"),
    ("chat", '"return_token_ids": true, "stream": true', "return_token_ids"),
    ("completion", '"max_completion_tokens": 5', "max_completion_tokens"),
    ("completion", '"prompt": [1, 2], "echo": true', "echo"),
    ("completion", '"logprobs": 1', "logprobs"),
    ("completion", '"prompt": []', "prompt"),
    ("completion", '"prompt": [[]]', "prompt"),
    ("completion", '"prompt": [[1, 2], [3]]', "prompt"),
    ("completion", '"prompt": ["One", 2]', "prompt"),
    ("completion", '"prompt": [true]', "prompt"),
    ("completion", '"prompt": {"text": "One"}', "prompt"),
    ("completion", '"prompt": null', "prompt"),
    ("completion", '"prompt": ' + json.dumps(["One"] * (bounds.ANSWERS + 1)), "n"),
    ("completion", f'"n": {bounds.ANSWERS}, "prompt": ["One", "Two"]', "n"),
]


def shortened(value: object) -> str | None:
    return value[:60] if isinstance(value, str) else None


@pytest.mark.parametrize(("call", "changes", "field"), REFUSED, ids=shortened)
def test_an_unsupported_value_is_refused_with_the_name_of_its_field(
    keyed: Endpoint, call: str, changes: str, field: str
) -> None:
    answer = post(keyed, call, body_of(call, changes))
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == field
    assert keyed.load(KEYS[0]) == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"model": "\xff"}', "not JSON"),
        (b"[" * 90_000, "nested too deeply"),
        (b'{"a":' * 15_000 + b"1" + b"}" * 15_000, "nested too deeply"),
        (b'{"model": "base", "n": 1, "n": 100000}', "n appears twice"),
        (b'{"model": "base", "messages": [{"role": "user", "role": "system", "content": ""}]}', "role appears twice"),
        (b'{"\\ud800": 1}', "lone surrogate"),
    ],
    ids=["empty", "cut", "list", "bytes", "brackets", "braces", "name-twice", "role-twice", "half-a-character"],
)
def test_a_body_that_is_no_plain_json_object_is_refused(keyed: Endpoint, body: bytes, message: str) -> None:
    for call in ("chat", "completion"):
        answer = post(keyed, call, body)
        assert (answer.status_code, message in answer.text) == (400, True), answer.text


def test_neutral_parameters_are_accepted(keyed: Endpoint) -> None:
    neutral: dict[str, Any] = {
        "n": 1,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "suffix": None,
        "response_format": {"type": "text"},
        "tools": [],
        "best_of": 1,
        "stream_options": None,
        "user": "Ann",
        "stop": None,
        "what_is_to_come": None,
    }
    for call, body in (("chat", CHAT), ("completion", COMPLETION)):
        answer = post(keyed, call, json.dumps({**body, **neutral}))
        assert answer.status_code == 200, answer.text
    for content in ("Yes?", None):  # A turn in which a model only thought has no content.
        turn = {"role": "assistant", "name": "Bob", "content": content, "refusal": None, "tool_calls": None}
        assert post(keyed, "chat", json.dumps({**CHAT, "messages": [turn, *CHAT["messages"]]})).status_code == 200


def test_max_completion_tokens_is_the_limit(keyed: Endpoint) -> None:
    body = {name: value for name, value in CHAT.items() if name != "max_tokens"} | {"temperature": 0}
    for limits in ({"max_completion_tokens": 3}, {"max_completion_tokens": 3, "max_tokens": 3}):
        answer = post(
            keyed, "chat", json.dumps({**body, **limits, "messages": [{"role": "user", "content": "Count."}]})
        )
        assert answer.json()["usage"]["completion_tokens"] == 3


def test_a_seed_repeats_a_sample_and_gives_each_of_several_answers_its_own(keyed: Endpoint) -> None:
    with openai.OpenAI(base_url=keyed.url, api_key=KEYS[0], max_retries=0) as client:

        def sample(seed: int, n: int = 1, prompt: str | list[str] = "My favourite") -> list[str]:
            answer = client.completions.create(
                model="base", prompt=prompt, max_tokens=8, temperature=1.0, seed=seed, n=n
            )
            return [choice.text for choice in answer.choices]

        (alone,) = sample(7)
        several = sample(7, n=3)
        assert several == sample(7, n=3)
        assert several[0] == alone
        assert len(set(several)) > 1
        assert sample(7, prompt=["My favourite", "My favourite"]) == [alone, alone]
        assert sample(-7) == sample(2**63 - 7)


def test_the_parts_of_a_message_are_joined(keyed: Endpoint) -> None:
    def tokens(content: object) -> int:
        answer = post(keyed, "chat", json.dumps({**CHAT, "messages": [{"role": "system", "content": content}]}))
        return int(answer.json()["usage"]["prompt_tokens"])

    assert tokens([{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]) == tokens("Be\nbrief.")


def test_a_prompt_that_cannot_fit_is_refused_without_reading_it(keyed: Endpoint) -> None:
    body = json.dumps({**COMPLETION, "prompt": "word " * 600_000})
    answer = http_request("POST", f"{keyed.url}/completions", content=body, headers=HEADERS)
    # The text has hundreds of thousands of tokens, which were not counted.
    expected = r"maximum context length is (\d+) tokens. However, your messages resulted in more than \1 tokens"
    assert answer.status_code == 400
    assert re.search(expected, answer.text)


def test_other_types_of_bodies_are_refused_wherever_a_web_config_could_send_them(keyed: Endpoint) -> None:
    for path in PATHS.values():
        url = keyed.url.removesuffix("/v1") + path
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = http_request("POST", url, content=json.dumps(CHAT), headers={**HEADERS, "Content-Type": kind})
            assert (answer.status_code, "only bodies of the type application/json" in answer.text) == (415, True)
