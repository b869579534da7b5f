from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retroformer.train_sections import Optimizer
from tests.train.world import BAD, GOOD, experiment, prompt, save_adapter
from train.base import load_adapter, load_base, load_tokenizer, lora_config
from train.dataset import samples
from train.imitation import ResponseTrainer, imitate
from train.stage import finished, make_stage

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
TEXTS = [(prompt(f"task {number}"), GOOD if number % 2 else BAD) for number in range(8)]


def train_once(page: Any, optimizer: Optimizer, texts: Any, start: Path | None = None) -> dict[str, Any]:
    stage = make_stage("warm", page, optimizer, [text for _, text in texts], {})
    imitate(stage, optimizer, samples(load_tokenizer(page.train), texts), start)
    metrics = finished(stage)
    assert metrics
    return metrics


def test_the_loss_is_that_of_trl_which_runs_the_head_everywhere(tiny_base: Path, workplace: Path) -> None:
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    page = experiment(workplace, tiny_base)
    tokenizer = load_tokenizer(page.train)
    rows = [{"input_ids": one.ids, "labels": one.labels} for one in samples(tokenizer, TEXTS)]
    settings = {"use_cpu": True, "bf16": False, "report_to": [], "activation_checkpointing": False}
    trainer: Any = ResponseTrainer(
        model=load_base(page.train),
        peft_config=lora_config(page.train.lora),
        args=SFTConfig(output_dir=str(workplace), max_length=None, **settings),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
    )
    batch = trainer.data_collator(rows)
    ours = trainer.compute_loss(trainer.model, dict(batch))
    theirs = SFTTrainer.compute_loss(trainer, trainer.model, dict(batch))
    torch.testing.assert_close(ours, theirs)


def test_a_few_steps_lower_the_loss_and_the_saved_adapter_gives_equal_logits(tiny_base: Path, workplace: Path) -> None:
    # A rate far above the paper's, so that a few steps show.
    quick = Optimizer(learning_rate=1e-2, batch_size=4, micro_batch_size=2, epochs=8)
    page = experiment(workplace, tiny_base)
    metrics = train_once(page, quick, TEXTS)
    assert (metrics["samples"], metrics["steps"]) == (8, 16)
    assert metrics["losses"][-1] < 0.7 * metrics["losses"][0]
    tokenizer = load_tokenizer(page.train)
    [sample] = samples(tokenizer, TEXTS[:1])
    ids = torch.tensor([sample.ids])
    folder = workplace / "runs" / "tiny" / "warm"
    first, second = (load_adapter(load_base(page.train), folder, page.train.lora).eval() for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(first(input_ids=ids).logits, second(input_ids=ids).logits, rtol=0, atol=0)
        loss = first(input_ids=ids, labels=torch.tensor([sample.labels])).loss
    assert loss < 0.8 * metrics["losses"][0]


def test_imitation_goes_on_from_the_adapter_it_is_given(tiny_base: Path, workplace: Path) -> None:
    quick = Optimizer(learning_rate=1e-2, batch_size=4, micro_batch_size=4, epochs=8)
    page = experiment(workplace, tiny_base)
    first = train_once(page, quick, TEXTS)
    start = workplace / "start"
    (workplace / "runs" / "tiny" / "warm").rename(start)
    second = train_once(page, quick.model_copy(update={"epochs": 1}), TEXTS, start)
    assert second["losses"][0] < 0.8 * first["losses"][0]


def test_the_real_small_model_in_4_bits_learns_from_a_few_steps(workplace: Path) -> None:
    quick = Optimizer(learning_rate=3e-3, batch_size=4, micro_batch_size=4, epochs=4)
    page = experiment(workplace, Path("embedded"), quantization="nf4", dtype="bfloat16")
    metrics = train_once(page, quick, [(prompt("the mug"), GOOD), *((prompt(f"mug {n}"), GOOD) for n in range(3))])
    assert metrics["losses"][-1] < 0.5 * metrics["losses"][0]
    # trl makes the adapter of a 4-bit base bf16, in which the paper's steps are lost.
    weights = load_file(workplace / "runs" / "tiny" / "warm" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_the_weights_that_training_starts_from_are_not_rounded_by_a_4_bit_base(
    tiny_base: Path, workplace: Path
) -> None:
    """Steps of 1e-9 leave them as they are; rounded to bf16 they would be off by up to 1/512 of themselves."""
    page = experiment(workplace, tiny_base, quantization="nf4", dtype="bfloat16")
    save_adapter(page, workplace / "start", size=0.0123)
    train_once(page, Optimizer(learning_rate=1e-9, batch_size=4, micro_batch_size=4), TEXTS, workplace / "start")
    started = load_file(workplace / "start" / "adapter_model.safetensors")
    ended = load_file(workplace / "runs" / "tiny" / "warm" / "adapter_model.safetensors")
    assert started.keys() == ended.keys()
    assert all(torch.allclose(started[name], ended[name], rtol=0, atol=1e-8) for name in started)
