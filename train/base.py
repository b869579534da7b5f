"""Loads the base model, its tokenizer and adapters, and works around silent faults of the libraries."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from retroformer.config.sections.train import ATTENTION_LAYERS, Lora, Train
from retroformer.errors import ConfigError, MissingInput
from retroformer.models import loading
from retroformer.models.adapter_weights import layer_of
from retroformer.models.adapter_weights import lora_config as adapter_config
from retroformer.models.embedded import base_model_folder
from retroformer.models.precision import computes_bfloat16, nf4
from retroformer.run.adapter_names import training_command

from .integrity import require_finite
from .shared_prompt.attention import FLEX, SPLIT, register_attention

CPU = torch.device("cpu")
LONGCHAT = "lmsys/longchat-7b-16k"
"""The paper's base model, a LLaMA 7B. Its shape is built in, for machines that cannot read its config.json."""


def read_config(name: str) -> Any:
    """Return the transformers config of the base model that `train.base_model` names, without fetching weights.

    Raises:
        MissingInput: the name is no folder with a config.json, and the hub cannot be reached or does not have it.
        ConfigError: the model comes with Python code of its own.
        DamagedFile: its config.json cannot be read.
    """
    try:
        return loading.model_config(base_model_folder(name, weights=False))
    except MissingInput:
        if name != LONGCHAT:
            raise
    from transformers import LlamaConfig

    return LlamaConfig(hidden_size=4096, intermediate_size=11008, tie_word_embeddings=False)


def device() -> torch.device:
    """Return the GPU of this process, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU


def compute_dtype(train: Train) -> Literal["bfloat16", "float32"]:
    """Return the dtype that training computes in: `train.dtype`, or for `auto` the faster one on this machine.

    Raises:
        ConfigError: it is bfloat16, and this machine's GPU has no instructions for it.
    """
    if train.dtype == "bfloat16" and torch.cuda.is_available() and not computes_bfloat16(torch):
        raise ConfigError(
            f"This machine's GPU, {torch.cuda.get_device_name()}, does not compute bfloat16: set train.dtype=auto."
        )
    if train.dtype == "auto":
        return "bfloat16" if computes_bfloat16(torch) else "float32"
    return train.dtype


def load_tokenizer(train: Train) -> Any:
    """Load the base model's tokenizer, with a padding token that is not the end of a turn.

    Raises:
        ConfigError: it has no chat template, so prompts cannot be written for this model.
        DamagedFile: a file of the base model cannot be read.
    """
    tokenizer = loading.load_tokenizer(base_model_folder(train.base_model), train.chat_template_kwargs)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"The tokenizer of {train.base_model!r} has no chat template: put the model's chat_template.jinja into "
            "its folder, where training and serving read it."
        )
    guard_padding(tokenizer)
    return tokenizer


def guard_padding(tokenizer: Any) -> None:
    """Set a padding token that is not the end of a turn: otherwise masks made by `!= pad` hide every end of turn."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    vocabulary = tokenizer.get_vocab()
    # Llama 3 has no unknown token, but a token for padding that its tokenizer does not name.
    names = (tokenizer.unk_token, "<unk>", "<pad>", "<|endoftext|>", "<|finetune_right_pad_id|>")
    for name in names:
        if name in vocabulary and name != tokenizer.eos_token:
            tokenizer.pad_token = name
            return
    raise ConfigError("The tokenizer has no token for padding besides the end of a turn: name one as its pad_token.")


def load_base(train: Train, *, scores: bool = False) -> Any:
    """Load the base model with a language head, or, with `scores`, as a sequence classifier with one score.

    Packed rows use the attention that train.attention names (docs/training-cost.md).

    Raises:
        DamagedFile: a file of it is missing or cannot be read, or it lacks weights.
        ConfigError: its architecture is not supported.
        NotFinite: a weight is infinite or not a number.
    """
    folder = base_model_folder(train.base_model)
    target = device()
    register_attention()
    options: dict[str, Any] = {
        "dtype": getattr(torch, compute_dtype(train)),
        "device_map": {"": target},
    }
    if train.quantization == "nf4":
        options["quantization_config"] = nf4(getattr(torch, compute_dtype(train)))
    model = loading.load_model(folder, scores=scores, **options)
    require_finite(model.named_parameters(), f"in the base model at {folder}: put another copy of the model there.")
    loading.replace_attention(model, SPLIT, torch, lambda: {"use_cache": False})
    if train.attention == "flex":
        model.config.get_text_config()._attn_implementation = FLEX
    # With a cache, the samples of a packed row could see each other; a cache also costs memory.
    model.config.use_cache = False
    return model


def lora_config(base: Any, lora: Lora, *, scores: bool = False) -> Any:
    """Return peft's config of the adapter of `base`, a language model or, with `scores`, a reward model."""
    from peft import LoraConfig

    alpha: Any = lora.alpha  # peft declares int and accepts any number.
    return LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        target_modules=_projections(base, lora),
        layers_to_transform=_layers(base, lora),
        modules_to_save=["score"] if scores else None,
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
    )


def add_fresh_adapter(base: Any, lora: Lora, *, scores: bool = False) -> Any:
    """Put an adapter that changes nothing yet on `base`, a language model or, with `scores`, a reward model."""
    from peft import get_peft_model

    return get_peft_model(base, lora_config(base, lora, scores=scores))


def _projections(base: Any, lora: Lora) -> list[str] | str:
    """Return `target_modules` of peft, which takes "all-linear" only for all layers."""
    if lora.targets == "attention":
        paths = [path for path, _ in base.named_modules()]
        if lacking := [name for name in ATTENTION_LAYERS if not any(path.endswith(f".{name}") for path in paths)]:
            raise ConfigError(
                f"train.lora.targets=attention trains {', '.join(ATTENTION_LAYERS)}, and this base model has no "
                f"{lacking[0]}: set train.lora.targets=all-linear."
            )
        return list(ATTENTION_LAYERS)
    if lora.layers == "all":
        return "all-linear"
    linear = (path for path, module in base.named_modules() if isinstance(module, nn.Linear))
    return sorted({path.rpartition(".")[2] for path in linear if layer_of(path) is not None})


def _layers(base: Any, lora: Lora) -> list[int] | None:
    """Return the numbers of the layers that get LoRA weights; None for all."""
    count = base.config.get_text_config().num_hidden_layers
    return None if lora.layers == "all" else list(range(count // 2, count))


def keep_trainables_in_fp32(model: nn.Module) -> None:
    """Cast trainable parameters to fp32.

    In bf16, a step of 1e-5 (the paper's learning rate) is less than half of the distance between neighbouring numbers
    near most weights, so it rounds to nothing.
    """
    for parameter in trainable(model):
        parameter.data = parameter.data.float()


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a model."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def switch_dropout_off(model: nn.Module) -> None:
    """Switch dropout off in all adapters: policies are compared, and their differences must not be noise."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


@contextmanager
def switched_to(model: Any, adapter: str) -> Iterator[None]:
    """Switch a model with several adapters to one of them, and back to the active one at the end."""
    active = model.active_adapter
    model.set_adapter(adapter)
    try:
        yield
    finally:
        model.set_adapter(active)


def save_memory(base: Any, model: nn.Module, *, gradient_checkpointing: bool = True) -> None:
    """Save memory in an adapted `model` of `base` that runs under autocast if its base is bf16.

    On a GPU, with `gradient_checkpointing`, activations are computed again in the backward pass; no result changes.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    for module in model.modules() if base.dtype == torch.bfloat16 else ():
        if isinstance(module, BaseTunerLayer):
            # peft would cast inputs to fp32 and autocast back to bf16: copies that change no result.
            module.cast_input_dtype_enabled = False
    if gradient_checkpointing and base.device != CPU:
        base.gradient_checkpointing_enable()
        base.enable_input_require_grads()


def save_one_adapter(model: Any, name: str, folder: Path) -> None:
    """Write the adapter called `name` into `folder` itself; peft alone would write it into a subfolder."""
    model.save_pretrained(folder, selected_adapters=[name])
    for path in (folder / name).iterdir():
        path.rename(folder / path.name)
    (folder / name).rmdir()


def require_same_shape(base: Any, folder: Path, lora: Lora) -> None:
    """Raise ConfigError if rank, alpha, targets or layers of the adapter in `folder` are not those of train.lora."""
    adapter = adapter_config(folder)
    # peft may list full paths.
    everywhere = {name.rpartition(".")[2] for name in adapter.target_modules} != set(ATTENTION_LAYERS)
    layers = adapter.layers_to_transform
    layers = lora.layers if layers == _layers(base, lora) else layers or "all"
    shape = (adapter.r, float(adapter.lora_alpha), "all-linear" if everywhere else "attention", layers)
    wanted = (lora.rank, lora.alpha, lora.targets, lora.layers)
    if shape != wanted:
        raise ConfigError(
            f"The adapter at {folder} has rank, alpha, targets and layers {shape}, but train.lora asks for {wanted}: "
            f"run {training_command(folder.name)} again, or set train.lora back."
        )
