"""Tests of a real endpoint that follows promotions and rollbacks of its run while it answers."""

import asyncio
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retroformer.endpoint.own_server import provenance
from retroformer.run.promotions import History, roll_back
from retroformer.run.provenance import ServedModel, folder_sha256
from tests.serve.running import Endpoint, http_request, ready_line, start, tiny_config
from tests.support.waiting import becomes_true

PATIENCE_SECONDS = 300.0
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "What next?"}], "max_tokens": 8, "temperature": 0}


def ask(endpoint: Endpoint, model: str) -> str:
    answer = http_request("POST", f"{endpoint.url}/chat/completions", json={**ASKED, "model": model})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def models(endpoint: Endpoint) -> dict[str, ServedModel]:
    return asyncio.run(provenance(endpoint.url)).models


def pinned(endpoint: Endpoint) -> set[str]:
    return {name for name in models(endpoint) if name.startswith("reflector@")}


@pytest.fixture
def folder(tmp_path: Path, tiny: Path, tiny_adapters: dict[str, Path]) -> Path:
    """Folder of the run `tiny`, whose only finished stage is SFT."""
    run = tmp_path / "runs" / "tiny"
    shutil.copytree(tiny_adapters["configured"], run / "sft")
    return run


@pytest.fixture
def following(tmp_path: Path, tiny: Path, folder: Path) -> Iterator[Endpoint]:
    process = start(tmp_path, config=tiny_config(tiny))
    yield Endpoint(process, ready_line(process), folder / "logs")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors
    assert "reflector is sft, which has not been tested: `retroformer promote config.yaml sft" in errors


def test_a_running_server_follows_a_promotion_and_rollbacks_to_no_advice(
    following: Endpoint, folder: Path, tiny_adapters: dict[str, Path]
) -> None:
    history = History(folder)
    (first,) = history.records()
    assert (first.kind, first.adapter, first.replaced) == ("first", history.current(), None)
    assert ask(following, "reflector") == ask(following, "sft") != ask(following, "base")

    better = history.keep("ppo", tiny_adapters["other"])
    history.append(history.records(), "promoted", better, "test")
    assert becomes_true(lambda: models(following)["reflector"].adapter_sha256 == better.sha256)
    assert pinned(following) == {f"reflector@{better.sha256[:12]}"}
    promoted = ask(following, "reflector")
    assert promoted not in (ask(following, "sft"), "")
    assert ask(following, f"reflector@{better.sha256[:12]}") == promoted

    roll_back(history, history.records(), "test")
    assert becomes_true(lambda: models(following)["reflector"].adapter_sha256 == folder_sha256(folder / "sft"))
    assert ask(following, "reflector") == ask(following, "sft")

    roll_back(history, history.records(), "test")
    assert becomes_true(lambda: models(following)["reflector"].adapter_sha256 is None)
    assert (ask(following, "reflector"), pinned(following)) == ("", set())
    assert models(following)["reflector"].base_sha256 != models(following)["base"].base_sha256
    assert ask(following, "sft") != ""
    streamed = http_request(
        "POST", f"{following.url}/chat/completions", json={**ASKED, "model": "reflector", "stream": True}
    )
    assert '"finish_reason": "stop"' in streamed.text
    assert "error" not in streamed.text


@pytest.mark.slow
def test_a_restarted_server_serves_the_promoted_adapter_and_names_the_newer_one(
    tmp_path: Path, tiny: Path, folder: Path, tiny_adapters: dict[str, Path]
) -> None:
    history = History(folder)
    kept = history.keep("sft", folder / "sft")
    history.append((), "promoted", kept, "test")
    shutil.rmtree(folder / "sft")
    shutil.copytree(tiny_adapters["other"], folder / "ppo")
    process = start(tmp_path, config=tiny_config(tiny))
    endpoint = Endpoint(process, ready_line(process), folder / "logs")
    assert models(endpoint)["reflector"].adapter_sha256 == kept.sha256
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert f"reflector stays {kept}: `retroformer promote config.yaml ppo` tests the newer adapter" in errors
    assert history.length == 1


def test_a_server_refuses_to_start_with_an_altered_copy(tmp_path: Path, tiny: Path, folder: Path) -> None:
    history = History(folder)
    kept = history.keep("sft", folder / "sft")
    history.append((), "promoted", kept, "test")
    (history.folder_of(kept) / "adapter_model.safetensors").write_bytes(b"other")
    process = start(tmp_path, config=tiny_config(tiny))
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert f"The copy of the promoted adapter {kept} in " in errors
