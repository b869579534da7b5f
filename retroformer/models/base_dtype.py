"""The data type in which a base model is served: that of the config, or for `auto` the base's own."""

import json
from pathlib import Path
from types import ModuleType
from typing import Literal

Dtype = Literal["bfloat16", "float32"]


def computes_bfloat16(torch: ModuleType) -> bool:
    """Return True if this machine computes bfloat16 natively, as `torch` reports it."""
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
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # transformers 5 writes `dtype`, earlier versions `torch_dtype`.
    dtype = config.get("dtype") or config.get("torch_dtype")
    return "bfloat16" if dtype in ("bfloat16", "float16") and computes_bfloat16(torch) else "float32"
