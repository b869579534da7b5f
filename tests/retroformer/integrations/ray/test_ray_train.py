"""Ray Train starts the processes of a stage, which train as those of a launcher do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.support.runs import ROOT
from tests.train.test_processes import run
from tests.train.world import collect, config_file, save_tiny_model
from train.stage_kinds import STAGES

pytest.importorskip("ray", reason="the extra ray is not installed")
from retroformer.integrations.ray.command import EARLIER_STAGES, ClusterStage, Job, pull_missing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_folder")]


def ray_train(folder: Path, *words: str, paths: str = str(ROOT)) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", "retroformer", "ray-train", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = config_file(tmp_path, save_tiny_model(tmp_path / "base"))
    collect(path)
    return path


def metrics(folder: Path, stage: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "runs/tiny" / stage / "metrics.json").read_text())
    return read


def test_two_processes_train_what_those_of_a_launcher_train(config: Path, tmp_path: Path) -> None:
    launched = tmp_path / "launched"
    shutil.copytree(tmp_path / "runs", launched / "runs")
    assert run(launched, 2, "sft", str(config)).returncode == 0
    done = ray_train(tmp_path, "sft", str(config), "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    ours, theirs = metrics(tmp_path, "sft"), metrics(launched, "sft")
    assert ours["processes"] == theirs["processes"] == 2
    assert ours["adapter_sha256"] == theirs["adapter_sha256"]


def test_adapters_travel_through_the_exchange(config: Path, tmp_path: Path) -> None:
    exchange = f"file://{tmp_path / 'exchange'}"
    done = ray_train(tmp_path, "warm", str(config), "--exchange", exchange)
    assert done.returncode == 0, done.stdout + done.stderr
    warm = metrics(tmp_path, "warm")["adapter_sha256"]
    # Another machine has the store and the config, but no adapter.
    (tmp_path / "runs/tiny/warm").rename(tmp_path / "elsewhere")
    done = ray_train(tmp_path, "sft", str(config), "--exchange", exchange)
    assert done.returncode == 0, done.stdout + done.stderr
    assert metrics(tmp_path, "sft")["inputs"]["adapters"]["start"] == warm
    assert (tmp_path / "exchange/tiny/sft/adapter_model.safetensors").is_file()
    # The next round starts on a third machine, from the newest adapters of the rounds before it.
    shutil.copytree(tmp_path / "exchange/tiny/sft", tmp_path / "exchange/tiny/dpo-2")
    shutil.rmtree(tmp_path / "runs/tiny/sft")
    pull_missing(Job(str(tmp_path), "dpo", str(config), ("round=3",), exchange))
    assert {path.parent.name for path in (tmp_path / "runs/tiny").glob("*/metrics.json")} >= {"sft", "dpo-2"}


def test_a_stage_that_was_stopped_is_started_again(config: Path, tmp_path: Path) -> None:
    stopper = tmp_path / "stopper"
    stopper.mkdir()
    # Python imports this module when it starts: the first process that trains gets SIGTERM after its first checkpoint.
    (stopper / "sitecustomize.py").write_text(
        "import os, signal, sys, threading, time\n"
        "def stop():\n"
        "    while signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:\n"
        "        time.sleep(0.01)\n"
        "    os.close(os.open('stopped', os.O_CREAT | os.O_EXCL))\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "if sys.orig_argv[1:4] == ['-m', 'train', 'sft'] and not os.path.exists('stopped'):\n"
        "    threading.Thread(target=stop, daemon=True).start()\n"
    )
    done = ray_train(tmp_path, "sft", str(config), paths=f"{stopper}:{ROOT}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "stopped").exists()
    assert metrics(tmp_path, "sft")["resumed_from_step"] == 1


def test_every_stage_may_pull_what_it_needs() -> None:
    for name in get_args(ClusterStage):
        assert set(STAGES[name].needs) <= set(EARLIER_STAGES.get(name, ()))
    assert set(get_args(ClusterStage)) == STAGES.keys() - {"sac"}


def test_a_stage_that_fails_is_reported(config: Path, tmp_path: Path) -> None:
    done = ray_train(tmp_path, "ppo", str(config))
    assert done.returncode == 1
    assert "The stage ppo has failed on the cluster" in done.stderr
