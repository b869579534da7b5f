"""Tests of the endpoint as clients see it: real processes, the real small model, the OpenAI client."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest
from transformers import AutoTokenizer

from retroformer.endpoint.server import BODY_BYTES
from retroformer.run.provenance import Provenance, folder_sha256
from tests.serve.handing import World
from tests.serve.running import Endpoint, connect, http_request, status_of
from tests.support.waiting import becomes_true

QUESTION = "Name three things that are found in a kitchen."
# With greedy sampling the model counts on from here for hundreds of tokens; a random sample may end after any token.
COUNTING = "1 2 3 4"


@pytest.fixture(scope="module")
def client(endpoint: Endpoint) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as client:
        yield client


def chat(
    client: openai.OpenAI,
    model: str,
    text: str = QUESTION,
    tokens: int = 12,
    stop: list[str] | None = None,
    temperature: float = 0.0,
    seed: int | None = None,
    choices: list[str] | None = None,
) -> str:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        temperature=temperature,
        max_tokens=tokens,
        stop=stop,
        seed=seed,
        extra_body={"choices": choices},
    )
    return answer.choices[0].message.content or ""


def load(endpoint: Endpoint) -> int:
    """Return the number of requests in progress, as the worker reports it."""
    return endpoint.load()


def test_models_are_listed_by_name_alias_and_hash(
    client: openai.OpenAI, endpoint: Endpoint, adapters: dict[str, Path], base: Path
) -> None:
    first, second = (folder_sha256(adapters[name])[:12] for name in ("first", "second"))
    plain = {"base", "sft", "first", "second", "reflector"}
    pinned = {f"base@{folder_sha256(base)[:12]}", f"second@{second}"}
    pinned |= {f"{name}@{first}" for name in ("first", "sft", "reflector")}
    assert {model.id for model in client.models.list().data} == plain | pinned
    assert all(name in endpoint.line for name in plain)


def test_base_and_adapters_answer_differently_and_an_alias_answers_like_its_model(client: openai.OpenAI) -> None:
    answers = {model: chat(client, model) for model in ("base", "first", "second", "reflector")}
    assert len({answers["base"], answers["first"], answers["second"]}) == 3
    assert answers["reflector"] == answers["first"]


def test_usage_and_finish_reason_are_reported(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="base", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=5
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5


def test_a_completion_continues_the_raw_text_up_to_a_stop_string(client: openai.OpenAI) -> None:
    text = "One, two, three, four,"
    answer = client.completions.create(model="base", prompt=text, temperature=0, max_tokens=12, stop=[" seven"])
    assert answer.choices[0].text == " five, six,"
    assert answer.choices[0].finish_reason == "stop"


def test_a_chat_reaches_the_model_in_its_own_template(client: openai.OpenAI, base: Path) -> None:
    messages: list[dict[str, str]] = [
        {"role": "system", "content": "Answer in one word: or two!"},
        {"role": "user", "content": " My cat is called Minka.\n\nShe is 3."},
        {"role": "assistant", "content": "What a nice name."},
        {"role": "user", "content": ""},
        {"role": "user", "content": "What is the name of my cat?"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(base)
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    prompt = tokenizer(text, add_special_tokens=False).input_ids  # In a text, control tokens would be content.
    raw = client.completions.create(model="base", prompt=prompt, temperature=0, max_tokens=8)
    answer = client.chat.completions.create(model="base", messages=messages, temperature=0, max_tokens=8)  # type: ignore[arg-type]
    assert answer.choices[0].message.content == raw.choices[0].text
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(prompt)


def test_what_common_clients_always_send_is_accepted(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model="first",
        messages=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=12,
        stop=[" "],
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [event.type for event in stream]
        completion = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done"} <= set(kinds)
    assert completion.usage is not None
    assert completion.usage.completion_tokens > 0
    assert client.models.retrieve("first").id == "first"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody/here")


def test_a_stream_brings_the_same_text_in_pieces(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="first", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=12, stream=True
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert len([piece for piece in pieces if piece]) > 3
    assert "".join(pieces) == chat(client, "first")


def test_a_raw_completion_streams_too(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model="base", prompt="One, two, three, four, five,", temperature=0, max_tokens=4, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream) == " six, seven,"


def test_mixed_requests_at_once_get_the_answers_they_get_alone(client: openai.OpenAI) -> None:
    requests = [(model, f"{QUESTION} {more}") for model in ("base", "first", "second") for more in ("", "Be brief.")]
    alone = [chat(client, *request) for request in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: chat(client, *request), requests))
    assert together == alone


@pytest.mark.slow
def test_a_seed_repeats_a_sample_alone_and_beside_others(client: openai.OpenAI) -> None:
    def sample(seed: int) -> str:
        return chat(client, "base", tokens=10, seed=seed, temperature=1.0)

    alone = [sample(seed) for seed in range(3)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(sample, range(4)))
    assert together[:3] == alone
    assert len(set(together)) > 1


def test_choices_constrain_the_answer(client: openai.OpenAI) -> None:
    colours = ["red", "green", "blue", "dark blue"]
    for temperature in (0.0, 2.0):
        assert chat(client, "first", choices=colours, seed=1, temperature=temperature) in colours
    answer = client.completions.create(
        model="base",
        prompt="One, two,",
        max_tokens=4,
        temperature=0,
        stop=["\n"],
        extra_body={"choices": [" four\n", " six\n"]},
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == (" four", "stop")


def test_several_answers_stream_side_by_side(client: openai.OpenAI) -> None:
    texts = [chat(client, "base", seed=3, temperature=1.0)]
    pieces = ["", "", ""]
    for chunk in client.chat.completions.create(
        model="base",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=1.0,
        max_tokens=12,
        seed=3,
        n=3,
        stream=True,
    ):
        pieces[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert pieces[:1] == texts
    assert len(set(pieces)) == 3


def test_a_client_that_leaves_a_stream_frees_its_row(client: openai.OpenAI, endpoint: Endpoint) -> None:
    stream = client.completions.create(model="base", prompt=COUNTING, temperature=0, max_tokens=4000, stream=True)
    next(piece for piece in stream if piece.choices[0].text)
    assert load(endpoint) == 1
    stream.close()
    assert becomes_true(lambda: load(endpoint) == 0)


def test_a_client_that_gives_up_waiting_frees_its_row(client: openai.OpenAI, endpoint: Endpoint) -> None:
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=1.5).completions.create(
            model="base", prompt=COUNTING, temperature=0, max_tokens=4000
        )
    assert becomes_true(lambda: load(endpoint) == 0)


def test_errors_are_answered_and_free_their_rows(client: openai.OpenAI, endpoint: Endpoint) -> None:
    with pytest.raises(openai.NotFoundError, match="No model 'nobody' is served here"):
        chat(client, "nobody")
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        client.completions.create(model="base", prompt="One", max_tokens=1, logprobs=1)
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="base", input="One")
    with pytest.raises(openai.BadRequestError, match="maximum context length is 8192"):
        client.completions.create(model="base", prompt="word " * 9000, max_tokens=1)
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="base", prompt="", max_tokens=1)
    for choices in ([], ["yes " * 50]):
        with pytest.raises(openai.BadRequestError, match="choice"):
            chat(client, "base", tokens=9, choices=choices)
    assert load(endpoint) == 0
    assert chat(client, "base", tokens=1)


def test_a_request_body_over_the_limit_is_refused(endpoint: Endpoint) -> None:
    body = b'{"model": "base", "prompt": "' + b"x" * BODY_BYTES + b'"}'
    address, headers = f"{endpoint.url}/completions", {"Content-Type": "application/json"}
    whole = http_request("POST", address, content=body, headers=headers)
    in_pieces = http_request("POST", address, content=iter([body[:50_000], body[50_000:]]), headers=headers)
    assert whole.status_code == in_pieces.status_code == 413
    assert str(BODY_BYTES) in whole.text


def test_an_endless_body_is_refused_at_its_limit(endpoint: Endpoint) -> None:
    with connect(endpoint) as connection:
        head = "POST /v1/completions HTTP/1.1\nHost: localhost\nContent-Type: application/json\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\n\n".replace("\n", "\r\n").encode())
        try:
            for _ in range(2 * BODY_BYTES // 1000):
                connection.sendall(b"3e8\r\n" + b"x" * 1000 + b"\r\n")
        except OSError:
            pass  # It need not take all.
        assert status_of(connection.recv(1000)) == 413


def test_provenance_equals_the_hashes_of_the_folders(endpoint: Endpoint, adapters: dict[str, Path], base: Path) -> None:
    answer = http_request("GET", f"{endpoint.url.removesuffix('/v1')}/provenance")
    provenance = Provenance.model_validate_json(answer.content)
    assert provenance.models["base"].adapter_sha256 is None
    assert provenance.models["base"].base_sha256 == folder_sha256(base)
    assert provenance.models["second"].adapter_sha256 == folder_sha256(adapters["second"])
    assert provenance.models["reflector"] == provenance.models["first"]
    assert provenance.dtype == "float32"


def test_without_serve_hand_over_adapters_are_refused(endpoint: Endpoint, adapters: dict[str, Path]) -> None:
    world = World(endpoint, adapters)
    assert world.load("new", adapters["first"])[0] == 404
    assert world.unload("first")[0] == 404
