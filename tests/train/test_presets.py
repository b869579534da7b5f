"""The pages of Retroformer's own experiments hold the settings of its appendix C."""

from pathlib import Path

import pytest
import torch

from retroformer.config import Experiment
from retroformer.config_file import load
from tests.support.runs import ROOT
from train.architecture import architecture, read_config
from train.base import quantization
from train.memory import USABLE_SHARE, adapter_parameters, setting_of
from train.plan import GIB, PAPER_MILLIONS, memories

PAGES = [ROOT / "configs" / "paper" / f"{name}.yaml" for name in ("hotpotqa", "alfworld", "webshop")]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)


@pytest.fixture(autouse=True)
def _elsewhere(workplace: Path) -> None:
    """Nothing that lies beside the pages counts."""


@by_page
def test_a_page_trains_every_stage_with_the_paper_s_settings(page: Path) -> None:
    train = load(page).train
    sft, reward, ppo = train.sft, train.reward, train.ppo
    assert (sft.learning_rate, sft.batch_size, sft.epochs) == (1e-5, 32, 2)
    assert (reward.learning_rate, reward.batch_size) == (2.5e-5, 32)
    assert (ppo.learning_rate, ppo.batch_size, ppo.epochs) == (1.4e-5, 64, 4)


@by_page
def test_a_page_samples_as_the_paper_does(page: Path) -> None:
    experiment = load(page)
    assert (experiment.loop.trials, experiment.collect.candidates) == (3, 2)
    assert (experiment.reflector.temperature, experiment.reflector.max_new_tokens) == (0.9, 128)
    assert experiment.actor.temperature == 0


@by_page
def test_a_page_holds_longchat_in_4_bits_with_its_condensed_positions(page: Path) -> None:
    train = load(page).train
    assert (train.base_model, train.quantization, train.dtype) == ("lmsys/longchat-7b-16k", "nf4", "bfloat16")
    held = quantization(train)
    assert (held.bnb_4bit_quant_type, held.bnb_4bit_use_double_quant) == ("nf4", True)
    assert held.bnb_4bit_compute_dtype == torch.bfloat16
    rope = read_config(train.base_model).config.rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 8.0, 10000.0)


@by_page
@pytest.mark.parametrize(("rank", "parameters"), [(1, 524_288), (4, 2_097_152)])
def test_the_adapters_of_a_page_have_about_the_paper_s_sizes(page: Path, rank: int, parameters: int) -> None:
    assert load(page).train.lora.rank == 4
    train = load(page, [f"train.lora.rank={rank}"]).train
    found = adapter_parameters(architecture(read_config(train.base_model).config), train.lora)
    # Rank x (4096 + 4096) for queries and values of 32 layers; the paper counts 0.53 and 2.25 million.
    assert found == rank * 8192 * 2 * 32 == parameters
    assert found / 1e6 == pytest.approx(PAPER_MILLIONS[rank], rel=0.07)


@by_page
def test_every_stage_that_a_page_names_fits_a_card_of_24_gb_at_its_longest_samples(page: Path) -> None:
    experiment: Experiment = load(page)
    shape = architecture(read_config(experiment.train.base_model).config)
    planned = memories(experiment, shape, setting_of(experiment.train, on_gpu=True), experiment.train.max_length)
    fitting = {one.kind.name for one in planned if one.peak <= USABLE_SHARE * 24 * GIB}
    assert experiment.train.model_fields_set & {one.kind.name for one in planned} <= fitting
    assert {"sft", "reward", "ppo"} <= fitting
