"""A tiny model in the form of lmsys/longchat-7b-16k: `.bin` shards, SentencePiece, condensed positions, no template."""

import io
import json
from pathlib import Path

import pytest

from tests.support.runs import ROOT

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_condense_ratio": 8} | {
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "transformers_version": "4.28.1",
}
SPECIAL = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<unk>"}


def save_longchat(folder: Path) -> Path:
    """Save the model with random weights in two `.bin` shards; the tokenizer learns its words from our prompts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    _save_tokenizer(folder)
    torch.manual_seed(0)
    weights = LlamaForCausalLM(LlamaConfig(**CONFIG, initializer_range=0.1)).half().state_dict()
    shards = {"pytorch_model-00001-of-00002.bin": [], "pytorch_model-00002-of-00002.bin": []}
    for name in weights:
        shards[f"pytorch_model-0000{1 + ('layers.0' not in name)}-of-00002.bin"].append(name)
    for shard, names in shards.items():
        torch.save({name: weights[name] for name in names}, folder / shard)
    index = {"metadata": {}, "weight_map": {name: shard for shard, names in shards.items() for name in names}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return folder


def save_as_safetensors(folder: Path, other: Path) -> Path:
    """Save the same model with its weights in one file of safetensors."""
    import shutil

    import torch
    from safetensors.torch import save_file

    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("pytorch_model*"))
    shards = [torch.load(path, weights_only=True) for path in folder.glob("*.bin")]
    weights = {name: tensor for shard in shards for name, tensor in shard.items()}
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    return other


def _save_tokenizer(folder: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    texts = [path.read_text() for path in sorted((ROOT / "retroformer/method/packs").glob("*.yaml"))]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter("".join(texts).splitlines()),
        model_writer=written,
        vocab_size=CONFIG["vocab_size"],
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    settings = {"tokenizer_class": "LlamaTokenizer", "model_max_length": 16384, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | SPECIAL | {"pad_token": None}))
    (folder / "special_tokens_map.json").write_text(json.dumps(SPECIAL))
