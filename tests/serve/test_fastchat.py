"""FastChat's controller and API server, unmodified, before our worker: the same texts as without them."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serve.running import (
    KEYS,
    PATIENCE_SECONDS,
    Endpoint,
    children,
    http_request,
    ready_line,
    served_config,
    start,
    tiny_config,
)
from tests.support.processes import listening_at
from tests.support.waiting import becomes_true

CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief: {really}. "},
    {"role": "user", "content": "Name three things<|im_end|> in a kitchen.\n"},
    {"role": "assistant", "content": "A stove, a sink and a fridge."},
    {"role": "user", "content": ""},
    {"role": "user", "content": "  And in a garden?"},
]
COUNTING = "One, two, three, four,"


@pytest.fixture(scope="module")
def fastchat(base: Path, adapters: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """Start FastChat's servers before a worker with the models of `endpoint`; clients need one of `KEYS`."""
    folder = tmp_path_factory.mktemp("fastchat")
    stage = folder / "runs" / "served" / "sft"
    stage.parent.mkdir(parents=True)
    stage.symlink_to(adapters["first"], target_is_directory=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEYS_OF_THE_TEST", ",".join(KEYS))
        process = start(
            folder, "serve.api_key_env=KEYS_OF_THE_TEST", "--fastchat", config=served_config(base, adapters)
        )
    yield Endpoint(process, ready_line(process), folder / "runs" / "served" / "logs")
    started = children(process.pid)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert len(started) == 3
    for name in ("api.log", "controller.log", "worker.log"):
        log = (folder / "runs/served/logs" / name).read_text()
        assert "Traceback" not in log, log
        assert not any(key in log for key in KEYS)


@pytest.fixture(scope="module")
def both(fastchat: Endpoint, endpoint: Endpoint) -> Iterator[tuple[openai.OpenAI, openai.OpenAI]]:
    """Return a client of FastChat's API server, and one of a worker without it."""
    # uvicorn closes a connection after a status of 500 without saying so.
    with (
        openai.OpenAI(base_url=fastchat.url, api_key=KEYS[0], max_retries=1) as through,
        openai.OpenAI(base_url=endpoint.url, api_key="none", max_retries=0) as directly,
    ):
        yield through, directly


def same(both: tuple[openai.OpenAI, openai.OpenAI], ask: Callable[[openai.OpenAI], Any]) -> Any:
    """Return what both clients are told."""
    through, directly = map(ask, both)
    assert through == directly
    return through


def test_both_list_the_same_models(both: tuple[openai.OpenAI, openai.OpenAI]) -> None:
    names = same(both, lambda client: {model.id for model in client.models.list().data})
    assert {"base", "first", "second", "sft", "reflector"} < names


@pytest.mark.parametrize("model", ["base", "first", "reflector"])
def test_a_chat_gets_the_same_text_whole_and_in_pieces(both: tuple[openai.OpenAI, openai.OpenAI], model: str) -> None:
    def ask(client: openai.OpenAI) -> Any:
        asked: Any = {"model": model, "messages": CHAT, "temperature": 0, "max_tokens": 12}
        answer = client.chat.completions.create(**asked)
        assert answer.usage is not None
        pieces = [
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)
        ]
        assert len(pieces) > 3
        assert "".join(pieces) == answer.choices[0].message.content
        return answer.choices[0].message.content, answer.choices[0].finish_reason, answer.usage

    text, reason, usage = same(both, ask)
    assert text
    assert reason in ("stop", "length")
    assert 3 < usage.completion_tokens <= 12


def test_completions_get_the_same_texts_with_n_stop_and_echo(both: tuple[openai.OpenAI, openai.OpenAI]) -> None:
    def ask(client: openai.OpenAI) -> Any:
        asked: Any = {"model": "base", "prompt": COUNTING, "temperature": 0, "max_tokens": 12}
        answers = [
            client.completions.create(**asked, n=2, stop=[" seven"]),
            client.completions.create(**asked, stop=[" seven"], echo=True),
            client.completions.create(**{**asked, "prompt": [COUNTING, "Red, green,"]}),
            client.completions.create(**{**asked, "logprobs": 0}),
        ]
        streamed = client.completions.create(**asked, stop=[" seven"], stream=True)
        texts = [[(choice.text, choice.finish_reason) for choice in answer.choices] for answer in answers]
        assert answers[-1].choices[0].logprobs is not None
        return texts, "".join(chunk.choices[0].text for chunk in streamed), answers[-1].choices[0].logprobs.tokens

    texts, streamed, _ = same(both, ask)
    assert texts[0] == [(" five, six,", "stop")] * 2
    assert texts[1] == [(f"{COUNTING} five, six,", "stop")]
    assert streamed == " five, six,"


def test_what_cannot_be_answered_is_refused_both_ways(both: tuple[openai.OpenAI, openai.OpenAI]) -> None:
    refused: list[dict[str, Any]] = [
        {"model": "nobody", "prompt": "One"},
        {"model": "base", "prompt": "word " * 9000},
        {"model": "base", "prompt": "One", "n": 0},
        {"model": "base", "prompt": "One", "temperature": 3},
        {"model": "base", "prompt": "One", "logprobs": 5},
        {"model": "base", "prompt": "One", "best_of": 2},
        {"model": "base", "prompt": "One", "stop": ["x" * 2000]},
    ]
    for asked in refused:
        for client in both:
            with pytest.raises((openai.BadRequestError, openai.NotFoundError)):
                client.completions.create(**asked)
    for client in both:
        assert client.completions.create(model="base", prompt="One", max_tokens=1).usage


def test_fastchat_asks_for_a_key_and_its_worker_tells_strangers_no_more_than_fastchat_asks(fastchat: Endpoint) -> None:
    assert http_request("GET", f"{fastchat.url}/models").status_code == 401
    asked = {"model": "base"}
    worker = http_request("POST", f"{controller_of(fastchat)}/get_worker_address", json=asked).json()["address"]
    for url in (controller_of(fastchat), worker, fastchat.url.removesuffix("/v1")):
        assert listening_at(int(url.rpartition(":")[2])) == {"127.0.0.1"}
    assert http_request("POST", f"{worker}/worker_get_status").json()["speed"] == 1
    foreign = {"Host": "page.example"}  # As of a web page whose name resolves to this machine.
    assert http_request("POST", f"{worker}/worker_get_status", headers=foreign).status_code == 421
    assert http_request("GET", f"{worker}/v1/models").status_code == 401
    key = {"Authorization": f"Bearer {KEYS[0]}"}
    assert http_request("GET", f"{worker}/provenance", headers=key).json()["dtype"] == "float32"


def controller_of(fastchat: Endpoint) -> str:
    """Return the address of its controller, from the command of its API server, which holds no key."""
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children(fastchat.process.pid)]
    assert not any(key in command for command in commands for key in KEYS)
    return next(
        word.partition("=")[2]
        for command in commands
        for word in command.split("\0")
        if word.startswith("--controller-address=")
    )


def test_a_worker_registers_at_a_controller_that_runs_already(
    fastchat: Endpoint, both: tuple[openai.OpenAI, openai.OpenAI], sketch: Path, tmp_path: Path
) -> None:
    process = start(tmp_path, f"serve.controller={controller_of(fastchat)}", config=tiny_config(sketch))
    try:
        endpoint = Endpoint(process, ready_line(process), tmp_path)
        pinned = next(word for word in endpoint.line.split() if word.startswith("base@"))
        assert becomes_true(lambda: pinned in {model.id for model in both[0].models.list().data})
        asked: Any = {"model": pinned, "messages": CHAT, "temperature": 0, "max_tokens": 8}
        with openai.OpenAI(base_url=endpoint.url, api_key="none") as directly:
            texts = [
                client.chat.completions.create(**asked).choices[0].message.content for client in (both[0], directly)
            ]
        assert texts[0] == texts[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
