"""`train.trainer: trl` beside packed rows: losses, gradients and whole stages, and a model with a sliding window."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.training_cases import Sizes, StageWork, prepare, read_work
from benchmarks.training_trl import differences
from retroformer.errors import ConfigError
from tests.train.families import LIMITS, save_tiny_of
from tests.train.killed import copy_of_run, kill_at, require_alike, train_in
from tests.train.world import BAD, GOOD, collect, config_file, metrics, prompt, save_adapter, tiny_experiment
from train.__main__ import main
from train.adapter import require_adapter
from train.data.samples import AdviceText, Sample, SamplePair
from train.imitation import imitate
from train.shared_prompt.packed import Groups
from train.stage import make_stage

UNEVEN = ((1, 1), (2, 2), (3, 1), (1, 1))
"""Numbers of good and bad texts on each failure."""


def uneven_rows(stage: str) -> Iterator[Sample | SamplePair]:
    """Yield texts or pairs on failures that differ in length, in number of texts, and in the texts' lengths."""
    for number, (good, bad) in enumerate(UNEVEN):
        asked = list(range(10, 30 + 5 * number))
        texts = [[40 + number, *range(50, 53 + text), 2] for text in range(good + bad)]
        pairs = [SamplePair(asked, chosen, rejected) for chosen in texts[:good] for rejected in texts[good:]]
        yield from [Sample(asked, text) for text in texts] if stage == "sft" else pairs


def work_of(case: str, base: Path, folder: Path, **settings: Any) -> StageWork:
    """Return the work of a case with these settings, and three rows in TRL's memory."""
    prepare(Sizes(case, 40, 5, 1, 1, 3, "float32", str(base)), folder)
    work = read_work(folder)
    train = work.experiment.train.model_copy(update={"batch_size": 12, "micro_batch_tokens": 100} | settings)
    return work._replace(experiment=work.experiment.model_copy(update={"train": train}))


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("sft-4", {}),
        ("reward-4", {"pair_weight": "by_failure"}),
        ("reward-4", {"pair_weight": "equal"}),
        ("dpo-4", {"pair_weight": "by_failure"}),
        ("dpo-4", {"pair_weight": "equal"}),
    ],
)
def test_loss_and_gradient_of_a_batch_are_those_of_trl(
    case: str, settings: dict[str, Any], tiny_base: Path, workplace: Path
) -> None:
    work = work_of(case, tiny_base, workplace, **settings)
    groups = Groups(list(uneven_rows(work.case.stage)), work.experiment.train.micro_batch_tokens)
    measured = differences(work, groups)
    assert max(measured) < 1e-5, measured


@pytest.mark.slow
@pytest.mark.parametrize("case", ["sft-4", "reward-4", "dpo-4"])
def test_they_are_also_for_the_embedded_model(case: str, workplace: Path) -> None:
    measured = differences(work_of(case, Path("embedded"), workplace, batch_size=4))
    assert max(measured) < 1e-4, measured


def test_a_whole_stage_takes_the_steps_of_packed_rows_and_publishes_the_same(tiny_base: Path, workplace: Path) -> None:
    several = {"learning_rate": 3e-3, "epochs": 2}
    config = config_file(workplace, tiny_base, checkpoint_steps=50, sft=several, reward=several, dpo=several)
    collect(config)
    for stage in ("sft", "reward", "dpo"):
        results, tensors = dict[str, dict[str, Any]](), dict[str, Any]()
        # The packed one is last, so that both sides of the next stage start from it.
        for trainer in ("trl", "packed"):
            main([stage, str(config), f"train.trainer={trainer}"])
            results[trainer] = metrics(workplace, stage)
            tensors[trainer] = load_file(workplace / "runs/tiny" / stage / "adapter_model.safetensors")
        ours, theirs = results["packed"], results["trl"]
        assert ours["fingerprint"] != theirs["fingerprint"]
        assert ours.keys() == theirs.keys()
        counts = ("held_out_tasks", "samples", "pairs", "steps")
        assert [theirs.get(name) for name in counts] == [ours.get(name) for name in counts]
        for name in {"losses", *(name for name in ours if name.startswith(("train_", "held_out_")))} - {*counts}:
            assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-4), name
        for name, value in tensors["packed"].items():
            torch.testing.assert_close(tensors["trl"][name], value, rtol=0, atol=1e-3)


some_stages = pytest.mark.parametrize(
    "stages", [("sft", "reward"), pytest.param(("sft", "reward", "dpo"), marks=pytest.mark.slow)], ids=["two", "all"]
)


@some_stages
@pytest.mark.parametrize("trainer", ["packed", "trl"])
def test_a_stage_of_one_batch_learns(stages: tuple[str, ...], trainer: str, tiny_base: Path, workplace: Path) -> None:
    """The first step is not one at the learning rate 0 with which a warm-up might begin."""
    config = config_file(
        workplace, tiny_base, trainer=trainer, batch_size=100, dpo={"learning_rate": 3e-3}, reward={"batch_size": 100}
    )
    collect(config)
    weights = dict[str, dict[str, torch.Tensor]]()
    for stage in stages:
        main([stage, str(config)])
        assert metrics(workplace, stage)["steps"] == 1
        weights[stage] = load_file(workplace / "runs/tiny" / stage / "adapter_model.safetensors")
        before = weights["sft"] if stage == "dpo" else {}
        assert any((value != before.get(name, 0)).any() for name, value in weights[stage].items() if "lora_B" in name)


@some_stages
def test_a_sliding_window_needs_trl_and_its_stages_learn(stages: tuple[str, ...], workplace: Path) -> None:
    base = save_tiny_of("mistral-7b", workplace / "base", sliding_window=16)
    quick = {"learning_rate": 1e-2, "epochs": 3}
    config = config_file(workplace, base, checkpoint_steps=50, sft=quick, reward=quick, dpo=quick)
    collect(config)
    with pytest.raises(ConfigError, match=r"at most 16 .*: set train\.trainer=trl for warm, sft"):
        main(["sft", str(config)])
    rope = LIMITS["switching"]["rope_parameters"] | {"original_max_position_embeddings": 16}
    switching = save_tiny_of("mistral-7b", workplace / "switching", rope_parameters=rope)
    with pytest.raises(ConfigError, match=r"at most 16 .*: set train\.trainer=trl for warm, sft"):
        main(["sft", str(config), f"train.base_model={switching}"])
    for stage in stages:
        main([stage, str(config), "train.trainer=trl"])
        losses = metrics(workplace, stage)["losses"]
        assert losses[-1] < 0.8 * losses[0], stage
    with pytest.raises(ConfigError, match=r"take another train\.base_model for ppo and grpo"):
        main(["ppo", str(config), "train.trainer=trl"])


def test_a_model_that_scales_its_logits_needs_trl(tiny_base: Path, workplace: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    base, taken = workplace / "base", ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    shutil.copytree(tiny_base, base)
    shape = {name: getattr(AutoConfig.from_pretrained(base), name) for name in (*taken, "eos_token_id", "pad_token_id")}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "logits_scaling": 8.0}
    AutoModelForCausalLM.from_config(AutoConfig.for_model("granite", **shape, **heads)).save_pretrained(base)
    quick = {"learning_rate": 1e-2}
    config = config_file(workplace, base, checkpoint_steps=50, sft=quick)
    collect(config)
    with pytest.raises(ConfigError, match=r"logits_scaling=8.0 in its config.json.*: set train\.trainer=trl"):
        main(["sft", str(config)])
    main(["sft", str(config), "train.trainer=trl"])
    losses = metrics(workplace, "sft")["losses"]
    assert losses[-1] < losses[0]
    with pytest.raises(ConfigError, match=r"logits_scaling=8.0 .*: train the reward model in place of DPO"):
        main(["dpo", str(config), "train.trainer=trl"])


def test_a_4_bit_base_does_not_round_the_initial_weights(tiny_base: Path, workplace: Path) -> None:
    """TRL would round them to bf16, by up to 1/512; steps of 1e-9 do not change them."""
    still: Any = {"quantization": "nf4", "dtype": "bfloat16", "trainer": "trl", "sft": {"learning_rate": 1e-9}}
    experiment = tiny_experiment(workplace, tiny_base, **still)
    save_adapter(experiment, workplace / "start", size=0.0123)
    texts = [AdviceText(prompt("a task"), GOOD), AdviceText(prompt("a task"), BAD)]
    stage = make_stage("sft", experiment, ["text"], {})
    imitate(stage, texts, {"start": require_adapter(workplace / "start")})
    started, ended = (load_file(folder / "adapter_model.safetensors") for folder in (workplace / "start", stage.folder))
    for name, value in started.items():
        torch.testing.assert_close(ended[name], value, rtol=0, atol=1e-8)


@pytest.mark.slow
def test_a_killed_run_resumes_and_ends_like_an_unbroken_one(tiny_base: Path, workplace: Path) -> None:
    many = {"learning_rate": 3e-3, "epochs": 30}
    config = config_file(workplace, tiny_base, trainer="trl", reward=many)
    collect(config)
    whole = copy_of_run(workplace)
    kill_at(workplace, "checkpoint-7/complete", "reward", config)
    require_alike(train_in(workplace, "reward", config), train_in(whole, "reward", config), 7)
