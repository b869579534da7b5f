"""Tests of a real `retroformer serve` with serve.engine=vllm, before a stand-in with vLLM's routes and known faults."""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serving import free_port
from retroformer.config.experiment import Experiment
from retroformer.endpoint.own_server import provenance
from retroformer.run.promotions import History
from retroformer.run.provenance import folder_sha256
from serve.served_names import ServedNames
from serve.vllm_command import vllm_command
from tests.serve import vllm_stand_in
from tests.serve.running import Endpoint, http_request, make_adapter, ready_line, runs, start, tiny_config
from tests.serve.vllm_stand_in import FAULTS, digest
from tests.support.waiting import becomes_true

PATIENCE_SECONDS = 300.0
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "What next?"}], "max_tokens": 64}
CLIENTS, ANSWERS, ADAPTERS = 64, 300, 8


@contextmanager
def stand_in(base: Path) -> Iterator[str]:
    """Run a stand-in and yield its address."""
    port = free_port()
    command = [sys.executable, vllm_stand_in.__file__, "serve", str(base), "--port", str(port)]
    with subprocess.Popen(command) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            assert becomes_true(lambda: answers(lambda: http_request("GET", f"{url}/health")))
            yield url
        finally:
            process.kill()


def answers(request: Callable[[], httpx.Response]) -> bool:
    """Return whether a server answers: one that is being stopped or started may close the connection."""
    try:
        return request().status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def serving(folder: Path, base: Path, settings: str) -> Iterator[Endpoint]:
    process = start(folder, config=tiny_config(base, f"engine: vllm, {settings}"))
    try:
        yield Endpoint(process, ready_line(process), folder / "runs" / "tiny" / "logs")
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors


def refusal(folder: Path, base: Path, settings: str) -> str:
    """Return why a server with these settings does not start."""
    process = start(folder, config=tiny_config(base, settings))
    assert process.stderr is not None
    errors = process.stderr.read()
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    return errors.strip()


def ask(endpoint: Endpoint, model: str, **changes: Any) -> httpx.Response:
    return http_request("POST", f"{endpoint.url}/chat/completions", json={**ASKED, "model": model, **changes})


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def hand_over(endpoint: Endpoint, name: str, folder: Path) -> int:
    """Load an adapter as a client does that asks again; return how often it was refused."""
    body = {"lora_name": name, "lora_path": str(folder)}
    for refused in itertools.count():
        answer = http_request("POST", f"{endpoint.url}/load_lora_adapter", json=body)
        if answer.status_code == 200:
            assert answer.json()["adapter_sha256"] == folder_sha256(folder)
            return refused
    raise AssertionError


@pytest.fixture(scope="module")
def folders(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of ten adapters of the tiny base."""
    folder = tmp_path_factory.mktemp("many")
    return [make_adapter(tiny, folder / f"a{seed}", seed) for seed in range(ADAPTERS + 2)]


def test_the_stand_in_has_the_faults(tiny: Path, folders: list[Path]) -> None:
    def post(path: str, body: Any) -> httpx.Response:
        return http_request("POST", f"{url}{path}", json=body)

    def load(folder: Path) -> int:
        return post("/v1/load_lora_adapter", {"lora_name": "x", "lora_path": str(folder)}).status_code

    def completions(count: int) -> list[httpx.Response]:
        return [post("/v1/completions", {"model": "x", "prompt": [1], "max_tokens": 64}) for _ in range(count)]

    with stand_in(tiny) as url:
        post("/faults", ["stale"])
        assert (load(folders[0]), load(folders[0])) == (200, 400)
        first = completions(1)[0].json()["choices"][0]["text"]
        post("/v1/unload_lora_adapter", {"lora_name": "x"})
        assert load(folders[1]) == 200
        assert completions(1)[0].json()["choices"][0]["text"] == first == digest(folders[0])
        post("/faults", ["in flight"])
        assert {answer.json()["model"] for answer in completions(20)} == {"x", "base"}
        post("/faults", ["one replica"])
        for _ in range(2):  # The fourth adapter is loaded by one server alone.
            post("/v1/unload_lora_adapter", {"lora_name": "x"})
            assert load(folders[1]) == 200
        assert {answer.status_code for answer in completions(20)} == {200, 404}


class Asking:
    """Asks for many answers at once, and counts those that are not of the adapter that was served under the name."""

    def __init__(self, endpoint: Endpoint, expected: dict[str, str], reflectors: list[str]) -> None:
        self.endpoint, self.expected = endpoint, expected
        self.reflectors, self.served = reflectors, 0
        """Digests of the adapters promoted so far, and the number of the one that is certainly served."""
        self.counts = Counter[str]()
        self.lock = threading.Lock()

    def __call__(self, number: int) -> None:
        name = random.Random(number).choice([*self.expected, "reflector"])
        oldest = self.served
        while (answer := ask(self.endpoint, name, stream=number % 5 == 0)).status_code == 503:
            with self.lock:
                self.counts["dropped"] += 1
        assert answer.status_code == 200, answer.text
        allowed = self.reflectors[oldest:] if name == "reflector" else [self.expected[name]]
        whole = (
            "".join(
                json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
                for line in answer.text.splitlines()
                if line.startswith("data: {")
            )
            if number % 5 == 0
            else text_of(answer)
        )
        with self.lock:
            self.counts["answers"] += 1
            self.counts["wrong"] += whole not in allowed


def test_all_answers_are_of_the_adapters_that_were_asked_for_whatever_faults_vllm_has(
    tmp_path: Path, tiny: Path, folders: list[Path]
) -> None:
    run = tmp_path / "runs" / "tiny"
    shutil.copytree(folders[0], run / "sft")
    with stand_in(tiny) as one, stand_in(tiny) as two:
        settings = f"hand_over: true, vllm: {{base_url: {one}/v1, replicas: ['{two}/v1']}}"
        with serving(tmp_path, tiny, settings) as endpoint:
            for url in (one, two):
                http_request("POST", f"{url}/faults", json=FAULTS)
            refused = sum(hand_over(endpoint, f"a{number}", folders[number]) for number in range(1, ADAPTERS))
            expected = {"base": "base", "sft": digest(folders[0])}
            expected |= {f"a{number}": digest(folders[number]) for number in range(1, ADAPTERS)}
            asking = Asking(endpoint, expected, [digest(folders[0])])
            history = History(run)
            with ThreadPoolExecutor(CLIENTS) as clients:
                asked = [clients.submit(asking, number) for number in range(ANSWERS // 2)]
                for number in (8, 9):
                    kept = history.keep("ppo", folders[number])
                    asking.reflectors.append(digest(folders[number]))
                    history.append(history.records(), "promoted", kept, "test")
                    assert becomes_true(
                        lambda sha256=kept.sha256: (
                            asyncio.run(provenance(endpoint.url)).models["reflector"].adapter_sha256 == sha256
                        )
                    )
                    asking.served += 1
                [each.result() for each in asked]
                # The same name, with other weights: vLLM's cache has answers of the earlier ones.
                http_request("POST", f"{endpoint.url}/unload_lora_adapter", json={"lora_name": "a1"})
                assert ask(endpoint, "a1").status_code == 404
                refused += hand_over(endpoint, "a1", folders[9])
                expected["a1"] = digest(folders[9])
                list(clients.map(asking, range(ANSWERS // 2, ANSWERS)))
            assert (asking.counts["answers"], asking.counts["wrong"]) == (ANSWERS, 0)
            assert asking.counts["dropped"] > ANSWERS // 40
            assert refused > 4


@pytest.fixture
def vllm_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {vllm_stand_in.__file__} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{'/usr/bin:/bin'}")


@pytest.mark.usefixtures("vllm_on_path")
def test_serve_starts_vllm_with_its_flags_and_answers_for_it(tmp_path: Path, tiny: Path, folders: list[Path]) -> None:
    shutil.copytree(folders[0], tmp_path / "runs" / "tiny" / "sft")
    with serving(tmp_path, tiny, "dtype: bfloat16, gpu_share: 0.4") as endpoint:
        pid = endpoint.pid_of("serve.supervisor")
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        url = f"http://127.0.0.1:{words[words.index('--port') + 1]}"
        arguments, environment = http_request("GET", f"{url}/arguments").json()
        assert arguments[:3] == ["serve", str(tiny), "--served-model-name"]
        flags = dict(itertools.pairwise(arguments))
        assert (flags["--dtype"], flags["--gpu-memory-utilization"]) == ("bfloat16", "0.4")
        assert (environment, "key" in str(arguments)) == ({"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}, False)
        assert http_request("GET", f"{url}/v1/models").status_code == 401
        here = asyncio.run(provenance(endpoint.url))
        assert (here.dtype, here.versions["vllm"]) == ("bfloat16", "stand-in")
        assert here.models["reflector"].adapter_sha256 == folder_sha256(folders[0])
        assert text_of(ask(endpoint, "reflector")) == text_of(ask(endpoint, "sft")) == digest(folders[0])
        several = http_request(
            "POST",
            f"{endpoint.url}/completions",
            json={"model": "base", "prompt": ["a", "b"], "n": 2, "temperature": 0},
        ).json()
        assert [choice["text"] for choice in several["choices"]] == ["base"] * 4
        assert ask(endpoint, "ppo").json()["error"]["message"] == "No model 'ppo' is served here."
        assert ask(endpoint, "sft", choices=["a"]).json()["error"]["param"] == "choices"
        # What vLLM lost with its process is loaded again.
        (child,) = (int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        (tmp_path / "runs/tiny/sft/adapter_model.safetensors").write_bytes(b"trained again")
        os.kill(child, signal.SIGKILL)
        assert becomes_true(lambda: not runs(pid))
        assert becomes_true(lambda: answers(lambda: ask(endpoint, "sft")))
        assert text_of(ask(endpoint, "sft")) == digest(folders[0])
        started = endpoint.pid_of("serve.supervisor")
    assert becomes_true(lambda: not runs(started))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ("engine: vllm", "there is no program `vllm` on the PATH"),
        (
            "engine: vllm, vllm: {base_url: 'http://127.0.0.1:1/v1'}",
            "Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1",
        ),
        ("vllm: {base_url: 'http://127.0.0.1:1/v1'}", "set serve.engine=vllm, or leave it out"),
    ],
)
def test_what_vllm_cannot_do_is_refused_in_a_sentence(
    settings: str, reason: str, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert reason in refusal(tmp_path, tiny, settings)


def test_a_server_of_another_base_is_refused(tmp_path: Path, tiny: Path, sketch: Path) -> None:
    with stand_in(sketch) as url:
        message = refusal(tmp_path, tiny, f"engine: vllm, vllm: {{base_url: {url}}}")
    assert f"serves {str(sketch)!r} as 'base', and not train.base_model" in message


def test_the_flags_fit_the_base_and_its_adapters(
    tmp_path: Path, tiny: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = shutil.copytree(tiny, tmp_path / "longchat")
    config = json.loads((base / "config.json").read_text()) | {
        "rope_condense_ratio": 8,
        "max_position_embeddings": 2048,
    }
    config |= {"torch_dtype": "float16", "rope_theta": 10000.0}
    (base / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    values: dict[str, Any] = {"base_model": str(base), "lora": {"rank": 12}}
    experiment = Experiment.model_validate(
        {"run": "x", "environment": {"name": "alfworld"}, "train": values, "serve": {"engine": "vllm", "dtype": "auto"}}
    )
    names = ServedNames(adapters={"sft": folders[0]}, aliases={}, best_of={}, quantization="nf4")
    flags = dict(itertools.pairwise(vllm_command(experiment, names)))
    assert (flags["--dtype"], flags["--max-lora-rank"], flags["--max-model-len"]) == ("bfloat16", "16", "16384")
    assert (flags["--quantization"], flags["--max-loras"]) == ("bitsandbytes", "3")
    overrides = json.loads(flags["--hf-overrides"])
    assert overrides["rope_scaling"] == {"rope_type": "linear", "factor": 8.0, "rope_theta": 10000.0}
    assert overrides["max_position_embeddings"] == 16384
