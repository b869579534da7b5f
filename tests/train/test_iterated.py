"""Tests of iterated training, of variants of a stage, and of two processes that train at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.cache import hold_lock
from tests.train.test_stages import ENVIRONMENT
from tests.train.world import collect, config_file, metrics
from train.__main__ import main
from train.data import inputs
from train.stage import make_stage


def test_iterated_training_goes_on_from_its_own_adapter_and_reads_its_own_round(
    tiny_base: Path, workplace: Path
) -> None:
    config, own = config_file(workplace, tiny_base), "train.iterated=true"
    for number, arm in enumerate(["collect", "collect 2", "collect 3"], start=2):
        collect(config, tasks=number, arm=arm)
    main(["sft", str(config)])
    for number in (2, 3):
        main(["dpo", str(config), f"round={number}", own])
    started = [metrics(workplace, f"dpo-{number}")["inputs"]["adapters"]["start"] for number in (2, 3)]
    assert started == [metrics(workplace, name)["adapter_sha256"] for name in ("sft", "dpo-2")]
    facts = metrics(workplace, "dpo-3")
    assert facts["pairs"] + facts["held_out_pairs"] == len(inputs.pairs(load(config, ["round=3", own]))) == 4
    main(["dpo", str(config), "round=3", own, "train.variants.dpo=only"])
    only = metrics(workplace, "dpo-only-3")
    tasks = [task for domain in only["training_domains"] for task in domain["tasks"]]
    assert (only["rounds"], len(tasks)) == ([3], 2 + 4), "the tasks of the second round do not count"
    main(["dpo", str(config), "round=3"])
    assert metrics(workplace, "dpo-3")["inputs"]["adapters"]["start"] == started[0]


def test_an_iterated_reward_model_goes_on_from_the_one_before(tiny_base: Path, workplace: Path) -> None:
    config, own = config_file(workplace, tiny_base), ["train.iterated=true", "train.reward.learning_rate=1e-6"]
    for number, arm in enumerate(["collect", "collect 2", "collect 3"], start=2):
        collect(config, tasks=number, arm=arm)
    for number in (2, 3):
        main(["reward", str(config), f"round={number}", *own])
    assert metrics(workplace, "reward-2")["inputs"]["adapters"] == {}
    assert metrics(workplace, "reward-3")["inputs"]["adapters"] == {
        "start": metrics(workplace, "reward-2")["adapter_sha256"]
    }
    before, after = (load_file(workplace / f"runs/tiny/reward-{n}/adapter_model.safetensors") for n in (2, 3))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=0, atol=1e-4, msg=f"{name} starts anew")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("'2'", r"train.variants.sft: String should match pattern .* Found '2'"),
        ("merged", r"train.variants: `train merge` writes sft-merged: give the variant of sft "),
    ],
)
def test_a_variant_may_not_have_the_name_of_another_folder(
    tiny_base: Path, workplace: Path, name: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        main(["sft", str(config_file(workplace, tiny_base)), f"train.variants.sft={name}"])


def test_a_variant_of_the_warm_start_that_is_not_trained_is_no_fresh_start(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3)
    with pytest.raises(MissingInput, match="warm-other"):
        main(["sft", str(config), "train.variants.warm=other"])


@pytest.mark.slow
def test_a_variant_is_trained_beside_the_first_and_is_what_later_stages_start_from(
    tiny_base: Path, workplace: Path
) -> None:
    config = config_file(workplace, tiny_base)
    collect(config, tasks=3)
    main(["sft", str(config)])
    main(["sft", str(config), "train.sft.epochs=3", "train.variants.sft=longer"])
    first, longer = metrics(workplace, "sft"), metrics(workplace, "sft-longer")
    assert (first["steps"], longer["steps"]) == (2, 3)
    main(["dpo", str(config), "train.variants={sft: longer, dpo: a}"])
    main(["dpo", str(config)])
    starts = [metrics(workplace, name)["inputs"]["adapters"]["start"] for name in ("dpo", "dpo-a")]
    assert starts == [first["adapter_sha256"], longer["adapter_sha256"]]


def test_variants_with_equal_inputs_have_checkpoints_of_their_own(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    experiments = [load(config), *(load(config, [f"train.variants.sft={name}"]) for name in ("a", "b"))]
    stages = [make_stage("sft", experiment, ["text"], {}) for experiment in experiments]
    assert len({stage.fingerprint for stage in stages}) == 1
    assert len({stage.checkpoints for stage in stages}) == 3


@pytest.mark.slow
def test_two_processes_do_not_train_one_stage_at_once(tiny_base: Path, workplace: Path) -> None:
    config = config_file(workplace, tiny_base)
    collect(config)
    with hold_lock(workplace / "runs/tiny/checkpoints/sft.lock", "training sft"):
        done = subprocess.run(
            [sys.executable, "-m", "train", "sft", str(config)],
            capture_output=True,
            text=True,
            timeout=300,
            env=ENVIRONMENT,
        )
    assert "Another process is training sft (it holds runs/tiny/checkpoints/sft.lock): wait for its end" in done.stderr
    assert not (workplace / "runs/tiny/sft").exists()


def test_training_waits_without_spinning(tiny_base: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "of this test")
    monkeypatch.delenv("OMP_WAIT_POLICY")
    main(["plan", str(config_file(workplace, tiny_base)), "--card", "24"])
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
