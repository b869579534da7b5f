"""Tests of `serve.dtype: auto`."""

import json
from pathlib import Path

import pytest
import torch

from retroformer.config.file import load
from retroformer.models.precision import serving_dtype


def base(folder: Path, **config: str) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_the_base_s_type_where_the_hardware_computes_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"avx512_bf16": native})
    of_16_bits = "bfloat16" if native else "float32"
    assert serving_dtype("auto", base(tmp_path, dtype="bfloat16"), torch) == of_16_bits
    assert serving_dtype("auto", base(tmp_path, torch_dtype="bfloat16"), torch) == of_16_bits
    assert serving_dtype("auto", base(tmp_path, dtype="float16"), torch) == of_16_bits
    assert serving_dtype("auto", base(tmp_path, dtype="float32"), torch) == "float32"
    assert serving_dtype("auto", base(tmp_path), torch) == "float32"
    assert serving_dtype("bfloat16", base(tmp_path, dtype="float32"), torch) == "bfloat16"


def test_auto_is_the_default_only_of_a_preset(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("run: any\nenvironment: {name: alfworld}\n")
    assert load(path).serve.dtype == "float32"
    assert load(path, ["train.preset=qwen3-0.6b", "serve.port=0"]).serve.dtype == "auto"
    assert load(path, ["train.preset=qwen3-0.6b", "serve.dtype=float32"]).serve.dtype == "float32"
