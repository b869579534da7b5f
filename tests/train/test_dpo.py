"""DPO on a tiny model: trl's loss, resumption after a kill, and the published adapter."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from retroformer.config.experiment import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import PreferencePair
from retroformer.models.loading import load_adapter
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import BAD, GOOD, collect, config_file, metrics, prompt, tiny_experiment
from train.__main__ import main
from train.adapter import require_adapter
from train.base import add_fresh_adapter, load_base, load_tokenizer, switched_to
from train.data.samples import SamplePair, prompt_ids, response_ids, sample_pairs
from train.dpo import dpo_trainer, response_sums, train_by_dpo
from train.group_trainer import GroupTrainer
from train.losses import BETA, implicit_rewards, preference_loss
from train.pair_split import held_out_tasks
from train.shared_prompt.attention import SPLIT
from train.shared_prompt.packed import Group, Groups, group_of, pack
from train.shared_prompt.reading import trunk_of
from train.stage import Stage, finished, make_stage

PAIRS = [
    PreferencePair(task_id=f"task {n}", prompt=prompt(f"task {n}"), chosen=GOOD, rejected=BAD, margin=1.0)
    for n in range(20)
]
QUICK = {"learning_rate": 1e-2, "epochs": 2}


def sft_adapter(folder: Path, experiment: Experiment) -> Path:
    """Save an adapter that differs from the base, unlike a fresh one."""
    torch.manual_seed(0)
    model: Any = add_fresh_adapter(load_base(experiment.train), experiment.train.lora)
    disturb(model, ".default.")
    model.save_pretrained(folder / "sft")
    return folder / "sft"


def disturb(model: Any, name: str) -> None:
    for parameter_name, parameter in model.named_parameters():
        if "lora_B" in parameter_name and name in parameter_name:
            parameter.data += 0.05 * torch.randn_like(parameter)


def stage_of(experiment: Experiment, sft: Path) -> Stage:
    return make_stage("dpo", experiment, [pair.model_dump() for pair in PAIRS], {"start": require_adapter(sft)})


def two_pairs(experiment: Experiment) -> list[SamplePair]:
    """Return two pairs of different lengths, so that batches are padded."""
    longer = PAIRS[1].model_copy(update={"prompt": prompt("a much longer task"), "chosen": GOOD * 2})
    return list(sample_pairs(load_tokenizer(experiment.train), [PAIRS[0], longer]))


def groups_of(pairs: list[SamplePair]) -> list[Group]:
    return [group_of([pair])._replace(number=number) for number, pair in enumerate(pairs)]


def trainer_of(experiment: Experiment, sft: Path, pairs: list[SamplePair]) -> GroupTrainer:
    return dpo_trainer(stage_of(experiment, sft), sft, Groups(pairs, experiment.train.micro_batch_tokens))


def first_loss(trainer: GroupTrainer, pairs: list[SamplePair]) -> Tensor:
    trainer.model.train()
    groups = groups_of(pairs)
    packed = pack(groups)
    return trainer.reader.objective.loss(trainer.reader.read(packed), packed, groups, groups)


def test_dpo_trains_on_the_served_prompt_and_the_whole_response(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    tokenizer = load_tokenizer(experiment.train)
    packed = pack(groups_of(two_pairs(experiment)))
    for number, text in enumerate((GOOD, BAD, GOOD * 2, BAD)):
        asked = prompt_ids(tokenizer, (PAIRS[0].prompt, prompt("a much longer task"))[number // 2])
        said = packed.token_N[packed.response_N == number].tolist()
        assert said == response_ids(tokenizer, text)
        assert said[-1] == tokenizer.eos_token_id
        assert packed.ids_BL[number // 2, : len(asked)].tolist() == asked


@pytest.mark.parametrize(("quantization", "dtype"), [("none", "float32"), ("none", "bfloat16"), ("nf4", "bfloat16")])
def test_policy_and_reference_start_equal_so_the_first_loss_is_log_2(
    tiny_base: Path, workplace: Path, quantization: str, dtype: str
) -> None:
    experiment = tiny_experiment(workplace, tiny_base, quantization=quantization, dtype=dtype, dpo=QUICK)
    pairs, sft = two_pairs(experiment), sft_adapter(workplace, experiment)
    config = sft / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_dropout": 0.5}))
    trainer = trainer_of(experiment, sft, pairs)
    loss = first_loss(trainer, pairs)
    # The reference reads each failure alone, so it rounds otherwise.
    torch.testing.assert_close(loss, torch.tensor(math.log(2)), rtol=0, atol=1e-5 if dtype == "float32" else 1e-2)
    loss.backward()  # type: ignore[no-untyped-call]
    learns = {name for name, parameter in trainer.model.named_parameters() if parameter.grad is not None}
    assert learns
    assert all(".default." in name for name in learns)
    assert {parameter.dtype for name, parameter in trainer.model.named_parameters() if "lora" in name} == {
        torch.float32
    }


def test_policy_and_reference_are_read_with_the_same_attention(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base, dtype="bfloat16")
    trainer = trainer_of(experiment, sft_adapter(workplace, experiment), two_pairs(experiment))
    before = trunk_of(trainer.model).config._attn_implementation
    trainer.train()
    assert before == trunk_of(trainer.model).config._attn_implementation == SPLIT


def test_log_probabilities_agree_with_the_plain_model(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base)
    sft, pairs = sft_adapter(workplace, experiment), two_pairs(experiment)
    plain = load_adapter(load_base(experiment.train), sft).eval()
    expected = []
    for asked, said in ((pair.prompt_ids, response) for pair in pairs for response in pair.responses):
        log_probs_LV = plain(input_ids=torch.tensor([asked + said])).logits[0].log_softmax(dim=-1)
        expected.append(sum(log_probs_LV[len(asked) + n - 1, token].item() for n, token in enumerate(said)))
    trainer = trainer_of(experiment, sft, pairs)
    disturb(trainer.model, ".default.")
    with switched_to(trainer.model, "ref"):
        sums = [response_sums(trainer.reader, group) for group in groups_of(pairs)]
    torch.testing.assert_close(torch.cat(sums), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def test_pairs_of_unseen_tasks_are_ordered_and_the_adapter_loads_alone(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base, checkpoint_steps=50, dpo=QUICK)
    sft = sft_adapter(workplace, experiment)
    stage = stage_of(experiment, sft)
    train_by_dpo(stage, PAIRS, {"start": require_adapter(sft)})
    done = finished(stage)
    assert done
    metrics = done.model_dump()
    assert (metrics["pairs"], metrics["held_out_pairs"], metrics["steps"]) == (18, 2, 9)
    assert metrics["held_out_tasks"] == sorted(held_out_tasks([pair.task_id for pair in PAIRS], experiment.seed))
    assert metrics["losses"][0] == pytest.approx(math.log(2), abs=1e-3)
    assert metrics["losses"][-1] < 0.3
    assert (metrics["train_accuracy"], metrics["held_out_accuracy"]) == (1.0, 1.0)
    assert metrics["held_out_margin"] == pytest.approx(
        metrics["held_out_chosen_reward"] - metrics["held_out_rejected_reward"], abs=1e-5
    )
    assert {path.name for path in stage.folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.yaml",
        "metrics.json",
        "README.md",
    }
    [group] = groups_of(two_pairs(experiment)[:1])
    sums = [response_sums(trainer_of(experiment, folder, []).reader, group) for folder in (stage.folder, sft)]
    chosen, rejected = implicit_rewards(sums[0], sums[1], BETA)
    assert preference_loss(chosen, rejected).item() == pytest.approx(metrics["train_loss"], abs=0.05)


def test_a_step_does_not_depend_on_the_size_of_micro_batches(tiny_base: Path, workplace: Path) -> None:
    from safetensors.torch import load_file

    sizes: Any = {"checkpoint_steps": 50, "batch_size": 6, "dpo": {"learning_rate": 1e-3}}
    sft, weights = sft_adapter(workplace, tiny_experiment(workplace, tiny_base)), []
    for size in (1, 400):
        experiment = tiny_experiment(workplace, tiny_base, micro_batch_tokens=size, **sizes)
        stage = stage_of(experiment, sft)
        train_by_dpo(stage, PAIRS, {"start": require_adapter(sft)})
        weights.append(load_file(stage.folder / "adapter_model.safetensors"))
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=1e-4)


@pytest.mark.slow  # The one of GRPO is not: rl/test_grpo_stage.py.
def test_a_killed_run_resumes_and_ends_like_an_unbroken_one(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = {"learning_rate": 3e-3, "epochs": 10}
    config = config_file(workplace, tiny_base, dpo=many)
    collect(config)
    main(["sft", str(config)])
    whole = copy_of_run(workplace)
    kill_at(workplace, "checkpoint-7/complete", "dpo", config)
    broken = train_in(workplace, "dpo", config)
    assert "trained dpo: runs/tiny/dpo (10 pairs, 25 steps, loss " in capsys.readouterr().out
    assert metrics(workplace, "dpo")["losses"][0] == pytest.approx(math.log(2))  # It starts at its own reference.
    require_alike(broken, train_in(whole, "dpo", config), 7)
    main(["dpo", str(config)])
    assert "dpo is already done with these inputs" in capsys.readouterr().out


def test_a_round_starts_from_its_own_sft_policy_or_from_the_last_one_before(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base, checkpoint_steps=50)
    collect(config, tasks=3)
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft-3: run `retroformer train sft"):
        main(["dpo", str(config), "round=3"])
    main(["sft", str(config)])
    main(["dpo", str(config), "round=3"])
    first = metrics(workplace, "dpo-3")["inputs"]["adapters"]["start"]
    assert first == metrics(workplace, "sft")["adapter_sha256"]
    main(["sft", str(config), "round=2", "seed=1"])
    main(["dpo", str(config), "round=3"])
    second = metrics(workplace, "dpo-3")["inputs"]["adapters"]["start"]
    assert second == metrics(workplace, "sft-2")["adapter_sha256"] != first


def test_a_pair_that_is_too_long_stops_the_stage(tiny_base: Path, workplace: Path) -> None:
    experiment = tiny_experiment(workplace, tiny_base, max_length=40)
    sft = sft_adapter(workplace, experiment)
    with pytest.raises(ConfigError, match=r"40 of 40 samples of pairs are longer than train.max_length=40 tokens"):
        train_by_dpo(stage_of(experiment, sft), PAIRS, {"start": require_adapter(sft)})
