"""What the card is and computes: facts, and products with 4-bit weights."""

import time
from collections.abc import Iterator
from pathlib import Path

import bitsandbytes as bnb
import torch

from benchmarks.gpu.models import ON_GPU, synchronize
from benchmarks.gpu.report import NO_CARD, Row, device_name
from retroformer.run.provenance import package_versions

MOST_OF_A_WEIGHT, MOST_OF_A_PRODUCT, BLOCK = 0.17, 0.02, 64
"""Half of the widest gap between two of NF4's 16 values is 0.152 of the largest weight of a block, whose scale is
quantised, too."""


def facts(out: Path) -> Iterator[Row]:
    """Yield versions, and on a card the speed of its matrix products."""
    for name, version in package_versions().items():
        if name in ("torch", "transformers", "peft", "bitsandbytes", "accelerate"):
            yield {"what": name, "value": version}
    if not ON_GPU:
        if device_name() != NO_CARD:
            raise RuntimeError("nvidia-smi lists a card, and torch sees none: install a build of torch with CUDA.")
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        raise RuntimeError("This card does not compute bfloat16: it needs compute capability 8.0 or higher.")
    size = 8192
    square = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    for _ in range(3):
        square @ square
    synchronize()
    began = time.perf_counter()
    for _ in range(10):
        square @ square
    synchronize()
    yield {"what": "bfloat16, TFLOPS", "value": round(20 * size**3 / (time.perf_counter() - began) / 1e12)}


def kernels(out: Path) -> Iterator[Row]:
    """Yield how far 4-bit weights and products with them are off, and fail where that is more than quantisation."""
    wide, device = (4096, "cuda") if ON_GPU else (256, "cpu")
    for outputs, inputs in ((wide, wide), (wide * 4, wide), (wide, wide * 4)):
        torch.manual_seed(0)
        weight = torch.randn(outputs, inputs, device=device, dtype=torch.bfloat16)
        packed, state = bnb.functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
        unpacked = bnb.functional.dequantize_4bit(packed, state).float()
        blocks = weight.float().view(-1, BLOCK)
        off = float(((unpacked.view(-1, BLOCK) - blocks).abs() / blocks.abs().amax(dim=1, keepdim=True)).max())
        for rows in (1, 128):
            values = torch.randn(rows, inputs, device=device, dtype=torch.bfloat16)
            expected = values.float() @ unpacked.t()
            product = bnb.matmul_4bit(values, packed.t(), quant_state=state).float()
            error = float((product - expected).norm() / expected.norm())
            yield {
                "weights": f"{outputs}x{inputs}",
                "rows": rows,
                "weight off": round(off, 3),
                "product off": round(error, 4),
            }
            if off > MOST_OF_A_WEIGHT or error > MOST_OF_A_PRODUCT:
                raise AssertionError(f"weights are off by {off:.3f}, products by {error:.4f}")
