"""A file for llama.cpp: `retroformer train gguf EXPERIMENT.yaml STAGE [key=value ...]`.

Reads runs/NAME/STAGE-merged (and merges first if it is missing); writes runs/NAME/STAGE.gguf in the same dtype, with
the tokenizer and the chat template. llama.cpp's `llama-quantize` makes it smaller.

Only Llamas with tokenizers that llama.cpp reproduces are converted. llama.cpp would load others without an error but
tokenise texts differently, so they are refused, with a pointer to llama.cpp's own converter.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from retroformer.config.experiment import Experiment
from retroformer.errors import ConfigError
from retroformer.files import durable
from retroformer.models.loading import model_config

from .merge import merge

ARCHITECTURE = "llama"
SPLITTERS = {
    '[["ByteLevel", false, true]]': "gpt-2",
    '[["Digits", true], ["ByteLevel", false, true]]': "smollm",
}
"""llama.cpp's names for the pre-tokenizers of byte-pair tokenizers, by the steps of the pre-tokenizer."""
FILE_TYPES = {torch.float32: gguf.LlamaFileType.ALL_F32, torch.bfloat16: gguf.LlamaFileType.MOSTLY_BF16}


def convert_stage(experiment: Experiment, name: str) -> Path:
    """Write the GGUF file of the stage `name`, and return its path.

    Raises:
        ConfigError: llama.cpp cannot serve this model, or may tokenise texts differently.
    """
    if name == "reward":
        raise ConfigError(
            "The reward model has a score instead of a language head, which llama.cpp does not serve: name another "
            "stage."
        )
    merged = merge(experiment, name)
    path = experiment.stage_folder(name).with_suffix(".gguf")
    with durable.replace_file(path) as unfinished:
        convert(merged, unfinished, f"{experiment.run} {name}")
    return path


def convert(folder: Path, path: Path, name: str) -> None:
    """Write the Llama in `folder` to `path`. Raises ConfigError for other models or tokenizers."""
    config: Any = model_config(folder)
    _require_llama(config, folder)
    writer = gguf.GGUFWriter(path, ARCHITECTURE)
    writer.add_name(name)
    _add_shape(writer, config)
    _add_tokenizer(writer, folder, config.vocab_size)
    dtypes = {tensor.dtype for _, tensor in _tensors(folder, config)}
    writer.add_file_type(FILE_TYPES[torch.bfloat16 if torch.bfloat16 in dtypes else torch.float32])
    # Two passes over the weights, one tensor in memory at a time, since the file begins with a list of all tensors.
    for key, tensor in _tensors(folder, config):
        array, kind = _stored(tensor)
        writer.add_tensor_info(key, array.shape, array.dtype, array.nbytes, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, tensor in _tensors(folder, config):
        writer.write_tensor_data(_stored(tensor)[0])
    writer.close()


def _require_llama(config: Any, folder: Path) -> None:
    rope = config.rope_parameters
    odd = {
        f"is a {config.model_type} model": config.model_type != "llama",
        f"has {rope['rope_type']} rope scaling": rope["rope_type"] not in ("default", "linear"),
        "has biases": getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False),
    }
    if reasons := [reason for reason, applies in odd.items() if applies]:
        raise _refusal(folder, reasons[0])


def _add_shape(writer: gguf.GGUFWriter, config: Any) -> None:
    head_size = config.head_dim or config.hidden_size // config.num_attention_heads
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if config.rope_parameters["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(config.rope_parameters["factor"])


def _add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocabulary: int) -> None:
    """Add the tokens in order, their kinds, the merges or scores, and the chat template."""
    is_sentencepiece = (folder / "tokenizer.model").is_file()
    if is_sentencepiece:
        pieces = list(gguf.SentencePieceVocab(folder).all_tokens())
        pieces += [
            (f"<unused{number}>".encode(), -1e4, gguf.TokenType.UNUSED) for number in range(len(pieces), vocabulary)
        ]
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([text for text, _, _ in pieces])
        writer.add_token_scores([score for _, score, _ in pieces])
        writer.add_token_types([kind for _, _, kind in pieces])
    else:
        tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        words, kinds = _byte_pair_tokens(tokenizer, vocabulary)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_splitter(tokenizer, folder))
        writer.add_token_list(words)
        writer.add_token_types(kinds)
    special = gguf.SpecialVocab(folder, load_merges=not is_sentencepiece, n_vocab=vocabulary)
    special.add_to_gguf(writer, quiet=True)


def _byte_pair_tokens(tokenizer: dict[str, Any], vocabulary: int) -> tuple[list[str], list[gguf.TokenType]]:
    words = {number: f"<unused{number}>" for number in range(vocabulary)}
    kinds = dict.fromkeys(range(vocabulary), gguf.TokenType.UNUSED)
    for word, number in tokenizer["model"]["vocab"].items():
        words[number], kinds[number] = word, gguf.TokenType.NORMAL
    for added in tokenizer["added_tokens"]:
        words[added["id"]] = added["content"]
        kinds[added["id"]] = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
    return [words[number] for number in range(vocabulary)], [kinds[number] for number in range(vocabulary)]


def _splitter(tokenizer: dict[str, Any], folder: Path) -> str:
    """Return llama.cpp's name for the tokenizer's pre-tokenizer. Raises ConfigError for an unknown one."""
    splitter = tokenizer["pre_tokenizer"] or {}
    steps = [
        [step["type"], *(step[name] for name in ("individual_digits", "add_prefix_space", "use_regex") if name in step)]
        for step in splitter.get("pretokenizers", [splitter])
        if step
    ]
    is_plain = tokenizer["model"]["type"] == "BPE" and not tokenizer["normalizer"]
    name = SPLITTERS.get(json.dumps(steps)) if is_plain else None
    if name is None:
        raise _refusal(folder, f"has a tokenizer that splits by {steps}")
    return name


def _refusal(folder: Path, why: str) -> ConfigError:
    return ConfigError(
        f"The model in {folder} {why}, and only plain Llamas with a SentencePiece, GPT-2 or SmolLM tokenizer are "
        f"converted here: run llama.cpp's own convert_hf_to_gguf.py on {folder}."
    )


def _tensors(folder: Path, config: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights under llama.cpp's names, with queries and keys permuted for its rotary embedding.

    llama.cpp rotates neighbouring dimensions of a head, transformers those of opposite halves.
    """
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as weights:
            for key in sorted(weights.keys()):
                name, weight = names.get_name(key, try_suffixes=(".weight",)), weights.get_tensor(key)
                if name is None:
                    raise _refusal(folder, f"has weights called {key}")
                if count := heads.get(key.split(".")[-2]):
                    halves = weight.reshape(count, 2, -1, weight.shape[1])
                    weight = halves.swapaxes(1, 2).reshape(weight.shape)
                yield name, weight if weight.dim() > 1 else weight.float()


def _stored(tensor: Tensor) -> tuple[np.ndarray[Any, Any], gguf.GGMLQuantizationType]:
    """Return a weight as a numpy array; bfloat16, which numpy lacks, as bytes."""
    if tensor.dtype == torch.bfloat16:
        return tensor.contiguous().view(torch.uint8).numpy(), gguf.GGMLQuantizationType.BF16
    return tensor.contiguous().numpy(), gguf.GGMLQuantizationType.F32
