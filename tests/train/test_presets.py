"""The configs of Retroformer's own experiments have the settings of its appendix C."""

from pathlib import Path

import pytest
import torch

from retroformer.config.file import load
from retroformer.models.precision import nf4
from tests.support.runs import ROOT
from train.base import read_config
from train.plan.estimate import GIB, USABLE_SHARE, cases, estimate
from train.plan.shape import shape_of

CONFIGS = [ROOT / "configs" / "paper" / f"{name}.yaml" for name in ("hotpotqa", "alfworld", "webshop")]
by_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def _elsewhere(workplace: Path) -> None:
    """Change to an empty folder, so that no file beside the configs matters."""


@by_config
def test_a_config_trains_every_stage_with_the_paper_s_settings(config: Path) -> None:
    train = load(config).train
    sft, reward, ppo = train.sft, train.reward, train.ppo
    assert (sft.learning_rate, train.batch_size, sft.epochs) == (1e-5, 32, 2)
    assert (reward.learning_rate, reward.epochs) == (2.5e-5, 1)
    assert (ppo.learning_rate, ppo.batch_size, ppo.epochs) == (1.4e-5, 64, 4)


@by_config
def test_a_config_samples_as_the_paper_does(config: Path) -> None:
    experiment = load(config)
    assert (experiment.loop.trials, experiment.collect.candidates) == (3, 2)
    assert (experiment.reflector.temperature, experiment.reflector.max_new_tokens) == (0.9, 128)
    assert experiment.actor.temperature == 0


@by_config
def test_a_config_holds_longchat_in_4_bits(config: Path) -> None:
    train = load(config).train
    assert (train.base_model, train.quantization, train.dtype) == ("lmsys/longchat-7b-16k", "nf4", "bfloat16")
    held = nf4(torch.bfloat16)
    assert (held.bnb_4bit_quant_type, held.bnb_4bit_use_double_quant) == ("nf4", True)
    assert held.bnb_4bit_compute_dtype == torch.bfloat16


@by_config
@pytest.mark.parametrize(("rank", "millions"), [(1, 0.53), (4, 2.25)])
def test_the_adapters_of_a_config_have_about_the_paper_s_sizes(config: Path, rank: int, millions: float) -> None:
    assert load(config).train.lora.rank == 4
    train = load(config, [f"train.lora.rank={rank}"]).train
    parameters = shape_of(read_config(train.base_model)).adapter_parameters(train.lora)
    # Rank x (4096 + 4096) for queries and values of 32 layers.
    assert parameters == rank * 8192 * 2 * 32
    assert parameters / 1e6 == pytest.approx(millions, rel=0.07)


@by_config
def test_every_stage_of_a_config_fits_a_24_gb_card_at_its_longest_samples(config: Path) -> None:
    experiment = load(config)
    shape = shape_of(read_config(experiment.train.base_model))
    planned = cases(experiment, shape, "cuda", experiment.train.max_length)
    fitting = {stage.kind.name for stage in planned if estimate(stage).peak <= USABLE_SHARE["cuda"] * 24 * GIB}
    assert experiment.train.model_fields_set & {stage.kind.name for stage in planned} <= fitting
    assert {"sft", "reward", "ppo"} <= fitting
