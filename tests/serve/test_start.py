"""Tests of the start of a server, of its refusals in one sentence, and of the restart of its worker."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from retroformer.errors import MissingInput
from serve.engine.model import Model
from tests.serve.handing import World
from tests.serve.running import Endpoint, children, make_adapter, ready_line, runs, start, tiny_config
from tests.support.waiting import becomes_true
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Longer than anything takes here on a loaded machine."""


def test_a_port_in_use_is_reported_in_one_sentence_before_anything_starts(tmp_path: Path, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = start(tmp_path, config=tiny_config(tiny, port=port))
        output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert errors.strip().splitlines() == [
        f"Port {port} of 127.0.0.1 cannot be used (Address already in use): stop the process that uses it, or choose "
        "another with serve.port (0 for any free one)."
    ]
    assert output == ""
    assert list((tmp_path / "runs" / "tiny" / "logs").iterdir()) == []


def own_code(base: Path) -> None:
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "own.OwnConfig"}}))


def cut(base: Path) -> None:
    os.truncate(base / "model.safetensors", 1000)


@pytest.mark.slow
def test_a_broken_adapter_is_reported_in_one_sentence_with_its_folder_and_training_command(
    tmp_path: Path, tiny: Path, tiny_adapters: dict[str, Path]
) -> None:
    stage = shutil.copytree(tiny_adapters["configured"], tmp_path / "runs" / "tiny" / "sft")
    (stage / "adapter_model.safetensors").write_bytes(b"garbage")
    process = start(tmp_path, config=tiny_config(tiny, f"adapters: {{other: {tiny_adapters['other']}}}"))
    assert process.stderr is not None
    errors = process.stderr.read()  # Wait until it ends by itself: communicate() would close its input and so end it.
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert errors.strip().splitlines() == [
        "The worker stopped while starting: Adapter 'sft' in 'runs/tiny/sft' cannot be loaded (SafetensorError: "
        "Error while deserializing header: header too small): move the folder away and retrain with `retroformer train "
        "sft EXPERIMENT.yaml`, or name another folder in serve.adapters. (exit code 1; log: "
        "runs/tiny/logs/worker.log)"
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("spoil", "reason"), [(own_code, "config.json names Python code"), (cut, "is damaged (")])
def test_a_base_with_code_of_its_own_or_cut_weights_is_reported_in_one_sentence(
    spoil: Callable[[Path], object], reason: str, tmp_path: Path, tiny: Path
) -> None:
    base = shutil.copytree(tiny, tmp_path / "base")
    spoil(base)
    process = start(tmp_path, config=tiny_config(base))
    assert process.stderr is not None
    errors = process.stderr.read()  # As above: communicate() would end it.
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (1, "")
    (sentence,) = errors.strip().splitlines()
    assert sentence.startswith("The worker stopped while starting: ")
    assert reason in sentence


def test_an_adapter_with_a_nan_weight_is_not_served(tmp_path: Path, tiny: Path, tiny_adapters: dict[str, Path]) -> None:
    folder = shutil.copytree(tiny_adapters["configured"], tmp_path / "bad")
    weights = load_file(folder / "adapter_model.safetensors")
    next(iter(weights.values())).view(-1)[0] = float("nan")
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(MissingInput, match=r"has weights that are NaN or infinite\): move the folder away"):
        Model(tiny, {"bad": folder}, "float32")


@pytest.mark.slow
def test_an_adapter_of_another_base_is_refused_in_one_sentence(
    tmp_path: Path, tiny: Path, tiny_adapters: dict[str, Path]
) -> None:
    wider = save_tiny_model(tmp_path / "wider", hidden=64)
    adapters = f"adapters: {{right: {make_adapter(wider, tmp_path / 'right', 0)}, wrong: {tiny_adapters['other']}}}"
    process = start(tmp_path, config=tiny_config(wider, adapters))
    assert process.stderr is not None
    errors = process.stderr.read()  # As above: communicate() would end it.
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (1, "")
    (sentence,) = errors.strip().splitlines()
    assert f"The adapter in {tiny_adapters['other']} does not fit the base model {str(wider)!r}: " in sentence
    assert (
        "layers.0.self_attn.q_proj.lora_A.weight has shape (4, 32) there and shape (4, 64) on this base. " in sentence
    )
    assert f"Set train.base_model to the model that it was trained on, {str(tiny)!r}, or delete the folder" in sentence


@pytest.mark.parametrize("keys", ["", " , ", "grün", "a\nb"])
def test_unusable_keys_are_reported_before_anything_starts(
    tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("KEYS_OF_THE_TEST", keys)
    process = start(tmp_path, config=tiny_config(tiny, "api_key_env: KEYS_OF_THE_TEST"))
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, output) == (1, "")
    assert "KEYS_OF_THE_TEST" in errors
    assert not keys.strip() or keys not in errors
    assert len(errors.strip().splitlines()) == 1


@pytest.mark.slow
def test_an_endpoint_restarts_its_worker_requires_keys_warns_of_the_network_and_leaves_no_orphan(
    tmp_path: Path, tiny: Path, tiny_adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEYS_OF_THE_TEST", "sesame,other")
    settings = f"api_key_env: KEYS_OF_THE_TEST, adapters: {{configured: {tiny_adapters['configured']}}}"
    process = start(tmp_path, "serve.host=0.0.0.0", config=tiny_config(tiny, settings))
    assert process.stderr is not None
    warning = process.stderr.readline()
    world = World(Endpoint(process, ready_line(process), tmp_path / "runs" / "tiny" / "logs"), tiny_adapters)
    asked = {"model": "configured", "prompt": "One, two,", "max_tokens": 12, "temperature": 0}
    try:
        assert "OPENS THIS SERVER TO THE NETWORK" in warning
        assert "Anyone with one of its API keys may use it" in warning
        assert world.ask("/completions", asked, key="wrong")[0] == 401
        before = world.ask("/completions", asked, key="other")
        assert before[0] == 200
        killed = world.endpoint.pid_of("serve.worker")
        os.kill(killed, signal.SIGKILL)
        # The request waits in the socket that the supervisor holds, until the new worker takes it.
        status, answer = world.ask("/completions", asked, key="other")
        assert (status, answer["choices"]) == (200, before[1]["choices"])
        assert world.endpoint.pid_of("serve.worker") != killed
        message = process.stderr.readline()
        assert "worker died and is started again" in message
        assert "(killed by SIGKILL; log: " in message
        orphans = children(process.pid)
        assert len(orphans) == 1
    finally:
        process.kill()
    process.communicate()
    assert becomes_true(lambda: not any(map(runs, orphans))), "a server outlived its supervisor"
