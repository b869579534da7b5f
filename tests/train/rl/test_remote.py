"""Updates whose responses a real `retroformer serve` samples with the handed-over adapter."""

import itertools
import json
import math
import shutil
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from retroformer.config.sections.train import Generation
from retroformer.endpoint.agreement import PROBES, disagreement
from retroformer.errors import EndpointFailure, ProvenanceError
from tests.serve.running import Endpoint, start
from tests.train.rl.test_ppo import DRAW, END, PROMPTS, adapters, quick_settings
from tests.train.world import prompt, tiny_experiment
from train.adapter import Adapter, require_adapter
from train.base import load_base
from train.rl.policy import SharedBase, make_optimizer
from train.rl.ppo import ppo
from train.rl.remote import RemoteSampler, responder
from train.rl.sampling import Responses, SamplingSettings, respond
from train.rl.stage import train_by_grpo, train_by_ppo
from train.shared_prompt.packed import Group, pack
from train.stage import Stage, make_stage

EXACT, ROUNDED, OTHER = 1e-4, 0.1, 0.2
"""Distances: of float32 from float32, of bfloat16 from float32, and of other weights."""
ASKED = [prompt(f"task {number}") for number in range(4)]


class HandsOverAnother(SharedBase):
    """Saves the adapter of another folder instead of its policy."""

    another: Path

    def save_policy(self, folder: Path) -> None:
        shutil.copytree(self.another, folder, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def url(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start an endpoint that loads adapters, and return its address."""
    yield from endpoint_of(tiny_base, tmp_path_factory)


@pytest.fixture(scope="module")
def second_url(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start another one."""
    yield from endpoint_of(tiny_base, tmp_path_factory)


def endpoint_of(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    content = f"run: tiny\nenvironment: {{name: alfworld}}\ntrain: {{base_model: {tiny_base}, quantization: none}}\n"
    folder = tmp_path_factory.mktemp("server")
    process = start(folder, "serve.port=0", "serve.hand_over=true", config=content)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert " at " in line, process.communicate()[1]
    yield Endpoint(process, line, folder).url
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)


@contextmanager
def answering(answer: Callable[[str, bytes], tuple[int, bytes]]) -> Iterator[str]:
    """Start a server that maps path and body of a request to a status and a body; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, said = answer(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            # So that clients retry at once.
            headers = {"Content-Type": "application/json", "Content-Length": len(said), "retry-after-ms": 5}
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Tires:
    """Forwards requests to a server, and answers 500 after some completions."""

    def __init__(self, url: str, strength: int) -> None:
        self._url, self.strength = url, strength

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path.endswith("/completions"):
            self.strength -= 1
        if self.strength < 0:
            return 500, b"{}"
        headers = {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self._url.removesuffix("/v1") + path, body, headers)
            ) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()


class Balances:
    """Forwards one request after another to several servers in turn."""

    def __init__(self, *urls: str) -> None:
        self._servers, self.requests = [Tires(url, strength=1000) for url in urls], 0

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        return self._servers[self.requests % len(self._servers)](path, body)


class Disagrees(Tires):
    """Forwards requests to a server, and finds every second drawn token a little less likely."""

    def __init__(self, url: str) -> None:
        super().__init__(url, strength=1000)
        self._numbers = itertools.count()

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        is_odd = next(self._numbers) % 2
        status, said = super().__call__(path, body)
        if path.endswith("/completions") and is_odd:
            answer = json.loads(said)
            noted = answer["choices"][0]["logprobs"]
            noted["token_logprobs"] = [log_prob - 0.5 for log_prob in noted["token_logprobs"]]
            said = json.dumps(answer).encode()
        return status, said


class ReadsStaleFiles(Tires):
    """A server that always reads the first adapter, as from a stale disk."""

    def __init__(self, url: str, kept: Path) -> None:
        super().__init__(url, strength=100)
        self._kept = kept

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        asked = json.loads(body)
        if path.endswith("/load_lora_adapter"):
            if not self._kept.exists():
                shutil.copytree(asked["lora_path"], self._kept)
            asked["lora_path"] = str(self._kept)
        return super().__call__(path, json.dumps(asked).encode())


def says(*answers: dict[str, Any] | None) -> Callable[[str, bytes], tuple[int, bytes]]:
    """Accepts every adapter, and answers completions with these bodies in order; None is a failure.

    Probes, which ask for the likeliest tokens, get another answer.
    """
    left = list(answers)

    def answer(path: str, body: bytes) -> tuple[int, bytes]:
        said: dict[str, Any] | None = {}
        if path.endswith("/completions"):
            asked = json.loads(body)
            count = asked["max_tokens"]
            said = left.pop(0) if asked["temperature"] else completion([5] * count, [-0.5] * count)
        return (500, b"{}") if said is None else (200, json.dumps(said).encode())

    return answer


def completion(tokens: list[int], log_probs: list[float]) -> dict[str, Any]:
    return {"choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": log_probs}}]}


def drawing_at(url: str, base: Path, workplace: Path, draw: SamplingSettings = DRAW) -> Callable[[], Responses]:
    """Sample a response of at most four tokens from a server, with any distance tolerated."""
    train, sft, reward = adapters(workplace, base)
    model = SharedBase(load_base(train), sft, reward)
    server = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed", tolerance=99)
    return lambda: server(model, [[1, 10]], draw)


def models(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/models") as answer:
        return [model["id"] for model in json.load(answer)["data"] if "@" not in model["id"]]


def test_an_update_is_sampled_with_the_trained_weights(tiny_base: Path, workplace: Path, url: str) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model, settings = (
        SharedBase(load_base(train), sft, reward),
        quick_settings(updates=3, batch_size=8, kl=1e-6),
    )
    server = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed", tolerance=EXACT)
    history = list(ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW, answer=server))
    assert [facts["server_distance"] < EXACT for facts in history] == [True, True, True]
    assert all(abs(facts["server_kl"]) < EXACT for facts in history)
    # The last policy differs from the first.
    assert history[-1]["kl"] > OTHER
    assert models(url) == ["base"]
    assert not list((workplace / "handed").iterdir())


def test_other_weights_in_the_server_end_the_stage_before_a_training_step(
    tiny_base: Path, workplace: Path, url: str
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model, settings = HandsOverAnother(load_base(train), sft, reward), quick_settings(updates=3, batch_size=8)
    model.another = sft
    server = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed")
    updates = ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW, answer=server)
    assert next(updates)["server_distance"] < EXACT, "the policy is the SFT policy until it learns"
    learned = [parameter.detach().clone() for parameter in model.adapter_parameters()]
    with pytest.raises(ProvenanceError) as failure:
        next(updates)
    assert f"The server at {url} did not sample with the current policy" in str(failure.value)
    assert "and 0.1 is allowed" in str(failure.value)
    assert all(map(torch.equal, learned, model.adapter_parameters()))
    assert models(url) == ["base"]


def test_stale_files_are_detected_even_if_their_policy_is_similar(tiny_base: Path, workplace: Path, url: str) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    settings = quick_settings(updates=2, batch_size=8, learning_rate=1e-6)
    with answering(ReadsStaleFiles(url, workplace / "kept")) as address:
        server = RemoteSampler(Generation(base_url=address), "run-ppo", workplace / "handed")
        updates = ppo(model, make_optimizer(model, settings), PROMPTS, settings, DRAW, answer=server)
        assert next(updates)["server_distance"] < EXACT
        with pytest.raises(ProvenanceError, match="has not read the current policy: the sha256 of the saved files"):
            next(updates)
    assert models(url) == ["base"]
    assert not list((workplace / "handed").iterdir())


def test_bfloat16_rounding_is_tolerated_and_a_4_bit_base_is_not(tiny_base: Path, workplace: Path, url: str) -> None:
    train, sft, reward = adapters(workplace, tiny_base)

    def distance(**kind: Any) -> float:
        model = SharedBase(load_base(train.model_copy(update=kind)), sft, reward)
        server = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed", tolerance=9)
        return server(model, sorted(PROMPTS, key=len), DRAW._replace(max_new_tokens=16, at_once=4)).facts[
            "server_distance"
        ]

    assert EXACT < distance(dtype="bfloat16") < ROUNDED
    assert distance(dtype="bfloat16", quantization="nf4") > OTHER


@pytest.mark.slow
def test_every_replica_gets_the_policy_and_a_share_of_the_prompts(
    tiny_base: Path, workplace: Path, url: str, second_url: str
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    counts = [Balances(url), Balances(second_url)]
    with answering(counts[0]) as first, answering(counts[1]) as second:
        generation = Generation(base_url=first, replicas=(second,))
        server = RemoteSampler(generation, "run-ppo", workplace / "handed", tolerance=EXACT)
        responses = server(model, PROMPTS[:1] * 8, DRAW)
    alone = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed", tolerance=EXACT)
    assert responses.facts["server_distance"] < EXACT
    assert len(alone(model, PROMPTS[:1] * 8, DRAW).tokens) == len(responses.tokens) == 8
    # Two to load and unload, and the probes.
    assert [count.requests > 2 + PROBES for count in counts] == [True, True]
    assert sum(count.requests for count in counts) == 2 * (2 + PROBES) + 8
    assert models(url) == models(second_url) == ["base"]


def test_servers_behind_a_balancer_that_did_not_all_load_the_policy_end_the_stage(
    tiny_base: Path, workplace: Path, url: str, second_url: str
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    with answering(Balances(url, second_url)) as address:
        server = RemoteSampler(Generation(base_url=address), "run-ppo", workplace / "handed")
        with pytest.raises(EndpointFailure, match=r"no model|No model|not served|404|400"):
            server(model, PROMPTS[:1] * 8, DRAW)


def test_servers_that_disagree_end_the_stage(tiny_base: Path, workplace: Path, url: str) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    with answering(Disagrees(url)) as address:
        server = RemoteSampler(Generation(base_url=address), "run-ppo", workplace / "handed")
        with pytest.raises(ProvenanceError, match=r"do not sample with the same policy.*differ by 0\.5"):
            server(model, PROMPTS[:1] * 8, DRAW)
    assert models(url) == ["base"]


def test_a_server_with_other_quantised_weights_is_refused(tiny_base: Path, workplace: Path, url: str) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)
    server = RemoteSampler(Generation(base_url=url), "run-ppo", workplace / "handed", "nf4", tolerance=9)
    with pytest.raises(ProvenanceError, match="weights quantised as none, and the policy is trained on nf4"):
        server(model, PROMPTS, DRAW)
    assert models(url) == ["base"]


def test_tokens_that_the_server_found_less_likely_weigh_more_up_to_a_limit(tiny_base: Path, workplace: Path) -> None:
    tokens = [5, 6, 7, END]
    with answering(says(completion(tokens, [-0.5, -2.0, -20.0, -3.0]))) as address:
        responses = drawing_at(address, tiny_base, workplace)()
    train, sft, reward = adapters(workplace, tiny_base)
    policy = SharedBase(load_base(train), sft, reward).read(pack([Group([1, 10], [tokens])]), 4)
    assert responses.importance_BT is not None
    expected_T = torch.exp(policy.log_probs_RT[0].detach() - torch.tensor([-0.5, -2.0, -20.0, -3.0])).clamp(max=2.0)
    torch.testing.assert_close(responses.importance_BT[0], expected_T, rtol=1e-4, atol=1e-6)
    assert responses.importance_BT[0, 2] == 2.0


def test_equal_prompts_have_different_seeds_and_an_update_is_repeatable(
    tiny_base: Path, workplace: Path, url: str
) -> None:
    train, sft, reward = adapters(workplace, tiny_base)
    model = SharedBase(load_base(train), sft, reward)

    def drawn(seed: int) -> list[list[int]]:
        torch.manual_seed(seed)
        server = RemoteSampler(Generation(base_url=url), "run-grpo", workplace / "handed")
        return server(model, [[1, 10, 30]] * 4, DRAW._replace(max_new_tokens=8, at_once=2)).tokens

    assert len(set(map(tuple, drawn(0)))) == 4
    assert drawn(0) == drawn(0) != drawn(1)


def stages(workplace: Path, base: Path, url: str) -> tuple[Stage, Stage, dict[str, Adapter]]:
    """Return PPO and GRPO stages of three updates with the server at `url`, and their adapters."""
    _, sft, reward = adapters(workplace, base)
    (reward / "metrics.json").write_text(json.dumps({"train_score_mean": 0.0, "train_score_deviation": 1.0}))
    quick = {"learning_rate": 3e-2, "batch_size": 4, "updates": 3, "epochs": 2}
    server = {"base_url": url}
    experiment = tiny_experiment(
        workplace, base, ppo=quick, grpo={**quick, "group": 2}, checkpoint_steps=50, generation=server
    )
    return (
        make_stage("ppo", experiment, [], {}),
        make_stage("grpo", experiment, [], {}),
        {"sft": require_adapter(sft), "reward": require_adapter(reward)},
    )


def test_a_run_resumes_after_its_server_failed_and_ends_like_an_unbroken_one(
    tiny_base: Path, workplace: Path, url: str
) -> None:
    tires = Tires(url, strength=100)
    with answering(tires) as address:
        stage, _, trained = stages(workplace, tiny_base, address)

        def improved() -> tuple[bytes, dict[str, Any]]:
            train_by_ppo(stage, ASKED, trained)
            metrics = json.loads((stage.folder / "metrics.json").read_text())
            return (stage.folder / "adapter_model.safetensors").read_bytes(), metrics

        unbroken, metrics = improved()
        assert all(facts["server_distance"] < EXACT for facts in metrics["history"])
        assert not stage.checkpoints.exists()
        tires.strength = 2 * (PROBES + 4) + 1
        with pytest.raises(EndpointFailure, match=r"answered 500.* run the same command to resume\."):
            improved()
        # The handed-over adapter is deleted; the checkpoint of the previous updates exists.
        there = sorted(path.name for path in stage.checkpoints.iterdir())
        assert there == ["update-000002.json", "update-000002.pt"], "a checkpoint and its manifest"
        tires.strength = 100
        resumed, metrics = improved()
        assert metrics["resumed_from_update"] == 2
        assert resumed == unbroken


def test_a_server_that_takes_no_adapters_is_reported_in_one_sentence(tiny_base: Path, workplace: Path) -> None:
    with answering(lambda path, _: (404, b'{"detail": "Not Found"}')) as address:
        ask = drawing_at(address, tiny_base, workplace)
        with pytest.raises(
            EndpointFailure, match=r"answered 404: Not Found.* serve.hand_over=true, or vLLM with --enable-lora"
        ):
            ask()


def test_grpo_uses_the_server_in_the_same_way(tiny_base: Path, workplace: Path, url: str) -> None:
    _, stage, trained = stages(workplace, tiny_base, url)
    train_by_grpo(stage, ASKED, trained)
    history = json.loads((stage.folder / "metrics.json").read_text())["history"]
    assert [facts["server_distance"] < EXACT for facts in history] == [True, True, True]


def test_metrics_name_the_server_and_its_base(tiny_base: Path, workplace: Path, url: str) -> None:
    stage, _, trained = stages(workplace, tiny_base, url)
    train_by_ppo(stage, ASKED, trained)
    metrics = json.loads((stage.folder / "metrics.json").read_text())
    said = {"base_url": url, "base_sha256": stage.inputs["base"], "dtype": "float32"}
    assert metrics["drawn_by"] == said
    assert "drawn_by" not in (stage.folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"choices": []}, "answered without token ids"),
        ({"choices": [{"text": "Look in the fridge."}]}, "answered without token ids"),
        (completion([5, 6], [-1.0, -2.0]), "ended a response after 2 of 4 tokens"),
        (completion([], []), "ended a response after 0 of 4 tokens"),
        (completion([5, 6, 7, 8], [-1.0]), "answered without token ids and the log-probability of each"),
        (completion([5] * 9, [-1.0] * 9), "answered with 9 tokens of at most 4"),
        (completion([5, 6, 7, 10**30], [-1.0] * 4), r"ids from 5 to 1000000000\d* for a vocabulary of 259"),
        (completion([5, -6, 7, 8], [-1.0] * 4), "ids from -6 to 8 for a vocabulary of 259"),
    ],
)
def test_an_incomplete_response_is_refused(tiny_base: Path, workplace: Path, answer: dict[str, Any], said: str) -> None:
    with answering(says(answer)) as address:
        ask = drawing_at(address, tiny_base, workplace)
        with pytest.raises(EndpointFailure, match=said):
            ask()


@pytest.mark.parametrize("end", [END, 7])
def test_each_end_of_a_turn_ends_a_response(tiny_base: Path, workplace: Path, end: int) -> None:
    with answering(says(completion([5, 6, end], [-1.0, -2.0, -3.0]))) as address:
        responses = drawing_at(address, tiny_base, workplace, DRAW._replace(ends=(END, 7)))()
    assert responses.tokens == [[5, 6, end]]
    assert responses.ended_B.tolist() == [True]


def test_a_failed_request_is_repeated(tiny_base: Path, workplace: Path) -> None:
    with answering(says(None, None, completion([5, 6, END], [-1.0, -2.0, -3.0]))) as address:
        responses = drawing_at(address, tiny_base, workplace)()
    assert responses.tokens == [[5, 6, END]]
    assert responses.ended_B.tolist() == [True]
    assert responses.response_BT.tolist() == [[5, 6, END]]
    assert 0 < responses.facts["server_distance"] < 99


def test_log_probabilities_of_nan_are_refused(tiny_base: Path, workplace: Path) -> None:
    with answering(says(completion([5, END], [-1.0, float("nan")]))) as address:
        ask = drawing_at(address, tiny_base, workplace)
        with pytest.raises(ProvenanceError, match="nan nats"):
            ask()


def test_without_generation_the_process_samples_itself_with_the_same_fingerprint(
    tiny_base: Path, workplace: Path
) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    stage = make_stage("ppo", experiment, [], {})
    assert responder(stage) is respond

    def drawn_by(server: dict[str, Any]) -> str:
        other = tiny_experiment(workplace, tiny_base, generation=server)
        return make_stage("ppo", other, [], {}).fingerprint

    here, there = {"base_url": "http://x/v1"}, {"base_url": "http://y/v1", "replicas": ["http://z/v1"]}
    assert stage.fingerprint != drawn_by(here) == drawn_by(there)


@pytest.mark.parametrize(
    ("one", "other", "distance"),
    [
        ([(5, -0.05), (6, -0.5)], [(5, -0.05), (6, -0.7)], 0.2),
        # Two tokens cannot both be the likeliest one and have more than half of the probability.
        ([(5, -0.05)], [(900, -0.10)], math.log(2) - 0.1),
        ([(5, -0.8), (6, -0.1)], [(7, -0.8), (8, -3.0)], 0.0),
        ([(5, -0.8)], [(5, -0.8), (6, -0.1)], 0.0),
        ([(5, math.nan), (6, -0.1)], [(5, -0.8), (6, -0.1)], math.nan),
    ],
)
def test_greedy_continuations_disagree_by_their_probabilities(
    one: list[tuple[int, float]], other: list[tuple[int, float]], distance: float
) -> None:
    assert disagreement(one, other) == pytest.approx(distance, abs=1e-9, nan_ok=True)
