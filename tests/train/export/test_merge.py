"""Merged weights give the logits of base and adapter; if they do not, nothing is written."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.config.experiment import STORE_FILE, Experiment
from retroformer.config.file import load
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.models.embedded import base_model_folder
from retroformer.run.provenance import folder_sha256
from tests.train.world import config_file, save_tiny_model, trained
from train.__main__ import main
from train.export.merge import Agreement, compare, merge, require_agreement

IDS = torch.arange(3, 35)[None]


def logits(experiment: Experiment, *, merged: bool) -> torch.Tensor:
    """Return the logits of the sft adapter, with transformers and peft only."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = experiment.stage_folder("sft")
    model: Any
    if merged:
        model = AutoModelForCausalLM.from_pretrained(f"{folder}-merged")
    else:
        base = AutoModelForCausalLM.from_pretrained(base_model_folder(experiment.train.base_model))
        model = PeftModel.from_pretrained(base, str(folder))
    with torch.no_grad():
        logits: torch.Tensor = model(input_ids=IDS).logits
    return logits


@pytest.mark.parametrize("layers", ["all", "upper_half"])
def test_merged_weights_give_the_logits_of_base_and_adapter(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str], layers: str
) -> None:
    config = trained(workplace, tiny_base, lora={"layers": layers})
    main(["merge", str(config), "sft"])
    assert capsys.readouterr().out.startswith("runs/tiny/sft-merged: float32 weights, logits within ")
    folder = workplace / "runs/tiny/sft-merged"
    assert torch.allclose(logits(load(config), merged=True), logits(load(config), merged=False), atol=1e-3)
    facts = json.loads((folder / "merge.json").read_text())
    assert facts["adapter_sha256"] == folder_sha256(workplace / "runs/tiny/sft")
    assert facts["model_sha256"] == folder_sha256(folder)
    assert facts["agreement"]["texts"] == 8
    assert "# sft of run tiny, merged" in (folder / "README.md").read_text()


def test_merged_weights_name_all_ends_of_a_turn(tiny_base: Path, workplace: Path) -> None:
    base = shutil.copytree(tiny_base, workplace / "base")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 9], "top_k": 7}))
    merged = merge(load(trained(workplace, base)), "sft")
    written = json.loads((merged / "generation_config.json").read_text())
    assert written == {"eos_token_id": [2, 1, 9], "top_k": 7}


@pytest.mark.parametrize("stage", ["actor", "sac"])
def test_an_actor_is_compared_on_scripted_play_since_its_run_may_have_no_reflections(
    tiny_base: Path, workplace: Path, stage: str
) -> None:
    experiment = load(trained(workplace, tiny_base, stage))
    (experiment.folder / STORE_FILE).unlink()
    facts = json.loads((merge(experiment, stage) / "merge.json").read_text())
    assert facts["agreement"]["texts"] == 8


def test_merged_weights_are_kept_until_the_adapter_changes(tiny_base: Path, workplace: Path) -> None:
    config = trained(workplace, tiny_base)
    first = merge(load(config), "sft").stat().st_ino
    assert merge(load(config), "sft").stat().st_ino == first
    assert merge(load(config, ["serve.dtype=bfloat16"]), "sft").stat().st_ino != first


def test_tokenizer_template_and_config_are_copied_from_the_base(tiny_base: Path, workplace: Path) -> None:
    folder = merge(load(trained(workplace, tiny_base)), "sft")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tiny_base / name).read_bytes()
    of_base, saved = (json.loads((at / "config.json").read_text()) for at in (tiny_base, folder))
    assert saved | {"use_cache": of_base["use_cache"]} == of_base


def test_scores_of_a_merged_reward_model_are_those_of_its_adapter(tiny_base: Path, workplace: Path) -> None:
    folder = merge(load(trained(workplace, tiny_base, "reward")), "reward")
    facts = json.loads((folder / "merge.json").read_text())
    assert facts["agreement"]["furthest"] < 1e-4 < facts["agreement"]["mean_of_adapter"]
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForSequenceClassification"]


def test_a_4_bit_base_is_merged_dequantised_and_the_card_says_so(
    tmp_path_factory: pytest.TempPathFactory, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_tiny_model(tmp_path_factory.mktemp("wide"), hidden=128)
    config = trained(workplace, base, quantization="nf4", dtype="bfloat16")
    main(["merge", str(config), "sft"])
    assert "merged into the 4-bit base as dequantised" in capsys.readouterr().out
    dequantised = logits(load(config), merged=True)
    card = (workplace / "runs/tiny/sft-merged/README.md").read_text()
    assert card.count("In training the base was held in 4 bits (NF4)") == 1
    assert "quantization_config" not in json.loads((workplace / "runs/tiny/sft-merged/config.json").read_text())
    # The base as published, with the adapter, is another model; it is merged if the config says so.
    unquantised = logits(load(config), merged=False)
    assert (dequantised - unquantised).abs().max() > 0.1
    main(["merge", str(config), "sft", "train.quantization=none"])
    assert torch.allclose(logits(load(config), merged=True), unquantised, atol=1e-3)


def test_an_adapter_or_a_base_that_changed_since_training_is_refused(tiny_base: Path, workplace: Path) -> None:
    config = trained(workplace, tiny_base)
    other = save_tiny_model(workplace / "other", hidden=64)
    with pytest.raises(ProvenanceError, match=r"The base model of runs/tiny/sft has sha256 .* in training: restore it"):
        merge(load(config, [f"train.base_model={other}"]), "sft")
    lora = workplace / "runs/tiny/sft/adapter_config.json"
    lora.write_text(json.dumps(json.loads(lora.read_text()) | {"lora_alpha": 80}))
    with pytest.raises(ProvenanceError, match=r"The adapter of runs/tiny/sft has sha256 "):
        merge(load(config), "sft")
    assert not (workplace / "runs/tiny/sft-merged").exists()


def test_an_adapter_whose_hash_was_not_recorded_in_training_is_refused(tiny_base: Path, workplace: Path) -> None:
    config, metrics = trained(workplace, tiny_base), workplace / "runs/tiny/sft/metrics.json"
    recorded = json.loads(metrics.read_text())
    for lost in ("adapter_sha256", "inputs"):
        metrics.write_text(json.dumps({name: value for name, value in recorded.items() if name != lost}))
        with pytest.raises(
            ProvenanceError, match=r"has sha256 \w+, but none was recorded in training: restore it, or run "
        ):
            merge(load(config), "sft")


def test_an_adapter_that_is_lost_in_bfloat16_is_refused_with_a_remedy(tiny_base: Path, workplace: Path) -> None:
    config = trained(workplace, tiny_base, size=0.002)
    with pytest.raises(
        ConfigError, match=r"Rounding to bfloat16 .* more than a tenth .*; merge with serve.dtype=float32"
    ):
        merge(load(config, ["serve.dtype=bfloat16"]), "sft")
    assert not [path for path in (workplace / "runs/tiny").iterdir() if "merged" in path.name]
    merge(load(config), "sft")


def test_agreement_is_counted_over_all_logits() -> None:
    unmerged, plain = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]), torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    merged = torch.tensor([[[0.0, 1.0]], [[2.0, 2.5]]])
    agreement = compare(merged, unmerged, plain)
    assert agreement == Agreement(texts=2, furthest=2.5, mean=0.625, mean_of_adapter=1.0, same_choice=0.5)
    assert agreement.lost == 0.625
    with pytest.raises(ConfigError, match=r"Merged logits are up to 2\.5 off .* on 2 texts .* nothing was written\.$"):
        require_agreement(agreement, "float32")


def test_a_stage_that_has_not_been_trained_cannot_be_merged(tiny_base: Path, workplace: Path) -> None:
    config = str(config_file(workplace, tiny_base))
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `retroformer train sft"):
        main(["merge", config, "sft"])
