"""Full weights say what base and adapter say; where they would not, nothing is written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.config import Experiment
from retroformer.config_file import load
from retroformer.embedded_model import base_model_folder
from retroformer.errors import ConfigError, MissingInput, ProvenanceError
from retroformer.provenance import folder_sha256
from tests.train.world import page, save_tiny_model, trained
from train.__main__ import main
from train.merge import Agreement, compare, merge, require_agreement

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
IDS = torch.arange(3, 35)[None]


def logits(experiment: Experiment, *, merged: bool) -> torch.Tensor:
    """Of the sft stage, through plain libraries."""
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
        found: torch.Tensor = model(input_ids=IDS).logits
    return found


def test_merged_weights_say_what_base_and_adapter_say(
    tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trained(workplace, tiny_base)
    main(["merge", str(made), "sft"])
    assert capsys.readouterr().out.startswith("runs/tiny/sft-merged: float32 weights, logits within ")
    folder = workplace / "runs/tiny/sft-merged"
    assert torch.allclose(logits(load(made), merged=True), logits(load(made), merged=False), atol=1e-3)
    facts = json.loads((folder / "merge.json").read_text())
    assert facts["adapter_sha256"] == folder_sha256(workplace / "runs/tiny/sft")
    assert facts["model_sha256"] == folder_sha256(folder)
    assert facts["agreement"]["texts"] == 8
    assert "# sft of run tiny, merged" in (folder / "README.md").read_text()


def test_what_is_merged_stays_until_the_adapter_is_another(tiny_base: Path, workplace: Path) -> None:
    made = trained(workplace, tiny_base)
    first = merge(load(made), "sft").stat().st_ino
    assert merge(load(made), "sft").stat().st_ino == first
    assert merge(load(made, ["serve.dtype=bfloat16"]), "sft").stat().st_ino != first


def test_tokenizer_template_and_configuration_are_the_bases_own(tiny_base: Path, workplace: Path) -> None:
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


def test_a_4_bit_base_is_merged_as_it_was_trained_on_and_that_is_said(
    tmp_path_factory: pytest.TempPathFactory, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = save_tiny_model(tmp_path_factory.mktemp("wide"), hidden=128)
    made = trained(workplace, base, quantization="nf4", dtype="bfloat16")
    main(["merge", str(made), "sft"])
    assert "merged into the 4-bit base as dequantised" in capsys.readouterr().out
    dequantised = logits(load(made), merged=True)
    assert (workplace / "runs/tiny/sft-merged/README.md").read_text().count("held in 4 bits (NF4) in training") == 1
    assert "quantization_config" not in json.loads((workplace / "runs/tiny/sft-merged/config.json").read_text())
    # The base as published, with the adapter, is another model; it is merged where the page says so.
    unquantised = logits(load(made), merged=False)
    assert (dequantised - unquantised).abs().max() > 0.1
    main(["merge", str(made), "sft", "train.quantization=none"])
    assert torch.allclose(logits(load(made), merged=True), unquantised, atol=1e-3)


def test_an_adapter_or_a_base_that_was_not_trained_is_refused(tiny_base: Path, workplace: Path) -> None:
    made = trained(workplace, tiny_base)
    other = save_tiny_model(workplace / "other", hidden=64)
    with pytest.raises(ProvenanceError, match=r"The base model of runs/tiny/sft has sha256 .* was trained: put"):
        merge(load(made, [f"train.base_model={other}"]), "sft")
    config = workplace / "runs/tiny/sft/adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 80}))
    with pytest.raises(ProvenanceError, match=r"The adapter of runs/tiny/sft has sha256 "):
        merge(load(made), "sft")
    assert not (workplace / "runs/tiny/sft-merged").exists()


def test_an_adapter_that_drowns_in_bfloat16_is_refused_with_the_way_out(tiny_base: Path, workplace: Path) -> None:
    made = trained(workplace, tiny_base, size=0.002)
    with pytest.raises(
        ConfigError, match=r"Rounding to bfloat16 .* more than a tenth .*; merge with serve.dtype=float32"
    ):
        merge(load(made, ["serve.dtype=bfloat16"]), "sft")
    assert not [path for path in (workplace / "runs/tiny").iterdir() if "merged" in path.name]
    merge(load(made), "sft")


def test_agreement_is_counted_over_all_logits() -> None:
    unmerged, plain = torch.tensor([[[0.0, 1.0]], [[2.0, 0.0]]]), torch.tensor([[[1.0, 0.0]], [[2.0, 2.0]]])
    merged = torch.tensor([[[0.0, 1.0]], [[2.0, 2.5]]])
    agreement = compare(merged, unmerged, plain)
    assert agreement == Agreement(texts=2, furthest=2.5, mean=0.625, mean_of_adapter=1.0, same_choice=0.5)
    assert agreement.lost == 0.625
    with pytest.raises(ConfigError, match=r"Merged logits are up to 2\.5 off .* on 2 texts .* nothing was written\.$"):
        require_agreement(agreement, "float32")


def test_what_has_not_been_trained_cannot_be_merged(tiny_base: Path, workplace: Path) -> None:
    made = str(page(workplace, tiny_base))
    with pytest.raises(MissingInput, match=r"No adapter at runs/tiny/sft: run `python -m train sft"):
        main(["merge", made, "sft"])
    with pytest.raises(ConfigError, match=r"Name a page and a stage \(actor, warm, sft, reward"):
        main(["merge", made, "first"])
