"""Tests the parts of benchmarks/ppo.py that do not need TRL 1.12."""

import argparse
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel

from benchmarks.ppo import GIB, Figures, Summary, measure, prepare, report, summarise
from benchmarks.ppo_sides import REWARD, SFT, share_frozen_weights
from train.base import load_base

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def sizes(tiny_base: Path) -> argparse.Namespace:
    return argparse.Namespace(
        base_model=str(tiny_base), batch=4, micro_batch=2, prompt=12, response=3, epochs=2, updates=2, draw=None
    )


def test_our_side_takes_its_updates_and_samples_full_responses(sizes: argparse.Namespace, workplace: Path) -> None:
    prepare(workplace, sizes)
    timed = measure("ours", workplace, count_tensors=False)
    assert len(timed.cpu_seconds) == len(timed.wall_seconds) == 2
    assert min(timed.cpu_seconds) > 0
    assert timed.tokens_drawn == 2 * 4 * 3
    assert timed.tensor_bytes == 0


def test_longer_prompts_need_more_memory_and_are_not_timed(sizes: argparse.Namespace, workplace: Path) -> None:
    peaks = []
    for prompt in (12, 96):
        shutil.rmtree(workplace / "work", ignore_errors=True)
        (workplace / "work").mkdir()
        prepare(workplace / "work", argparse.Namespace(**vars(sizes) | {"prompt": prompt}))
        counted = measure("ours", workplace / "work", count_tensors=True)
        assert len(counted.cpu_seconds) == 1
        assert counted.tensor_bytes < counted.resident_bytes
        peaks.append(counted.tensor_bytes)
    assert peaks[1] > 1.5 * peaks[0]


def test_a_scorer_with_shared_weights_gives_the_same_scores(sizes: argparse.Namespace, workplace: Path) -> None:
    train = prepare(workplace, sizes).train
    base = load_base(train, scores=True)
    scorer: Any = PeftModel.from_pretrained(base, workplace / REWARD).get_base_model().eval()
    owner: Any = PeftModel.from_pretrained(load_base(train), workplace / SFT).get_base_model()
    ids = torch.tensor([[1, 9, 8, 7, 6]])
    with torch.no_grad():
        before = scorer(input_ids=ids).logits
        share_frozen_weights(scorer, owner)
        torch.testing.assert_close(scorer(input_ids=ids).logits, before, rtol=0, atol=0)
    projection = scorer.model.layers[0].self_attn.q_proj
    assert projection.base_layer.weight is owner.model.layers[0].self_attn.q_proj.base_layer.weight
    assert projection.lora_A["default"].weight.shape[0] == train.lora.rank


def test_ratios_are_of_medians_and_of_both_kinds_of_memory_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    first = Figures([9.0, 10.0], [18.0, 20.0], 2 * GIB, 0, 48)
    second = Figures([11.0], [30.0], 3 * GIB, 0, 24)
    mine = summarise([first, second], Figures([], [], 0, GIB, 24))
    assert mine == Summary(10.0, 20.0, GIB, 2.5 * GIB)
    report({"ours": mine, "trl": Summary(25.0, 30.0, 4 * GIB, 5 * GIB)})
    memory, speed = capsys.readouterr().out.splitlines()[-2:]
    assert memory == "ours / trl: peak memory 0.25 of tensors, 0.50 of the process (aim: at most 0.5)"
    assert speed == "ours / trl: updates a second 2.50 by CPU time, 1.50 by the clock (aim: at least 2.0)"
