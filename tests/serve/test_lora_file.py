"""Adapters as peft saves them, read without a model."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.errors import DamagedFile
from serve.engine.linear import read_lora
from train.adapter import require_adapter

WEIGHTS = "adapter_model.safetensors"


def test_an_adapter_is_read_with_its_scale_and_must_be_plain_lora(tmp_path: Path) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    def saved(names: tuple[str, ...], **settings: Any) -> Path:
        LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj"], **settings).save_pretrained(str(tmp_path))
        save_file({name: torch.ones(4, 4) for name in names}, tmp_path / "adapter_model.safetensors")
        return tmp_path

    down, up = "base_model.model.a.q_proj.lora_A.weight", "base_model.model.a.q_proj.lora_B.weight"
    (path, (down_KR, up_RN)), *others = read_lora(saved((down, up))).factors.items()
    assert (path, set(down_KR.flatten().tolist()), set(up_RN.flatten().tolist()), others) == (
        "a.q_proj",
        {2.0},
        {1.0},
        [],
    )
    assert read_lora(saved((down, up), use_rslora=True)).factors["a.q_proj"][0].mean() == 4
    for names, settings, reason in (
        ((down,), {}, "lacks its factor"),
        ((down, up, "base_model.model.score.weight"), {}, "not a factor of it, and only plain LoRA"),
        ((down, up), {"use_dora": True}, "only plain LoRA"),
        ((down, up), {"rank_pattern": {"q_proj": 2}}, "only plain LoRA"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_lora(saved(names, **settings))


@pytest.mark.parametrize(
    ("down", "up", "reason"),
    [
        ((3, 4), (4, 4), "lora_A.weight does not have the rank 4"),
        ((4, 4), (4, 3), "lora_B.weight does not have the rank 4"),
        ((2, 4), (4, 2), "does not have the rank 4"),
        ((4,), (4, 4), "lora_A.weight is not a factor"),
    ],
)
def test_both_factors_must_have_the_rank_of_the_configuration(
    tmp_path: Path, down: tuple[int, ...], up: tuple[int, ...], reason: str
) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    path = "base_model.model.a.q_proj.lora_"
    weights = {f"{path}A.weight": torch.ones(down), f"{path}B.weight": torch.ones(up)}
    save_file(weights, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=reason):
        read_lora(tmp_path)


OTHERS: dict[str, Any] = {
    "alora_invocation_tokens": [1, 2],
    "use_dora": True,
    "rank_pattern": {"q_proj": 2},
    "alpha_pattern": {"q": 2},
    "fan_in_fan_out": True,
    "bias": "all",
    "lora_bias": True,
    "use_qalora": True,
    "qalora_group_size": 8,
    "trainable_token_indices": [1],
    "layer_replication": [[0, 1]],
    "target_parameters": ["w"],
    "megatron_core": "x",
    "eva_config": {"rho": 2},
    "corda_config": {"a": 1},
    "loftq_config": {"loftq_bits": 4},
    "use_bdlora": {"a": 1},
    "init_lora_weights": "pissa",
    "arrow_config": {"a": 1},
    "modules_to_save": ["lm_head"],
    "layers_pattern": "h",
    "exclude_modules": ["k_proj"],
    "ensure_weight_tying": True,
    "a_setting_of_next_year": "new",
}
"""Settings with which an adapter computes something else than plain LoRA."""


@pytest.mark.parametrize("name", OTHERS)
def test_any_setting_that_plain_lora_has_not_is_refused_by_name(name: str, tmp_path: Path) -> None:
    from peft import LoraConfig
    from safetensors.torch import save_file

    LoraConfig(r=1, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    path, layer = tmp_path / "adapter_config.json", "base_model.model.a.q_proj.lora_"
    save_file({f"{layer}A.weight": torch.ones(1, 4), f"{layer}B.weight": torch.ones(4, 1)}, tmp_path / WEIGHTS)
    plain = json.loads(path.read_text())
    for value in (None, False, [], {}):
        path.write_text(json.dumps(plain | {"a_setting_of_next_year": value}))
        assert read_lora(tmp_path).factors
    path.write_text(json.dumps(plain | {name: OTHERS[name]}))
    with pytest.raises(ValueError, match=f"^its {name} is .*, and only plain LoRA can be trained and served$"):
        read_lora(tmp_path)
    with pytest.raises(DamagedFile, match=f"its {name} is "):
        require_adapter(tmp_path)


@pytest.mark.parametrize("changes", [{"peft_type": "NONE SUCH"}, {"r": "four"}, {"r": 0}, {"lora_alpha": None}])
def test_a_damaged_configuration_is_refused_like_damaged_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    from peft import LoraConfig

    LoraConfig(r=4, target_modules=["q_proj"]).save_pretrained(str(tmp_path))
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match="its configuration cannot be read"):
        read_lora(tmp_path)
