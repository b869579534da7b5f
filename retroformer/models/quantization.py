"""The 4-bit weights of training and serving."""

from typing import Any, Literal

Quantization = Literal["nf4", "none"]
"""Quantisation of a base's weights. nf4: 4 bits with double quantisation; none: those of its files."""


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
