"""Stages in two processes, as a launcher starts them, compared with the same stages in one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.endpoint import Endpoint
from tests.train.rl.test_grpo_stage import moody_scholar, quiz
from tests.train.world import collect, config_file, trained
from train import processes

REPOSITORY = Path(__file__).parents[2]
# Without GPUs, so that two processes can run on a machine with one GPU.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": str(REPOSITORY),
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "OMP_NUM_THREADS": "1",
}
LAUNCHER = ("-m", "torch.distributed.run", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")
ROUNDING = 1e-5
"""Tolerance of losses of order 1: fp32 has 7 digits, and gradients are summed in another order in each step."""


@pytest.mark.parametrize(("visible", "kept"), [(None, [0]), ("2,3", [2]), ("GPU-ab,GPU-cd", ["GPU-ab"]), ("", [])])
def test_a_stage_without_a_launcher_uses_one_of_the_visible_cards(
    visible: str | None, kept: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with processes.process_group():
        assert torch.cuda._parse_visible_devices() == kept


def run(folder: Path, number: int | None, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of train in this number of launched processes, or without a launcher for None."""
    # Without a folder for logs, the launcher would leave one in the temporary folder.
    logs = str(folder / "launcher")
    launcher = () if number is None else (*LAUNCHER, "--log-dir", logs, "--nproc-per-node", str(number))
    command = [sys.executable, *launcher, "-m", "train", *words]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)


def both(folder: Path, alone: int | None, stage: str, config: Path, *overrides: str) -> list[dict[str, Any]]:
    """Return the metrics of a stage in one process (`alone`: with or without a launcher) and in two."""
    other = folder / "other"
    shutil.copytree(folder / "runs", other / "runs")
    metrics = []
    for place, number in ((folder, alone), (other, 2)):
        done = run(place, number, stage, str(config), "train.weak_reward_model=allow", *overrides)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(f"trained {stage}: runs/tiny/{stage} (") == 1
        assert done.stderr.count(f"train {stage}  ") == 1, "two processes show their progress"
        metrics.append(json.loads((place / "runs/tiny" / stage / "metrics.json").read_text()))
        assert (place / "runs/tiny" / stage / "adapter_model.safetensors").is_file()
    assert [finished["processes"] for finished in metrics] == [1, 2]
    return metrics


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["packed", "trl"])
@pytest.mark.parametrize("stage", ["dpo", "sft", "reward"])
def test_two_processes_train_as_one_process_does(tiny_base: Path, workplace: Path, stage: str, trainer: str) -> None:
    # Eight micro-batches per step, with an incomplete last batch: 36 rows of sft, 30 of reward and dpo.
    many = {"learning_rate": 3e-3, "epochs": 3}
    stages: dict[str, Any] = {"sft": many, "reward": {**many, "batch_size": 8}, "dpo": many}
    config = trained(workplace, tiny_base, trainer=trainer, batch_size=8, micro_batch_tokens=100, **stages)
    alone, shared = both(workplace, None, stage, config)
    assert alone["fingerprint"] == shared["fingerprint"]
    assert alone["steps"] == shared["steps"] == {"sft": 5, "reward": 4, "dpo": 4}[stage]
    assert shared["losses"] == pytest.approx(alone["losses"], rel=ROUNDING)
    assert alone["losses"][-1] < 0.95 * alone["losses"][0], "nothing was learned"


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ppo", "grpo"])
def test_two_processes_run_ppo_as_one_process_does(tiny_base: Path, workplace: Path, stage: str) -> None:
    quick = {"learning_rate": 3e-3, "batch_size": 8, "updates": 3, "epochs": 2}
    sizes: Any = {"ppo": quick, "grpo": quick | {"group": 4}}
    config = trained(workplace, tiny_base, **sizes)
    shutil.move(workplace / "runs/tiny/sft", workplace / "sft")
    trained(workplace, tiny_base, "reward", **sizes)
    shutil.move(workplace / "sft", workplace / "runs/tiny/sft")
    measured = workplace / "runs/tiny/reward/metrics.json"
    scale = {"train_score_mean": 0.0, "train_score_deviation": 1.0, "held_out_pairs": 0}
    measured.write_text(json.dumps(json.loads(measured.read_text()) | scale))
    # Under a launcher each micro-batch has its own seed, in one process as in two.
    alone, shared = both(workplace, 1, stage, config)
    assert alone["updates"] == shared["updates"] == 3
    for expected, update in zip(alone["history"], shared["history"], strict=True):
        assert expected["gradient_norm"] > 0
        assert update == pytest.approx(expected, rel=1e-4, abs=ROUNDING)


@pytest.mark.slow
@pytest.mark.parametrize("dapo", [False, True])
def test_two_processes_train_on_live_returns_that_one_of_them_plays(
    tiny_base: Path, workplace: Path, dapo: bool
) -> None:
    with Endpoint(moody_scholar) as scholar:
        config = quiz(workplace, tiny_base, scholar.url)
        # Of groups of two, half are equal and refilled.
        overrides = (f"train.grpo.dapo={dapo}", f"train.grpo.group={2 if dapo else 4}")
        alone, shared = both(workplace, 1, "grpo", config, *overrides)
        # Both runs tried the same texts, each once.
        texts = {request["messages"][-1]["content"] for request in scholar.requests}
    assert len(texts) > 4
    for expected, update in zip(alone["history"], shared["history"], strict=True):
        assert update == pytest.approx(expected, rel=1e-4, abs=ROUNDING)
    assert any(0 < update["score"] < 1 for update in shared["history"])
    assert any(update.get("refilled") for update in shared["history"]) is dapo


@pytest.mark.slow
def test_a_stage_of_one_process_ends_every_process_with_one_error(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    refused = run(workplace, 2, "sac", str(config))
    assert refused.returncode != 0
    assert refused.stderr.count("`train sac` runs in one process, and a launcher has started 2") == 1


@pytest.mark.slow
def test_processes_that_see_different_checkpoints_do_not_train_together(tiny_base: Path, workplace: Path) -> None:
    """As on two machines without a shared disk, after a restart: only the first one has checkpoints."""
    config = config_file(workplace, tiny_base)
    collect(config)
    script = workplace / "node.py"
    script.write_text(
        "import os, runpy, sys\n"
        "os.chdir(os.path.join('nodes', os.environ['RANK']))\n"
        "sys.argv = ['train', *sys.argv[1:]]\n"
        "runpy.run_module('train', run_name='__main__', alter_sys=True)\n"
    )
    for node in "01":
        shutil.copytree(workplace / "runs", workplace / "nodes" / node / "runs")
    words = ["--log-dir", str(workplace / "logs"), "--nproc-per-node", "2", str(script), "sft", str(config)]
    command = [sys.executable, *LAUNCHER, *words]

    def run_nodes() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=workplace, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)

    assert run_nodes().returncode == 0
    assert not (workplace / "nodes/1/runs/tiny/sft").exists(), "the main process writes"
    done = run_nodes()
    assert done.returncode != 0
    assert "do not see the same inputs, results and checkpoints" in done.stderr


SLOW_PROCESS = """
import time
from datetime import timedelta
import torch
from train import processes

processes.LONGEST_EXCHANGE = timedelta(seconds=1)
with processes.process_group():
    assert processes.each(range(2), lambda number: time.sleep(3 * number) or number) == [0, 1]
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    time.sleep(3 * processes.is_main())
    processes.sum_gradients([parameter])
    assert parameter.grad == 2
"""


@pytest.mark.slow
def test_waiting_for_a_slow_process_takes_longer_than_an_exchange_may(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SLOW_PROCESS)
    command = [sys.executable, *LAUNCHER, "--log-dir", str(tmp_path), "--nproc-per-node", "2", str(script)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_a_launcher_work_is_done_in_order_in_this_process() -> None:
    assert (processes.count(), processes.is_main(), processes.screen()) == (1, True, None)
    assert processes.each(range(3), lambda number: number * number) == [0, 1, 4]
    assert processes.total(2.5) == 2.5
