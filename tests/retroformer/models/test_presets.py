"""Tests of `train.preset`."""

from pathlib import Path

import pytest
import yaml

from retroformer.config.experiment import Experiment
from retroformer.config.file import load
from retroformer.config.sections.train import Lora
from retroformer.errors import ConfigError
from retroformer.models.presets import presets
from tests.support.runs import ROOT


def config(folder: Path, *overrides: str) -> Experiment:
    path = folder / "config.yaml"
    path.write_text("run: any\nenvironment: {name: alfworld}\n")
    return load(path, overrides)


@pytest.mark.parametrize("name", presets())
def test_a_preset_sets_what_its_model_needs(tmp_path: Path, name: str) -> None:
    train = config(tmp_path, f"train.preset={name}").train
    assert train.base_model == presets()[name].base_model
    assert train.lora == Lora(targets=presets()[name].lora_targets)
    assert train.chat_template_kwargs == presets()[name].chat_template_kwargs


def test_models_that_can_think_do_not() -> None:
    switched = {name for name, preset in presets().items() if preset.chat_template_kwargs == {"enable_thinking": False}}
    assert switched == {"smollm3-3b", "qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b"}


def test_a_config_may_replace_each_setting_of_a_preset(tmp_path: Path) -> None:
    own = "train={preset: qwen3-0.6b, base_model: /mine, lora: {rank: 8, targets: attention}, chat_template_kwargs: {}}"
    train = config(tmp_path, own).train
    assert (train.base_model, train.lora.rank, train.lora.targets) == ("/mine", 8, "attention")
    assert train.chat_template_kwargs == {}
    assert config(tmp_path, "train={preset: qwen3-0.6b, lora: {rank: 8}}").train.lora == Lora(rank=8)


def test_the_resolved_config_of_a_preset_means_the_same(tmp_path: Path) -> None:
    experiment = config(tmp_path, "train.preset=qwen3-0.6b")
    path = tmp_path / "resolved.yaml"
    path.write_text(yaml.safe_dump(experiment.as_file()))
    assert load(path).as_file() == experiment.as_file()


def test_an_unknown_preset_and_samples_beyond_the_context_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No preset 'qwen4': choose one of smollm2-135m, "):
        config(tmp_path, "train.preset=qwen4")
    with pytest.raises(ConfigError, match="max_length=9000 is longer than the context of smollm2-135m, 8192 tokens"):
        config(tmp_path, "train={preset: smollm2-135m, max_length: 9000}")


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "strftime_now", "a-b", "1a", ""])
def test_names_that_a_template_cannot_be_given_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"train\.chat_template_kwargs"):
        config(tmp_path, f"train.chat_template_kwargs={{'{name}': 1}}")


def test_the_documentation_has_a_row_for_every_preset() -> None:
    text = (ROOT / "docs/models.md").read_text()
    for name, preset in presets().items():
        assert f"| `{name}` | {preset.base_model} | {preset.context:,} | {preset.licence} |" in text
