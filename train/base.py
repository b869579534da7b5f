"""Loads the base model and its tokenizer, and guards against what goes wrong there without a message."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from retroformer.chat_template import chat_template
from retroformer.embedded_model import base_model_folder, model_config
from retroformer.errors import ConfigError, MissingInput
from retroformer.train_sections import Lora, Train
from train.finite import require_finite
from train.sound import (
    METRICS,
    WEIGHTS,
    damaged_base,
    read_metrics,
    reading_base,
    require_fit,
    require_sound_adapter,
    require_sound_base,
)

CPU = torch.device("cpu")


def device() -> torch.device:
    """The accelerator of this process, or the CPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else CPU


def load_tokenizer(train: Train) -> Any:
    """The base model's tokenizer, with a padding token that is not the end of a turn.

    Raises:
        ConfigError: it has no chat template, so nobody knows how a prompt looks to this model.
        DamagedFile: a file of the base model cannot be read.
    """
    from transformers import AutoTokenizer

    folder = base_model_folder(train.base_model)
    require_sound_base(folder)
    with reading_base(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = chat_template(folder)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"The tokenizer of {train.base_model!r} has no chat template: put the model's chat_template.jinja into "
            "its folder, where training and serving read it."
        )
    guard_padding(tokenizer)
    return tokenizer


def guard_padding(tokenizer: Any) -> None:
    """Give padding a token of its own: where it is the end of a turn, masks made by `!= pad` hide every end."""
    if tokenizer.pad_token_id is not None and tokenizer.pad_token_id != tokenizer.eos_token_id:
        return
    known = tokenizer.get_vocab()
    candidates = [name for name in (tokenizer.unk_token, "<unk>", "<pad>", "<|endoftext|>") if name in known]
    for name in candidates:
        if name != tokenizer.eos_token:
            tokenizer.pad_token = name
            return
    raise ConfigError("The tokenizer has no token for padding besides the end of a turn: name one as its pad_token.")


def load_base(train: Train, *, scores: bool = False) -> Any:
    """The base model with a language head, or with one score (a sequence classifier) where `scores`.

    On a GPU it uses memory-saving attention; on a CPU the plain one, which trains faster at short lengths.

    Raises:
        DamagedFile: a file of it is missing or cannot be read, or it lacks weights.
        NotFinite: a weight is infinite or not a number.
    """
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    folder = base_model_folder(train.base_model)
    require_sound_base(folder)
    target = device()
    options: dict[str, Any] = {
        "config": model_config(folder),
        "dtype": getattr(torch, train.dtype),
        "attn_implementation": "eager" if target == CPU else "sdpa",
        "device_map": {"": target},
    }
    if train.quantization == "nf4":
        options["quantization_config"] = quantization(train)
    kind = AutoModelForCausalLM
    if scores:
        kind = AutoModelForSequenceClassification
        options["config"].num_labels = 1
    with reading_base(folder):
        model, found = kind.from_pretrained(folder, output_loading_info=True, **options)
    # transformers draws weights that it does not find, as it must for a score head.
    if lacking := sorted(name for name in found["missing_keys"] if not (scores and name.startswith("score."))):
        raise damaged_base(folder, ValueError(f"it has no weights called {lacking[0]}"))
    require_finite(model.named_parameters(), f"in the base model at {folder}: put another copy of the model there.")
    guard_bnb_cpu(model)
    # A forward pass that keeps a cache would let packed samples see each other, and costs memory in training.
    model.config.use_cache = False
    return model


def quantization(train: Train) -> Any:
    """NF4 with double quantisation; said in full, since `load_in_4bit` alone means FP4 and fp32 compute."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, train.dtype),
    )


def guard_bnb_cpu(model: nn.Module) -> None:
    """Keep 4-bit weights of a CPU in the layout that has gradients.

    On CPUs with AVX512-BF16, bitsandbytes repacks a weight at its first forward pass in eval mode; every gradient
    after that is wrong (its cosine to the true one is 0.1 to 0.2) and nothing says so. Weights that were repacked
    before are turned back.
    """
    four_bit = [module for module in model.modules() if type(module).__name__ == "Linear4bit"]
    if not four_bit or next(model.parameters()).device != CPU:
        return
    from bitsandbytes.functional import _convert_weight_packed_for_cpu_inverse

    for module in four_bit:
        module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
        weight: Any = module.weight
        if getattr(weight.quant_state, "packing_format_for_cpu", False):
            weight.data, weight.quant_state = _convert_weight_packed_for_cpu_inverse(weight.data, weight.quant_state)


def lora_config(lora: Lora, *, scores: bool = False) -> Any:
    """The adapter that a page describes, for the language model or for the reward model with its score head."""
    from peft import LoraConfig

    alpha: Any = lora.alpha  # peft says int and takes any number.
    return LoraConfig(
        r=lora.rank,
        lora_alpha=alpha,
        lora_dropout=lora.dropout,
        target_modules=["q_proj", "v_proj"] if lora.targets == "attention" else "all-linear",
        modules_to_save=["score"] if scores else None,
        task_type="SEQ_CLS" if scores else "CAUSAL_LM",
    )


def keep_trainables_in_fp32(model: nn.Module) -> None:
    """Undo what trl does to adapters of 4-bit models: in bf16, at the paper's learning rates, most never move.

    A step of 1e-5 is less than half of the distance between neighbouring bf16 numbers near a weight, so it rounds
    away each time. To be called when the trainer is built, before it makes its optimiser.
    """
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def put_back(model: Any, folder: Path) -> None:
    """Give an adapter the weights in `folder` again, which trl has rounded to bf16 on the way."""
    from peft import set_peft_model_state_dict
    from peft.utils import load_peft_weights

    keep_trainables_in_fp32(model)
    set_peft_model_state_dict(model, load_peft_weights(str(folder), device="cpu"))


def leave_casting_to_autocast(model: nn.Module) -> None:
    """For a model that is read under autocast alone: no number changes, and memory and copies are saved.

    peft turns what an adapter reads into fp32, as the adapter's weights are; autocast turns that into bf16 again.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    adapted: list[Any] = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for module in adapted:
        module.cast_input_dtype_enabled = False


def load_adapter(base: Any, folder: Path, lora: Lora) -> Any:
    """`base` with the adapter in `folder`, ready to be trained further.

    Raises:
        ConfigError: the adapter has another shape than the page asks for, or was made for a base of another shape.
    """
    from peft import PeftConfig, PeftModel

    require_same_shape(PeftConfig.from_pretrained(str(folder)), folder, lora)
    require_fit(base, folder)
    return PeftModel.from_pretrained(base, str(folder), is_trainable=True)


def require_same_shape(found: Any, folder: Path, lora: Lora) -> None:
    """Raises ConfigError where an adapter's rank, alpha or targets are not those of the page."""
    everywhere = len(found.target_modules) > 2
    shape = (found.r, float(found.lora_alpha), "all-linear" if everywhere else "attention")
    wanted = (lora.rank, lora.alpha, lora.targets)
    if shape != wanted:
        raise ConfigError(
            f"The adapter at {folder} has rank, alpha and targets {shape}, the page asks for {wanted}: run "
            f"`python -m train {folder.name.partition('-')[0]} ...` again, or set train.lora back."
        )


def require_adapter(folder: Path) -> Path:
    """`folder`, which holds the adapter of the stage of its name.

    Raises:
        MissingInput: it holds none.
        DamagedFile, NotFinite, ProvenanceError: it is not what the stage wrote, or holds no numbers to start from.
    """
    if not (folder / WEIGHTS).is_file():
        stage = folder.name.partition("-")[0]
        raise MissingInput(f"No adapter at {folder}: run `python -m train {stage} EXPERIMENT.yaml` first.")
    metrics = read_metrics(folder / METRICS) if (folder / METRICS).is_file() else {}
    require_sound_adapter(folder, metrics)
    return folder
