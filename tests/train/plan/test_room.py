"""Tests that a stage which does not fit into the memory of a CPU is refused before the base model is loaded."""

from pathlib import Path

import pytest
import torch

from retroformer.errors import ConfigError
from tests.train.world import collect, config_file, tiny_experiment
from train.__main__ import main
from train.plan.estimate import require_memory
from train.stage import make_stage

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


def test_processes_on_one_machine_share_its_memory(
    tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    stage = make_stage("sft", experiment, [], {})
    free(monkeypatch, 8)
    require_memory(stage, tokens=100)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    with pytest.raises(ConfigError, match="would take about"):
        require_memory(stage, tokens=100)
