from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from retroformer.experiment.sections.train import Optimizer
from tests.train.world import BAD, GOOD, prompt, save_adapter, tiny_experiment
from train.base import load_adapter, load_base, load_tokenizer, lora_config
from train.data.samples import samples
from train.imitation import ResponseTrainer, imitate
from train.stage import finished, make_stage
from train.trainer import run_trainer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
TEXTS = [(prompt(f"task {number}"), GOOD if number % 2 else BAD) for number in range(8)]


def train_once(experiment: Any, optimizer: Optimizer, texts: Any, start: Path | None = None) -> dict[str, Any]:
    stage = make_stage("warm", experiment, optimizer, [text for _, text in texts], {})
    imitate(stage, optimizer, samples(load_tokenizer(experiment.train), texts), start)
    done = finished(stage)
    assert done
    return done.model_dump()


def test_the_loss_equals_that_of_trl_which_runs_the_head_at_all_positions(tiny_base: Path, workplace: Path) -> None:
    from datasets import Dataset
    from trl.trainer.sft_config import SFTConfig
    from trl.trainer.sft_trainer import SFTTrainer

    experiment = tiny_experiment(workplace, tiny_base)
    tokenizer = load_tokenizer(experiment.train)
    rows = [{"input_ids": sample.ids, "labels": sample.labels} for sample in samples(tokenizer, TEXTS)]
    settings = {"use_cpu": True, "bf16": False, "report_to": [], "activation_checkpointing": False}
    trainer: Any = ResponseTrainer(
        model=load_base(experiment.train),
        peft_config=lora_config(experiment.train.lora),
        args=SFTConfig(output_dir=str(workplace), max_length=None, **settings),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(rows),
    )
    batch = trainer.data_collator(rows)
    ours = trainer.compute_loss(trainer.model, dict(batch))
    theirs = SFTTrainer.compute_loss(trainer, trainer.model, dict(batch))
    torch.testing.assert_close(ours, theirs)


def test_a_few_steps_lower_the_loss_and_the_saved_adapter_gives_equal_logits(tiny_base: Path, workplace: Path) -> None:
    # With a rate far above the paper's, so that a few steps have an effect.
    quick = Optimizer(learning_rate=1e-2, batch_size=4, micro_batch_size=2, epochs=8)
    experiment = tiny_experiment(workplace, tiny_base)
    metrics = train_once(experiment, quick, TEXTS)
    assert (metrics["samples"], metrics["steps"]) == (8, 16)
    assert metrics["losses"][-1] < 0.7 * metrics["losses"][0]
    tokenizer = load_tokenizer(experiment.train)
    [sample] = samples(tokenizer, TEXTS[:1])
    ids = torch.tensor([sample.ids])
    folder = workplace / "runs" / "tiny" / "warm"
    first, second = (load_adapter(load_base(experiment.train), folder, experiment.train.lora).eval() for _ in range(2))
    with torch.no_grad():
        torch.testing.assert_close(first(input_ids=ids).logits, second(input_ids=ids).logits, rtol=0, atol=0)
        loss = first(input_ids=ids, labels=torch.tensor([sample.labels])).loss
    assert loss < 0.8 * metrics["losses"][0]


def test_imitation_starts_from_the_given_adapter(tiny_base: Path, workplace: Path) -> None:
    quick = Optimizer(learning_rate=1e-2, batch_size=4, micro_batch_size=4, epochs=8)
    experiment = tiny_experiment(workplace, tiny_base)
    first = train_once(experiment, quick, TEXTS)
    start = workplace / "start"
    (workplace / "runs" / "tiny" / "warm").rename(start)
    second = train_once(experiment, quick.model_copy(update={"epochs": 1}), TEXTS, start)
    assert second["losses"][0] < 0.8 * first["losses"][0]


def test_the_real_small_model_in_4_bits_learns_from_a_few_steps(workplace: Path) -> None:
    quick = Optimizer(learning_rate=3e-3, batch_size=4, micro_batch_size=4, epochs=4)
    experiment = tiny_experiment(workplace, Path("embedded"), quantization="nf4", dtype="auto")
    metrics = train_once(
        experiment, quick, [(prompt("the mug"), GOOD), *((prompt(f"mug {n}"), GOOD) for n in range(3))]
    )
    assert metrics["losses"][-1] < 0.5 * metrics["losses"][0]
    # trl casts the adapter of a 4-bit base to bf16, which would round the paper's steps to nothing.
    weights = load_file(workplace / "runs" / "tiny" / "warm" / "adapter_model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_a_4_bit_base_does_not_round_the_initial_weights(tiny_base: Path, workplace: Path) -> None:
    """Steps of 1e-9 do not change the weights; rounding to bf16 would, by up to 1/512."""
    experiment = tiny_experiment(workplace, tiny_base, quantization="nf4", dtype="bfloat16")
    save_adapter(experiment, workplace / "start", size=0.0123)
    train_once(experiment, Optimizer(learning_rate=1e-9, batch_size=4, micro_batch_size=4), TEXTS, workplace / "start")
    started = load_file(workplace / "start" / "adapter_model.safetensors")
    ended = load_file(workplace / "runs" / "tiny" / "warm" / "adapter_model.safetensors")
    assert started.keys() == ended.keys()
    assert all(torch.allclose(started[name], ended[name], rtol=0, atol=1e-8) for name in started)


def test_a_trainer_that_drops_a_row_is_detected(tiny_base: Path, workplace: Path) -> None:
    settings = tiny_experiment(workplace, tiny_base)
    stage = make_stage("warm", settings, settings.train.warm, [], {})
    with pytest.raises(RuntimeError, match="4 rows of 5"):
        run_trainer(SimpleNamespace(train_dataset=range(4)), stage, 5)
