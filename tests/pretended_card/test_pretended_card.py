"""Stages and the server's engine on a card that does not exist: what a card refuses is refused, numbers are a CPU's."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from tests.support.runs import ROOT
from tests.train.killed import copy_of_run
from tests.train.world import collect, config_file, metrics, save_adapter, save_tiny_model, tiny_experiment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
# Both attentions: GRPO and the reward model by flex attention.
COMMANDS = ("warm", "sft", "reward train.attention=flex", "dpo", "ppo", "grpo train.attention=flex")


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device guard, compiled for this torch."""
    library = tmp_path_factory.mktemp("guard") / "guard.so"
    torch_folder = Path(torch.__file__).parent
    headers = (
        sysconfig.get_paths()["include"],
        torch_folder / "include",
        torch_folder / "include/torch/csrc/api/include",
    )
    command = ["g++", "-O0", "-std=c++20", "-fPIC", "-shared", *(f"-I{folder}" for folder in headers)]
    command += [str(Path(__file__).with_name("guard.cpp")), "-o", str(library), f"-L{torch_folder / 'lib'}"]
    subprocess.run([*command, "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_folder / 'lib'}"], check=True)
    return library


def on_card(guard: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "GUARD": str(guard),
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # Two cards are visible.
    command = [sys.executable, "-m", "tests.pretended_card.run", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(("quantization", "dtype", "resumes"), [("nf4", "bfloat16", True), ("none", "float32", False)])
def test_every_stage_trains_as_a_command(
    quantization: str, dtype: str, resumes: bool, guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it `resumes`, each stage is also stopped after a step and goes on, and ends as it does in one go."""
    monkeypatch.chdir(tmp_path)
    base = save_tiny_model(tmp_path / "base", hidden=64)
    twice = {"learning_rate": 3e-3, "epochs": 2}
    rl = twice | {"batch_size": 8, "updates": 3}
    config = config_file(
        tmp_path,
        base,
        quantization=quantization,
        dtype=dtype,
        sft=twice,
        reward=twice,
        dpo=twice,
        ppo=rl | {"responses_per_prompt": 2},
        grpo=rl | {"group": 4},
    )
    collect(config)
    again = copy_of_run(tmp_path, "again")
    for command in COMMANDS:
        stage, *overrides = command.split()
        done = on_card(guard, tmp_path, "train", stage, str(config), *overrides)
        assert done.returncode == 0, done.stderr
        assert f"trained {stage}: " in done.stdout, done.stdout
        (operations,) = re.findall(r"(\d+) operations on the card, 0 compilations", done.stdout)
        assert int(operations) > 1000
    if resumes:
        done = on_card(guard, again, "resume", str(config), *COMMANDS)
        assert done.returncode == 0, done.stderr
        for stage in (command.split()[0] for command in COMMANDS):
            whole, resumed = metrics(tmp_path, stage), metrics(again, stage)
            assert max(resumed.get("resumed_from_step", 0), resumed.get("resumed_from_update", 0)) >= 1, stage
            assert resumed["adapter_sha256"] == whole["adapter_sha256"], stage


def test_the_engine_answers_in_every_precision(guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = save_tiny_model(tmp_path / "base", hidden=64)
    save_adapter(tiny_experiment(tmp_path, base), tmp_path / "first", size=0.05)
    done = on_card(guard, tmp_path, "engine", str(base), str(tmp_path / "first"))
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert [fact["precision"] for fact in facts] == [
        f"{kind} {dtype}" for kind in ("none", "nf4") for dtype in ("float32", "bfloat16")
    ]
    for fact in facts:
        assert fact == {
            "device": "cuda",
            "precision": fact["precision"],
            "repeated": True,
            "alone": 6,
            "tokens": 36,
            "sampled": 6,
            "chosen": 3,
        }
