"""Loading and saving on the pretended card: models are loaded on the CPU and moved, 4-bit weights included."""

import os

os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")

from typing import Any

from tests.pretended_card.device import CARD, CardTensor, on_card, pretend, to_card, to_cpu

import bitsandbytes
import peft.peft_model
import peft.utils.save_and_load
import safetensors.torch
import torch
from torch.nn.attention.flex_attention import create_mask
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification


def move(model: Any) -> None:
    """Move all weights and buffers of a model to the card; shared ones stay shared."""
    moved: dict[int, Any] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not on_card(parameter):
                if id(parameter) not in moved:
                    moved[id(parameter)] = _moved(parameter)
                module._parameters[name] = moved[id(parameter)]
                if isinstance(parameter, bitsandbytes.nn.Params4bit):
                    module.quant_state = parameter.quant_state
        for name, buffer in module._buffers.items():
            module._buffers[name] = to_card(buffer)


def _moved(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if not isinstance(parameter, bitsandbytes.nn.Params4bit):
        return torch.nn.Parameter(CardTensor(parameter.data.clone()), requires_grad=parameter.requires_grad)
    plain = parameter.data.detach().as_subclass(torch.Tensor).clone()
    moved = torch.nn.Parameter(CardTensor(plain), requires_grad=False)
    _move_state(parameter.quant_state)
    kept = ("quant_state", "blocksize", "compress_statistics", "quant_type", "quant_storage", "bnb_quantized")
    for name in kept:
        setattr(moved, name, getattr(parameter, name))
    return moved


def _move_state(state: Any) -> None:
    for name, value in list(vars(state).items()):
        setattr(state, name, to_card(value))
    if getattr(state, "state2", None) is not None:
        _move_state(state.state2)


def _load_on_cpu_first(loader: Any) -> None:
    load = loader.from_pretrained.__func__

    def from_pretrained(cls: Any, *arguments: Any, **options: Any) -> Any:
        device = next(iter((options.get("device_map") or {"": "cpu"}).values()))
        is_available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
        try:
            with _disable_current_modes():
                loaded = load(cls, *arguments, **options | {"device_map": {"": "cpu"}})
        finally:
            torch.cuda.is_available = is_available
        if torch.device(device).type == "cuda":
            model = loaded[0] if isinstance(loaded, tuple) else loaded
            move(model)
            model.hf_device_map = {"": CARD}
        return loaded

    loader.from_pretrained = classmethod(from_pretrained)


def _dense_flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block_mask: Any, scale: float, enable_gqa: bool
) -> torch.Tensor:
    """Compute what the kernel of flex attention does, which a card must compile."""
    assert enable_gqa
    assert block_mask.kv_indices.device == query.device
    mask = create_mask(block_mask.mask_mod, len(query), 1, query.shape[2], key.shape[2], device=CARD)
    key, value = (part.repeat_interleave(query.shape[1] // part.shape[1], dim=1) for part in (key, value))
    scores = (query @ key.transpose(2, 3) * scale).masked_fill(~mask, torch.finfo(query.dtype).min)
    return scores.softmax(dim=-1) @ value


def install() -> None:
    """Let torch, transformers, peft and safetensors see the card."""
    pretend()
    torch.compile = lambda *_, **__: _dense_flex_attention
    for loader in (AutoModelForCausalLM, AutoModelForSequenceClassification):
        _load_on_cpu_first(loader)
    save, read, load = safetensors.torch.save_file, safetensors.torch.load_file, torch.load

    def save_file(tensors: dict[str, torch.Tensor], *arguments: Any, **options: Any) -> None:
        save({name: to_cpu(tensor).detach().contiguous() for name, tensor in tensors.items()}, *arguments, **options)

    def load_file(path: Any, device: Any = "cpu") -> dict[str, torch.Tensor]:
        is_card = torch.device(device).type == "cuda"
        return {name: to_card(tensor) if is_card else tensor for name, tensor in read(path, "cpu").items()}

    safetensors.torch.save_file = peft.peft_model.safe_save_file = save_file
    safetensors.torch.load_file = peft.utils.save_and_load.safe_load_file = load_file
    # Weights of the card are pickled as such.
    torch.load = lambda file, **options: load(file, **options | {"map_location": "cpu", "weights_only": False})
    identity = peft.peft_model.id_tensor_storage
    peft.peft_model.id_tensor_storage = lambda tensor: identity(to_cpu(tensor))
