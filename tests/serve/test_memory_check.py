"""Tests that a base model which does not fit into the memory of a CPU is refused before it is loaded."""

from pathlib import Path

import pytest
import torch

from retroformer.errors import ConfigError
from serve.memory_check import require_memory, weight_bytes
from tests.train.families import save_tiny_of

ON_CPU = pytest.mark.skipif(torch.cuda.is_available(), reason="the model would be on the GPU of this machine")


def test_the_weights_are_counted_in_the_type_of_serving(tiny: Path) -> None:
    from safetensors.torch import load_file

    numbers = sum(tensor.numel() for tensor in load_file(tiny / "model.safetensors").values())
    assert weight_bytes(tiny, "bfloat16") == 2 * numbers
    assert weight_bytes(tiny, "float32") == 4 * numbers


def test_a_head_that_shares_the_embeddings_becomes_a_copy(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tied = save_tiny_of("qwen3-0.6b", tmp_path / "tied")
    weights = load_file(tied / "model.safetensors")
    assert "lm_head.weight" not in weights
    numbers = sum(tensor.numel() for tensor in weights.values())
    head = weights["model.embed_tokens.weight"].numel()
    assert weight_bytes(tied, "float32") == 4 * (numbers + head)
    assert weight_bytes(tied, "bfloat16") == 2 * (numbers + head)


@ON_CPU
def test_a_base_that_does_not_fit_is_refused_with_what_it_needs(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available = weight_bytes(tiny, "bfloat16")
    monkeypatch.setattr("serve.memory_check.available_memory", lambda: available)
    require_memory(tiny, "bfloat16")
    with pytest.raises(ConfigError, match=r"takes 0\.0 GiB in float32, and .* available .*: set serve\.dtype=bfloat16"):
        require_memory(tiny, "float32")
