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
from tests.train.world import collect, config_file, save_adapter, save_tiny_model, tiny_experiment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]
STAGES = ("warm", "sft", "reward", "dpo", "ppo", "grpo")


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


@pytest.mark.parametrize(("quantization", "dtype"), [("nf4", "bfloat16"), ("none", "float32")])
def test_every_stage_trains_as_a_command(
    quantization: str, dtype: str, guard: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = save_tiny_model(tmp_path / "base", hidden=64)
    rl = {"learning_rate": 3e-3, "batch_size": 8, "updates": 2, "epochs": 2}
    config = config_file(
        tmp_path,
        base,
        quantization=quantization,
        dtype=dtype,
        ppo=rl | {"responses_per_prompt": 2},
        grpo=rl | {"group": 4},
    )
    collect(config)
    for stage in STAGES:
        # Both attentions: GRPO and the reward model by flex attention.
        flex = ("train.attention=flex",) if stage in ("reward", "grpo") else ()
        done = on_card(guard, tmp_path, "train", stage, str(config), *flex)
        assert done.returncode == 0, done.stderr
        assert f"trained {stage}: " in done.stdout, done.stdout
        (operations,) = re.findall(r"(\d+) operations on the card, 0 compilations", done.stdout)
        assert int(operations) > 1000


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
