"""4-bit kernels: what quantising loses, and whether products with 4-bit weights are those with the unpacked weights."""

from collections.abc import Iterator
from functools import partial

import bitsandbytes as bnb
import torch

from benchmarks.gpu.piece import Bench, Piece

TITLE = "4-bit kernels"
COLUMNS = ("largest error of a weight, as a share of its block's largest", "error of a product")
NOTE = (
    "NF4 with double quantisation. A weight is off by at most half of the widest gap between two of the 16 values, "
    "0.152 of the largest weight in its block, and a little more as the scales of the blocks are quantised, too. A "
    "product is compared with that of the unpacked weights, both in bfloat16, in the norm of the result."
)
_MOST_OF_A_WEIGHT, _MOST_OF_A_PRODUCT = 0.17, 0.02
_BLOCK = 64


def pieces(bench: Bench) -> Iterator[Piece]:
    wide = 4096 if bench.on_gpu else 256
    for outputs, inputs in ((wide, wide), (wide * 4, wide), (wide, wide * 4)):
        for rows in (1, 128):
            yield Piece(f"kernels/{outputs}x{inputs} by {rows}", partial(_work, bench, outputs, inputs, rows))


def _work(bench: Bench, outputs: int, inputs: int, rows: int) -> tuple[str, ...]:
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs, device=bench.device, dtype=torch.bfloat16)
    packed, state = bnb.functional.quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    unpacked = bnb.functional.dequantize_4bit(packed, state)
    blocks = weight.float().view(-1, _BLOCK)
    off = ((unpacked.float() - weight.float()).view(-1, _BLOCK).abs() / blocks.abs().amax(dim=1, keepdim=True)).max()
    values = torch.randn(rows, inputs, device=bench.device, dtype=torch.bfloat16)
    product = bnb.matmul_4bit(values, packed.t(), quant_state=state).float()
    expected = values.float() @ unpacked.float().t()
    error = (product - expected).norm() / expected.norm()
    if off > _MOST_OF_A_WEIGHT or error > _MOST_OF_A_PRODUCT:
        raise AssertionError(f"weights are off by {off:.3f}, products by {error:.4f}")
    return f"{off:.3f}", f"{error:.4f}"
