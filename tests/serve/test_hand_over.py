"""A real endpoint that takes adapters while it runs, and draws in token ids."""

import asyncio
import json
import os
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from retroformer.provenance import folder_sha256
from retroformer.served import provenance
from serve.hand_over import LARGEST_BYTES, MOST
from serve.linear import AdaptedLinear, Spans, add_adapter, remove_adapter
from serve.lora_file import read_lora
from tests.serve.running import Endpoint, make_adapter, start
from tests.train.world import save_tiny_model

PATIENCE_SECONDS = 300.0
"""Longer than an endpoint takes to end, on a loaded machine."""
KEY, VARIABLE = "for tests", "RETROFORMER_TEST_KEYS"
ASKED: dict[str, Any] = {"prompt": [1, 10, 30, 40], "max_tokens": 6, "seed": 7, "stop_token_ids": [2], "logprobs": 0}


class World(NamedTuple):
    """An endpoint that serves `page` from the start, and the folders of adapters."""

    endpoint: Endpoint
    adapters: dict[str, Path]

    def ask(
        self, path: str, body: dict[str, Any] | None = None, key: str = KEY, kind: str = "application/json"
    ) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": kind, "Authorization": f"Bearer {key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint.url}{path}", data, headers)) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def load(self, name: str, folder: Path) -> tuple[int, Any]:
        return self.ask("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    def unload(self, name: str) -> tuple[int, Any]:
        return self.ask("/unload_lora_adapter", {"lora_name": name})

    def draw(self, model: str, **changes: Any) -> tuple[list[int], list[float]]:
        status, answer = self.ask("/completions", {**ASKED, "model": model, **changes})
        assert status == 200, answer
        (choice,) = answer["choices"]
        return choice["token_ids"], choice["logprobs"]["token_logprobs"]

    def models(self) -> set[str]:
        return {model["id"] for model in self.ask("/models")[1]["data"]}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("hand-over")
    base = save_tiny_model(folder / "base")
    adapters = {name: make_adapter(base, folder / name, seed) for seed, name in enumerate(("page", "other"))}
    page = f"""
run: tiny
environment: {{name: alfworld}}
train: {{base_model: {base}}}
serve: {{port: 0, hand_over: true, api_key_env: {VARIABLE}, adapters: {{page: {adapters["page"]}}}}}
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, KEY)
        process = start(folder, page=page)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    yield World(Endpoint(process, line, folder / "runs" / "tiny" / "logs"), adapters)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_SECONDS)


def test_an_adapter_that_is_handed_over_draws_as_if_it_had_been_on_the_page(world: World) -> None:
    assert world.load("handed", world.adapters["page"])[0] == 200
    assert world.draw("handed") == world.draw("page")
    assert world.draw("handed") != world.draw("base")
    told = asyncio.run(provenance(world.endpoint.url, KEY)).models
    assert told["handed"] == told["page"]
    assert told["handed"].adapter_sha256 == folder_sha256(world.adapters["page"])
    assert world.unload("handed")[0] == 200


def test_a_name_that_was_given_back_is_free_and_keeps_nothing_of_its_last_adapter(world: World) -> None:
    assert world.load("again", world.adapters["page"])[0] == 200
    first = world.draw("again", prompt=ASKED["prompt"] * 20)
    assert world.unload("again")[0] == 200
    assert "again" not in world.models()
    assert world.ask("/completions", {**ASKED, "model": "again"})[0] == 404
    assert world.load("again", world.adapters["other"])[0] == 200
    assert "again" in world.models()
    assert world.draw("again", prompt=ASKED["prompt"] * 20) != first
    assert world.unload("again")[0] == 200


def test_tokens_have_the_log_probabilities_of_the_whole_distribution(world: World) -> None:
    drawn = [world.draw("page", max_tokens=1, seed=seed, temperature=0.5, top_p=0.9) for seed in range(40)]
    log_probs = {tokens[0]: log_prob[0] for tokens, log_prob in drawn}
    likeliest, (log_prob,) = world.draw("page", max_tokens=1, temperature=0)
    assert max(log_probs, key=log_probs.__getitem__) == likeliest[0]
    assert log_probs[likeliest[0]] == pytest.approx(log_prob)
    # At half the temperature and without a tail they would sum to 1.
    assert sum(torch.tensor(list(log_probs.values())).exp()) < 0.9


def test_a_seed_repeats_a_draw_and_only_the_named_tokens_end_it(world: World) -> None:
    tokens, _ = world.draw("base", max_tokens=200)
    assert world.draw("base", max_tokens=200)[0] == tokens
    assert world.draw("base", max_tokens=200, seed=8)[0] != tokens
    third = tokens[2]
    cut, log_probs = world.draw("base", max_tokens=200, stop_token_ids=[third])
    assert cut == tokens[: tokens.index(third) + 1]
    assert len(log_probs) == len(cut)
    assert len(world.draw("base", max_tokens=200, stop_token_ids=[], ignore_eos=True)[0]) == 200


def test_what_cannot_be_done_is_refused_and_nothing_changes(world: World, tmp_path: Path) -> None:
    before = world.models()
    for name in ("base", "page", "a@b", ""):
        status, answer = world.load(name, world.adapters["other"])
        assert (status, "is not free" in answer["detail"]) == (400, True)
    assert world.load("new", tmp_path)[0] == 404
    (tmp_path / "adapter_model.safetensors").write_bytes(b"damaged")
    (tmp_path / "adapter_config.json").write_bytes((world.adapters["page"] / "adapter_config.json").read_bytes())
    status, answer = world.load("new", tmp_path)
    assert (status, "cannot be loaded" in answer["detail"]) == (400, True)
    assert [world.unload(name)[0] for name in ("page", "base", "new")] == [404, 404, 404]
    assert world.ask("/completions", {**ASKED, "model": "base", "prompt": [1, 100_000]})[0] == 400
    assert world.ask("/completions", {**ASKED, "model": "base", "max_tokens": 600})[0] == 400
    assert world.models() == before


@pytest.mark.parametrize(
    "name",
    ["\ud800", "half \udfff", "a\nb", "../up", ".hidden", "a/b", "-dash", "ü", "a b", "a" * 256, "a\0b", "a+b"],
)
def test_a_name_that_is_none_is_refused_and_every_model_answers_as_before(world: World, name: str) -> None:
    before = world.models()
    status, answer = world.load(name, world.adapters["other"])
    assert status == 400, answer
    assert world.unload(name)[0] in (400, 404)
    assert world.models() == before
    assert world.draw("base")
    assert world.ask("/chat/completions", {"model": "page", "messages": [{"role": "user", "content": "Go"}]})[0] == 200


@pytest.mark.parametrize("name", ["a", "demo-ppo-0a1b2c3d", "Run_1.2-grpo-2-0a1b2c3d", "a" * 255])
def test_a_name_that_training_may_give_is_taken(world: World, name: str) -> None:
    assert world.load(name, world.adapters["other"])[0] == 200
    assert world.unload(name)[0] == 200


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), -float("inf")])
def test_an_adapter_with_a_weight_that_is_no_number_is_refused_and_the_old_one_goes_on(
    world: World, tmp_path: Path, weight: float
) -> None:
    from safetensors.torch import load_file, save_file

    assert world.load("policy", world.adapters["other"])[0] == 200
    before = world.draw("policy")
    folder = shutil.copytree(world.adapters["other"], tmp_path / "bad")
    weights = load_file(folder / "adapter_model.safetensors")
    next(iter(weights.values())).view(-1)[-1] = weight
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    for name in ("policy", "new"):
        status, answer = world.load(name, folder)
        assert status == 400, answer
    assert "NaN or infinite" in answer["detail"]
    assert "new" not in world.models()
    assert world.draw("policy") == before
    assert world.unload("policy")[0] == 200


def test_a_folder_that_could_not_be_read_to_its_end_is_refused(world: World, tmp_path: Path) -> None:
    pipe = shutil.copytree(world.adapters["other"], tmp_path / "pipe")
    (pipe / "adapter_config.json").unlink()
    os.mkfifo(pipe / "adapter_config.json")
    status, answer = world.load("new", pipe)
    assert (status, "neither a file nor a folder" in answer["detail"]) == (400, True)
    huge = shutil.copytree(world.adapters["other"], tmp_path / "huge")
    with (huge / "more.safetensors").open("wb") as file:
        file.truncate(2 * LARGEST_BYTES)  # It takes no room on the disk.
    assert world.load("new", huge)[0] == 400
    for nowhere in ("x" * 10_000, "a\0b", "/proc/self/fd", "\ud800"):
        assert world.load("new", Path(nowhere))[0] in (400, 404)
    assert world.load("new", world.adapters["other"])[0] == 200
    assert world.unload("new")[0] == 200


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": float("nan")},
        {"top_p": float("nan")},
        {"temperature": float("inf")},
        {"seed": 10**4000},
        {"seed": 2**64},
        {"max_tokens": 10**12},
        {"top_k": -2},
        {"n": 100_000},
        {"prompt": []},
        {"prompt": [[1, 2]]},
        {"prompt": [1, "2"]},
        {"prompt": [1, True]},
        {"prompt": [1, 2.5]},
        {"prompt": [-1]},
        {"prompt": [2**70]},
        {"stop_token_ids": list(range(2000))},
    ],
    ids=lambda changes: str(changes)[:40],
)
def test_a_drawing_that_cannot_be_made_is_a_bad_request(world: World, changes: dict[str, Any]) -> None:
    status, answer = world.ask("/completions", {**ASKED, "model": "base", **changes})
    assert status == 400, answer
    assert world.draw("base")


def test_seeds_below_zero_are_seeds(world: World) -> None:
    assert world.draw("base", seed=-1, max_tokens=50) == world.draw("base", seed=2**63 - 1, max_tokens=50)
    assert world.draw("base", seed=-1, max_tokens=50) != world.draw("base", seed=-2, max_tokens=50)


def test_who_loads_is_told_the_hash_of_what_was_read(world: World) -> None:
    status, told = world.load("told", world.adapters["other"])
    assert (status, told["adapter_sha256"]) == (200, folder_sha256(world.adapters["other"]))
    models = asyncio.run(provenance(world.endpoint.url, KEY)).models
    assert (told["base_sha256"], told["dtype"]) == (models["base"].base_sha256, "float32")
    # A client repeats what it got no answer to; another adapter is not meant by that.
    assert world.load("told", world.adapters["other"]) == (200, told)
    assert world.load("told", world.adapters["page"])[0] == 400
    assert world.unload("told")[0] == 200
    assert world.unload("told")[0] == 404


def test_no_more_adapters_are_held_than_fit(world: World) -> None:
    names = [f"held{number}" for number in range(MOST)]
    assert [world.load(name, world.adapters["other"])[0] for name in names] == [200] * MOST
    status, answer = world.load("more", world.adapters["other"])
    assert (status, f"{MOST} adapters are held" in answer["detail"]) == (400, True)
    assert world.unload(names.pop())[0] == 200
    assert world.load("more", world.adapters["other"])[0] == 200
    assert [world.unload(name)[0] for name in (*names, "more")] == [200] * MOST


@pytest.mark.parametrize(
    "other",
    [
        {"n": 2},
        {"stream": True},
        {"echo": True},
        {"logprobs": 5},
        {"return_token_ids": False},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"stop": ["."]},
        {"logit_bias": {"5": 1}},
    ],
)
def test_what_would_be_left_out_of_a_drawing_is_refused(world: World, other: dict[str, Any]) -> None:
    status, answer = world.ask("/completions", {**ASKED, "model": "base", **other})
    (name,) = other
    assert (status, answer["detail"][0]["loc"]) == (400, ["body", name])


def test_a_web_page_cannot_hand_over_an_adapter(world: World) -> None:
    asked = {"lora_name": "new", "lora_path": str(world.adapters["other"])}
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        status, answer = world.ask("/load_lora_adapter", asked, kind=kind)
        assert (status, "application/json only" in answer["message"]) == (415, True)
    # What a browser asks before it sends JSON for a page.
    headers = {"Origin": "http://page.example", "Access-Control-Request-Method": "POST"}
    url = f"{world.endpoint.url}/load_lora_adapter"
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(urllib.request.Request(url, headers=headers, method="OPTIONS"))
    assert "new" not in world.models()


def test_an_adapter_that_is_drawing_is_not_taken_back(world: World) -> None:
    assert world.load("busy", world.adapters["other"])[0] == 200
    with ThreadPoolExecutor() as pool:
        drawing = pool.submit(world.draw, "busy", max_tokens=500, stop_token_ids=[], ignore_eos=True)
        while not world.endpoint.load(KEY) and not drawing.done():
            continue
        assert world.unload("busy")[0] == 409
        assert len(drawing.result()[0]) == 500
    assert world.unload("busy")[0] == 200


def test_without_the_key_nothing_is_taken(world: World) -> None:
    folder = str(world.adapters["other"])
    assert world.ask("/load_lora_adapter", {"lora_name": "new", "lora_path": folder}, key="wrong")[0] == 401
    assert world.ask("/unload_lora_adapter", {"lora_name": "page"}, key="wrong")[0] == 401
    assert world.ask("/completions", {**ASKED, "model": "base"}, key="wrong")[0] == 401
    assert "new" not in world.models()


def test_unless_the_page_allows_it_nobody_is_there(endpoint: Endpoint, adapters: dict[str, Path]) -> None:
    world = World(endpoint, adapters)
    assert world.load("new", adapters["first"])[0] == 404
    assert world.unload("first")[0] == 404
    for path in ("/load_lora_adapter", "/unload_lora_adapter", "/draw_tokens"):
        assert world.ask(path, {})[0] == 404


def test_words_are_answered_as_ever(world: World) -> None:
    status, answer = world.ask("/completions", {"model": "base", "prompt": "Go", "max_tokens": 3, "temperature": 0})
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
    assert "token_ids" not in answer["choices"][0]
    assert world.ask("/completions", {"model": "base", "prompt": "Go", "max_tokens": "many"})[0] == 400


def test_an_adapter_of_another_model_changes_no_layer(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model.get_output_embeddings = lambda: None  # type: ignore[assignment]
    good, bad = (torch.zeros(2, 1), torch.zeros(1, 3)), (torch.zeros(5, 1), torch.zeros(1, 2))
    with pytest.raises(ValueError, match="other numbers of inputs"):
        add_adapter(model, "new", {"0": good, "1": bad}, Spans())
    with pytest.raises(ValueError, match="no layer 7"):
        add_adapter(model, "new", {"0": good, "7": good}, Spans())
    assert not any(isinstance(layer, AdaptedLinear) for layer in model)
    add_adapter(model, "new", {"0": good}, Spans())
    remove_adapter(model, "new")
    assert [isinstance(layer, AdaptedLinear) and not layer.adapters for layer in model] == [True, False]


def test_an_adapter_is_read_with_its_scale_and_only_where_it_is_plain(tmp_path: Path) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    def saved(names: tuple[str, ...], **settings: Any) -> Path:
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], **settings).save_pretrained(str(tmp_path))
        save_file({name: torch.ones(4, 4) for name in names}, tmp_path / "adapter_model.safetensors")
        return tmp_path

    down, up = "base_model.model.a.q_proj.lora_A.weight", "base_model.model.a.q_proj.lora_B.weight"
    (path, (down_KR, up_RN)), *others = read_lora(saved((down, up))).items()
    assert (path, set(down_KR.flatten().tolist()), set(up_RN.flatten().tolist()), others) == (
        "a.q_proj",
        {2.0},
        {1.0},
        [],
    )
    assert read_lora(saved((down, up), use_rslora=True))["a.q_proj"][0].mean() == 4
    for names, settings, reason in (
        ((down,), {}, "lacks its factor"),
        ((down, up, "base_model.model.score.weight"), {}, "no factor of a plain LoRA"),
        ((down, up), {"use_dora": True}, "only plain LoRA"),
        ((down, up), {"rank_pattern": {"q_proj": 2}}, "only plain LoRA"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_lora(saved(names, **settings))


@pytest.mark.parametrize(
    ("down", "up", "reason"),
    [
        ((3, 4), (4, 4), "lora_A.weight is not of the rank 4"),
        ((4, 4), (4, 3), "lora_B.weight is not of the rank 4"),
        ((2, 4), (4, 2), "not of the rank 4"),
        ((4,), (4, 4), "lora_A.weight is no factor"),
    ],
)
def test_both_factors_must_have_the_rank_of_the_configuration(
    tmp_path: Path, down: tuple[int, ...], up: tuple[int, ...], reason: str
) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    path = "base_model.model.a.q_proj.lora_"
    weights = {f"{path}A.weight": torch.ones(down), f"{path}B.weight": torch.ones(up)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=reason):
        read_lora(tmp_path)


@pytest.mark.parametrize("changes", [{"peft_type": "NONE SUCH"}, {"r": "four"}, {"r": 0}, {"lora_alpha": None}])
def test_a_damaged_configuration_is_refused_like_damaged_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    from peft import LoraConfig

    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match="its configuration cannot be read"):
        read_lora(tmp_path)
