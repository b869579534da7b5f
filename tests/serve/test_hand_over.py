"""Tests of a real endpoint that loads adapters while it runs and draws in token ids."""

import asyncio
import os
import shutil
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from retroformer.endpoint.own_server import provenance
from retroformer.run.provenance import folder_sha256
from serve.adapters import MAX_ADAPTERS, MAX_FOLDER_BYTES
from tests.serve.handing import ASKED, KEY, World
from tests.support.waiting import becomes_true


def test_a_loaded_adapter_draws_as_one_from_the_config(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    assert world.load("handed", world.adapters["configured"])[0] == 200
    assert world.draw("handed") == world.draw("configured")
    assert world.draw("handed") != world.draw("base")
    models = asyncio.run(provenance(world.endpoint.url, "TEST_KEY")).models
    assert models["handed"] == models["configured"]
    assert models["handed"].adapter_sha256 == folder_sha256(world.adapters["configured"])
    assert world.unload("handed")[0] == 200


def test_an_unloaded_name_is_free_and_keeps_nothing_of_its_last_adapter(world: World) -> None:
    assert world.load("again", world.adapters["configured"])[0] == 200
    first = world.draw("again", prompt=ASKED["prompt"] * 20)
    assert world.unload("again")[0] == 200
    assert "again" not in world.models()
    assert world.ask("/completions", {**ASKED, "model": "again"})[0] == 404
    assert world.load("again", world.adapters["other"])[0] == 200
    assert "again" in world.models()
    assert world.draw("again", prompt=ASKED["prompt"] * 20) != first
    assert world.unload("again")[0] == 200


def test_an_impossible_request_is_refused_and_changes_nothing(world: World, tmp_path: Path) -> None:
    before = world.models()
    for name in ("base", "configured", "reflector", "a@b", ""):
        status, answer = world.load(name, world.adapters["other"])
        assert (status, "is not free" in answer["error"]["message"]) == (400, True)
    assert world.load("new", tmp_path)[0] == 404
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged")
    (tmp_path / "adapter_config.json").write_bytes((world.adapters["configured"] / "adapter_config.json").read_bytes())
    status, answer = world.load("new", tmp_path)
    assert (status, "cannot be loaded" in answer["error"]["message"]) == (400, True)
    assert [world.unload(name)[0] for name in ("configured", "base", "new")] == [404, 404, 404]
    assert world.ask("/completions", {**ASKED, "model": "base", "prompt": [1, 100_000]})[0] == 400
    assert world.models() == before


@pytest.mark.parametrize(
    "name",
    ["\ud800", "half \udfff", "a\nb", "../up", ".hidden", "a/b", "-dash", "ü", "a b", "a" * 256, "a\0b", "a+b"],
)
def test_an_invalid_name_is_refused_and_every_model_answers_as_before(world: World, name: str) -> None:
    before = world.models()
    status, answer = world.load(name, world.adapters["other"])
    assert status == 400, answer
    assert world.unload(name)[0] in (400, 404)
    assert world.models() == before
    assert world.draw("base")
    asked = {"model": "configured", "messages": [{"role": "user", "content": "Go"}], "max_tokens": 1}
    assert world.ask("/chat/completions", asked)[0] == 200


@pytest.mark.parametrize("name", ["a", "demo-ppo-0a1b2c3d", "Run_1.2-grpo-2-0a1b2c3d", "a" * 255])
def test_a_name_that_training_may_use_is_accepted(world: World, name: str) -> None:
    assert world.load(name, world.adapters["other"])[0] == 200
    assert world.unload(name)[0] == 200


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf")])
def test_an_adapter_with_a_nan_weight_is_refused_and_the_old_one_stays(
    world: World, tmp_path: Path, weight: float
) -> None:
    assert world.load("policy", world.adapters["other"])[0] == 200
    before = world.draw("policy")
    folder = shutil.copytree(world.adapters["other"], tmp_path / "bad")
    weights = load_file(folder / "adapter_model.safetensors")
    next(iter(weights.values())).view(-1)[-1] = weight
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    for name in ("policy", "new"):
        status, answer = world.load(name, folder)
        assert status == 400, answer
    assert "NaN or infinite" in answer["error"]["message"]
    assert "new" not in world.models()
    assert world.draw("policy") == before
    assert world.unload("policy")[0] == 200


def test_a_folder_that_cannot_be_read_completely_is_refused(world: World, tmp_path: Path) -> None:
    pipe = shutil.copytree(world.adapters["other"], tmp_path / "pipe")
    (pipe / "adapter_config.json").unlink()
    os.mkfifo(pipe / "adapter_config.json")
    status, answer = world.load("new", pipe)
    assert (status, "neither a file nor a folder" in answer["error"]["message"]) == (400, True)
    huge = shutil.copytree(world.adapters["other"], tmp_path / "huge")
    with (huge / "more.safetensors").open("wb") as file:
        file.truncate(2 * MAX_FOLDER_BYTES)  # A sparse file, which takes no disk space.
    assert world.load("new", huge)[0] == 400
    for nowhere in ("x" * 10_000, "a\0b", "/proc/self/fd", "\ud800"):
        assert world.load("new", Path(nowhere))[0] in (400, 404)
    assert world.load("new", world.adapters["other"])[0] == 200
    assert world.unload("new")[0] == 200


def test_an_adapter_without_some_or_all_weights_of_its_layers_is_refused(world: World, tmp_path: Path) -> None:
    whole = load_file(world.adapters["other"] / "adapter_model.safetensors")
    for name, kept in (("empty", {}), ("part", {key: value for key, value in whole.items() if "q_proj" in key})):
        folder = shutil.copytree(world.adapters["other"], tmp_path / name)
        save_file(kept, folder / "adapter_model.safetensors")
        status, answer = world.load(name, folder)
        assert (status, "has no weights there" in answer["error"]["message"]) == (400, True)
    assert world.load("whole", world.adapters["other"])[0] == 200
    assert world.unload("whole")[0] == 200


def test_loading_returns_the_hash_of_the_files_that_were_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", KEY)
    status, answer = world.load("reported", world.adapters["other"])
    assert (status, answer["adapter_sha256"]) == (200, folder_sha256(world.adapters["other"]))
    models = asyncio.run(provenance(world.endpoint.url, "TEST_KEY")).models
    assert (answer["base_sha256"], answer["dtype"]) == (models["base"].base_sha256, "float32")
    # A client may repeat a request without an answer; a repeat with another adapter is refused.
    assert world.load("reported", world.adapters["other"]) == (200, answer)
    assert world.load("reported", world.adapters["configured"])[0] == 400
    assert world.unload("reported")[0] == 200
    assert world.unload("reported")[0] == 404


def test_the_number_of_loaded_adapters_is_limited(world: World) -> None:
    names = [f"held{number}" for number in range(MAX_ADAPTERS)]
    assert [world.load(name, world.adapters["other"])[0] for name in names] == [200] * MAX_ADAPTERS
    status, answer = world.load("more", world.adapters["other"])
    assert (status, f"{MAX_ADAPTERS} adapters are loaded" in answer["error"]["message"]) == (400, True)
    assert world.unload(names.pop())[0] == 200
    assert world.load("more", world.adapters["other"])[0] == 200
    assert [world.unload(name)[0] for name in (*names, "more")] == [200] * MAX_ADAPTERS


def test_a_web_page_cannot_load_an_adapter(world: World) -> None:
    asked = {"lora_name": "new", "lora_path": str(world.adapters["other"])}
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        status, answer = world.ask("/load_lora_adapter", asked, kind=kind)
        assert (status, "only bodies of the type application/json" in answer["error"]["message"]) == (415, True)
    # The preflight request of a browser before it sends a web page's JSON.
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    url = f"{world.endpoint.url}/load_lora_adapter"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="OPTIONS"))
    assert "new" not in world.models()


def test_an_adapter_in_use_is_not_unloaded(world: World) -> None:
    assert world.load("busy", world.adapters["other"])[0] == 200
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(world.draw, "busy", max_tokens=500, stop_token_ids=[], ignore_eos=True)
        while not world.endpoint.load(KEY) and not drawing.done():
            continue
        assert world.unload("busy")[0] == 409
        assert len(drawing.result()[0]) == 500
    # The answer is sent a moment before the row is free.
    assert becomes_true(lambda: world.unload("busy")[0] == 200)


def test_nothing_is_loaded_without_the_key(world: World) -> None:
    folder = str(world.adapters["other"])
    assert world.ask("/load_lora_adapter", {"lora_name": "new", "lora_path": folder}, key="wrong")[0] == 401
    assert world.ask("/unload_lora_adapter", {"lora_name": "configured"}, key="wrong")[0] == 401
    assert world.ask("/completions", {**ASKED, "model": "base"}, key="wrong")[0] == 401
    assert "new" not in world.models()


def test_tokens_have_the_log_probabilities_of_the_whole_distribution(world: World) -> None:
    drawn = [world.draw("configured", max_tokens=1, seed=seed, temperature=0.5, top_p=0.9) for seed in range(40)]
    log_probs = {tokens[0]: log_prob[0] for tokens, log_prob in drawn}
    likeliest, (log_prob,) = world.draw("configured", max_tokens=1, temperature=0)
    assert max(log_probs, key=log_probs.__getitem__) == likeliest[0]
    assert log_probs[likeliest[0]] == pytest.approx(log_prob)
    # At half the temperature and without a tail they would sum to 1.
    assert sum(torch.tensor(list(log_probs.values())).exp()) < 0.9


def test_a_seed_repeats_a_draw_and_only_the_given_stop_tokens_end_it(world: World) -> None:
    tokens, _ = world.draw("base", max_tokens=200)
    assert world.draw("base", max_tokens=200)[0] == tokens
    assert world.draw("base", max_tokens=200, seed=8)[0] != tokens
    third = tokens[2]
    cut, log_probs = world.draw("base", max_tokens=200, stop_token_ids=[third])
    assert cut == tokens[: tokens.index(third) + 1]
    assert len(log_probs) == len(cut)
    assert len(world.draw("base", max_tokens=200, stop_token_ids=[], ignore_eos=True)[0]) == 200


@pytest.mark.parametrize("prompt", [[[1, 2]], [1, "2"], [1, True], [1, 2.5], [-1], [2**70]])
def test_a_prompt_that_is_no_list_of_tokens_is_a_bad_request(world: World, prompt: list[Any]) -> None:
    status, answer = world.ask("/completions", {**ASKED, "model": "base", "prompt": prompt})
    assert status == 400, answer
    assert world.draw("base")


def test_negative_seeds_are_valid(world: World) -> None:
    assert world.draw("base", seed=-1, max_tokens=50) == world.draw("base", seed=2**63 - 1, max_tokens=50)
    assert world.draw("base", seed=-1, max_tokens=50) != world.draw("base", seed=-2, max_tokens=50)


@pytest.mark.parametrize(
    "other",
    [
        {"logprobs": 5},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"logit_bias": {"5": 1}},
    ],
)
def test_parameters_that_a_draw_would_ignore_are_refused(world: World, other: dict[str, Any]) -> None:
    status, answer = world.ask("/completions", {**ASKED, "model": "base", **other})
    (name,) = other
    assert (status, answer["error"]["param"]) == (400, name)


def test_prompts_in_text_are_still_answered(world: World) -> None:
    status, answer = world.ask("/completions", {"model": "base", "prompt": "Go", "max_tokens": 3, "temperature": 0})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    assert "token_ids" not in answer["choices"][0]
    assert world.ask("/completions", {"model": "base", "prompt": "Go", "max_tokens": "many"})[0] == 400
