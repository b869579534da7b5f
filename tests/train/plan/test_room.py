"""Tests that a stage which does not fit into the memory of a CPU is refused before the base model is loaded."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from retroformer.errors import ConfigError
from tests.support.runs import ROOT
from tests.train.world import collect, config_file
from train.__main__ import main

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="stages would train on the GPU of this machine")
MIB = 1024**2


def free(monkeypatch: pytest.MonkeyPatch, mib: float) -> None:
    """Make the machine look as if this much memory were available."""
    monkeypatch.setattr("train.plan.estimate.available_memory", lambda: int(mib * MIB))


SLOW = [pytest.param(stage, marks=pytest.mark.slow) for stage in ("reward", "ppo")]


@pytest.mark.parametrize("stage", ["sft", "dpo", *SLOW])
def test_a_stage_that_does_not_fit_is_refused_with_what_it_needs(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    if stage in ("dpo", "ppo"):
        main(["sft", str(config)])
    if stage == "ppo":
        main(["reward", str(config)])
    free(monkeypatch, 0.01)
    with pytest.raises(ConfigError) as refused:
        main([stage, str(config)])
    assert str(refused.value).startswith(
        f"`train {stage}` would take about 0.0 GiB on this CPU with micro-batches of 200 tokens "
    )
    assert "take a smaller train.base_model, or train on a GPU (`retroformer train plan" in str(refused.value)
    assert not (workplace / "runs/tiny" / stage).exists()


def test_the_refusal_names_settings_that_fit(tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_file(workplace, tiny_base, batch_size=64, micro_batch_tokens=6400)
    collect(config, tasks=70)
    free(monkeypatch, 8)
    with pytest.raises(
        ConfigError, match=r"micro-batches of 6400 tokens .* set train\.micro_batch_tokens=\d+, or"
    ) as refused:
        main(["sft", str(config)])
    setting = str(refused.value).partition(": set ")[2].partition(", or")[0]
    assert 70 <= int(setting.partition("=")[2]) < 6400
    main(["sft", str(config), setting])


def test_processes_on_one_machine_share_its_memory(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    # As a launcher starts the first of a billion processes.
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": str(10**9)}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "ACCELERATE_USE_CPU": "true"}
    environment = os.environ | place | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "train", "sft", str(config)]
    done = subprocess.run(command, cwd=workplace, env=environment, capture_output=True, text=True, timeout=300)
    assert "would take about" in done.stderr, done.stderr
