"""The precision of the base's weights: their data type where they are served, and 4 bits in training and serving."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

Dtype = Literal["bfloat16", "float32"]
Quantization = Literal["nf4", "none"]
"""Quantisation of a base's weights. nf4: 4 bits with double quantisation; none: those of its files."""


def computes_bfloat16(torch: ModuleType) -> bool:
    """Return True if this machine computes bfloat16 natively, as `torch` reports it: others are eight times slower."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def serving_dtype(setting: Literal["auto"] | Dtype, folder: Path, torch: ModuleType) -> Dtype:
    """Return `setting`, or for `auto` the type of the base in `folder`; a base of 16 bits is served in bfloat16.

    A machine without instructions for bfloat16 serves float32.
    """
    if setting != "auto":
        return setting
    return "bfloat16" if base_dtype(folder) == "bfloat16" and computes_bfloat16(torch) else "float32"


def base_dtype(folder: Path) -> Dtype:
    """Return the type of the base in `folder` for serving, whatever the hardware: bfloat16 if it has 16 bits."""
    return "bfloat16" if stored_dtype(folder) in ("bfloat16", "float16") else "float32"


def stored_dtype(folder: Path) -> str | None:
    """Return the data type in which the files of the base in `folder` have its weights, if its config says so."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    dtype: str | None = config.get("dtype") or config.get("torch_dtype")
    return dtype


def compute_in(model: Any, dtype: Any) -> None:
    """Let a model whose 4-bit weights were made from the numbers of its files compute in this torch dtype."""
    for parameter in model.parameters():
        if (state := getattr(parameter, "quant_state", None)) is not None:
            state.dtype = dtype
        elif parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype


def nf4(compute_dtype: Any) -> Any:
    """Return the transformers config of NF4 with double quantisation, computing in this torch dtype.

    `load_in_4bit` alone would mean FP4 and fp32 compute.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )


def guard_bnb_cpu(model: Any) -> None:
    """Keep 4-bit weights on a CPU in the layout that gives correct gradients; undo the other layout.

    On CPUs with AVX512-BF16, bitsandbytes repacks a weight at its first forward pass in eval mode. Every later
    gradient is silently wrong (cosine 0.1 to 0.2 to the true one), and small layers fail.
    """
    four_bit = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    if not four_bit or next(model.parameters()).device.type != "cpu":
        return
    from bitsandbytes.functional import _convert_weight_packed_for_cpu_inverse

    for module in four_bit:
        module.support_avx512bf16_for_cpu = False
        weight: Any = module.weight
        if getattr(weight.quant_state, "packing_format_for_cpu", False):
            weight.data, weight.quant_state = _convert_weight_packed_for_cpu_inverse(weight.data, weight.quant_state)
