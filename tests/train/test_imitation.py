from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retroformer.models.loading import load_adapter
from tests.train.world import BAD, GOOD, prompt, save_adapter, tiny_experiment
from train.adapter import require_adapter
from train.base import load_base, load_tokenizer
from train.data.samples import AdviceText, samples
from train.imitation import imitate
from train.stage import finished, make_stage

TEXTS = [AdviceText(prompt(f"task {number}"), GOOD if number % 2 else BAD) for number in range(8)]


def train_once(experiment: Any, texts: Any, start: Path | None = None) -> dict[str, Any]:
    stage = make_stage("sft", experiment, [advice.text for advice in texts], {})
    imitate(stage, texts, {"start": require_adapter(start)} if start else {})
    done = finished(stage)
    assert done
    return done.model_dump()


def test_a_few_steps_lower_the_loss_and_the_saved_adapter_gives_equal_logits(tiny_base: Path, workplace: Path) -> None:
    # With a rate far above the paper's, so that a few steps have an effect.
    experiment = tiny_experiment(workplace, tiny_base, sft={"learning_rate": 1e-2, "epochs": 8})
    metrics = train_once(experiment, TEXTS)
    assert (metrics["samples"], metrics["steps"]) == (8, 16)
    assert metrics["losses"][-1] < 0.7 * metrics["losses"][0]
    tokenizer = load_tokenizer(experiment.train)
    [sample] = samples(tokenizer, TEXTS[:1])
    ids = torch.tensor([sample.ids])
    folder = workplace / "runs" / "tiny" / "sft"
    first, second = (load_adapter(load_base(experiment.train), folder).eval() for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(first(input_ids=ids).logits, second(input_ids=ids).logits, rtol=0, atol=0)
        labels = torch.tensor([[-100] * len(sample.prompt_ids) + sample.response_ids])
        loss = first(input_ids=ids, labels=labels).loss
    assert loss < 0.8 * metrics["losses"][0]


def test_imitation_starts_from_the_given_adapter(tiny_base: Path, workplace: Path) -> None:
    first, again = (
        tiny_experiment(workplace, tiny_base, sft={"learning_rate": 1e-2, "epochs": epochs}) for epochs in (8, 1)
    )
    before = train_once(first, TEXTS)
    start = workplace / "start"
    (workplace / "runs" / "tiny" / "sft").rename(start)
    after = train_once(again, TEXTS, start)
    assert after["losses"][0] < 0.8 * before["losses"][0]


@pytest.mark.slow
def test_the_real_small_model_in_4_bits_learns_from_a_few_steps(workplace: Path) -> None:
    quick: Any = {"quantization": "nf4", "dtype": "auto", "sft": {"learning_rate": 3e-3, "epochs": 4}}
    experiment = tiny_experiment(workplace, Path("embedded"), **quick)
    metrics = train_once(
        experiment, [AdviceText(prompt("the mug"), GOOD), *(AdviceText(prompt(f"mug {n}"), GOOD) for n in range(3))]
    )
    assert metrics["losses"][-1] < 0.5 * metrics["losses"][0]
    # In bf16 the paper's steps would be rounded to nothing.
    weights = load_file(workplace / "runs" / "tiny" / "sft" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_a_4_bit_base_does_not_round_the_initial_weights(tiny_base: Path, workplace: Path) -> None:
    """Steps of 1e-9 do not change the weights; rounding to bf16 would, by up to 1/512."""
    still: Any = {"quantization": "nf4", "dtype": "bfloat16", "sft": {"learning_rate": 1e-9}}
    experiment = tiny_experiment(workplace, tiny_base, **still)
    save_adapter(experiment, workplace / "start", size=0.0123)
    train_once(experiment, TEXTS, workplace / "start")
    started = load_file(workplace / "start" / "adapter_model.safetensors")
    ended = load_file(workplace / "runs" / "tiny" / "sft" / "adapter_model.safetensors")
    assert started.keys() == ended.keys()
    assert all(torch.allclose(started[name], ended[name], rtol=0, atol=1e-8) for name in started)
