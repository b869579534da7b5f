"""GGUF files are read back by transformers, and by llama.cpp if it is installed."""

import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from retroformer.config.file import load
from retroformer.errors import ConfigError
from tests.train.world import SPECIAL, TEMPLATE, trained
from train.__main__ import main
from train.export.gguf_file import convert

SENTENCES = ["Look in the fridge 12 of 345.", "Next time I will take the mug from cabinet 7.", "The mug was not there."]
PROMPT = "<|start|>user\nTake mug 12 from fridge 345, then é.<|end|>\n<|start|>assistant\n"


def save_llama(folder: Path, tokenizer: Any, **changes: Any) -> Path:
    """Save a Llama of two layers with random weights for this tokenizer."""
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    numbers = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    words = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    save_weights(folder, words, **numbers, **changes)
    return folder


def save_sentencepiece_llama(folder: Path) -> Any:
    """Save a Llama with a SentencePiece tokenizer trained on three sentences, and return the tokenizer."""
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=written,
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    folder.mkdir()
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    pieces = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    words = [pieces.IdToPiece(number) for number in range(len(pieces))]
    save_weights(folder, words, bos_token_id=pieces.bos_id(), eos_token_id=pieces.eos_id())
    return pieces


def save_weights(folder: Path, words: Sequence[str], **changes: Any) -> None:
    """Save random weights, with which ends of texts and incomplete letters are never sampled: llama.cpp hides them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = {
        "vocab_size": len(words),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }
    model = LlamaForCausalLM(LlamaConfig(**settings | changes))
    unsaid = [number for number, word in enumerate(words) if word[0] == "<" or not word.strip("Ġ▁").isascii()]
    model.lm_head.weight.data[unsaid] = 0.0
    model.save_pretrained(folder)


def byte_pair_tokenizer(*, digits: bool) -> Any:
    """Train a tokenizer on three sentences, like GPT-2's, or like SmolLM's with single `digits` split off first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    split: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if digits:
        split = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), split])
    tokenizer.pre_tokenizer, tokenizer.decoder = split, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=330, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], bos_token=SPECIAL[1], eos_token=SPECIAL[2]
    )


def fields(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    return {name: field.contents() for name, field in GGUFReader(str(path)).fields.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_transformers_reads_the_merged_weights_from_the_file(
    dtype: str, tiny_base: Path, workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoModelForCausalLM

    config = trained(workplace, tiny_base)
    main(["gguf", str(config), "sft", f"serve.dtype={dtype}"])
    assert capsys.readouterr().out == "runs/tiny/sft.gguf: 0 MB for llama.cpp\n"
    merged: Any = AutoModelForCausalLM.from_pretrained("runs/tiny/sft-merged", dtype="float32")
    read: Any = AutoModelForCausalLM.from_pretrained("runs/tiny", gguf_file="sft.gguf", dtype="float32")
    ids = torch.arange(3, 35)[None]
    with torch.no_grad():
        assert torch.allclose(read(input_ids=ids).logits, merged(input_ids=ids).logits, atol=1e-4)
    assert not list((workplace / "runs/tiny").glob("*.unfinished"))


def test_tokens_kinds_template_and_shape_are_in_the_file(tmp_path: Path) -> None:
    tokenizer = byte_pair_tokenizer(digits=True)
    scaling = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}
    folder = save_llama(tmp_path / "model", tokenizer, vocab_size=len(tokenizer) + 2, rope_parameters=scaling)
    convert(folder, tmp_path / "model.gguf", "a name")
    entries = fields(tmp_path / "model.gguf")
    assert entries["general.architecture"] == "llama"
    assert entries["llama.rope.scaling.type"] == "linear"
    assert (entries["llama.rope.scaling.factor"], entries["llama.rope.freq_base"]) == (8.0, 5000.0)
    assert entries["tokenizer.ggml.pre"] == "smollm"
    assert entries["tokenizer.ggml.tokens"][:3] == list(SPECIAL)
    assert len(entries["tokenizer.ggml.tokens"]) == len(tokenizer) + 2
    assert entries["tokenizer.ggml.token_type"][:4] + entries["tokenizer.ggml.token_type"][-2:] == [3, 3, 3, 1, 5, 5]
    assert entries["tokenizer.ggml.eos_token_id"] == tokenizer.eos_token_id
    assert entries["tokenizer.chat_template"] == TEMPLATE
    assert "general.file_type" in entries


def test_a_model_that_llama_cpp_might_read_wrongly_is_refused_with_an_alternative(tmp_path: Path) -> None:
    folder = save_llama(tmp_path / "model", byte_pair_tokenizer(digits=False))
    content = json.loads((folder / "tokenizer.json").read_text())
    content["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"splits by \[\['Whitespace'\]\], and only .* convert_hf_to_gguf.py on "):
        convert(folder, tmp_path / "model.gguf", "a name")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_bias": True}))
    with pytest.raises(ConfigError, match="has biases, and only"):
        convert(folder, tmp_path / "model.gguf", "a name")
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mistral"}))
    with pytest.raises(ConfigError, match="is a mistral model, and only"):
        convert(folder, tmp_path / "model.gguf", "a name")


def test_a_reward_model_is_not_converted_for_llama_cpp(tiny_base: Path, workplace: Path) -> None:
    config = trained(workplace, tiny_base, "reward")
    with pytest.raises(ConfigError, match="has a score instead of a language head"):
        main(["gguf", str(config), "reward"])
    assert load(config).stage_folder("reward").is_dir()


def test_a_sentencepiece_tokenizer_is_converted_piece_by_piece(tmp_path: Path) -> None:
    pieces = save_sentencepiece_llama(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.gguf", "a name")
    entries = fields(tmp_path / "model.gguf")
    assert entries["tokenizer.ggml.model"] == "llama"
    assert entries["tokenizer.ggml.tokens"] == [pieces.IdToPiece(number) for number in range(len(pieces))]
    assert entries["tokenizer.ggml.scores"] == pytest.approx([pieces.GetScore(number) for number in range(len(pieces))])
    unknown, control, byte = 2, 3, 6
    assert entries["tokenizer.ggml.token_type"][:4] == [unknown, control, control, byte]
    assert entries["tokenizer.ggml.eos_token_id"] == pieces.eos_id()


LLAMA_CPP = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = sys.argv[1], 512, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
server = xllamacpp.Server(params)
asked = {"prompt": sys.argv[2], "max_tokens": 16, "temperature": 0.0, "logprobs": 1}
print("ANSWER" + json.dumps(server.handle_completions(asked)))
"""


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="llama.cpp is absent: pip install xllamacpp")
@pytest.mark.parametrize("kind", ["gpt-2", "smollm", "sentencepiece"])
def test_llama_cpp_tokenises_equally_and_continues_with_the_same_words(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    if kind == "sentencepiece":
        pieces, prompt = save_sentencepiece_llama(tmp_path / "model"), SENTENCES[1]
        ids = [pieces.bos_id(), *pieces.EncodeAsIds(prompt)]
    else:
        tokenizer, prompt = byte_pair_tokenizer(digits=kind == "smollm"), PROMPT
        save_llama(tmp_path / "model", tokenizer)
        ids = tokenizer(prompt, add_special_tokens=False).input_ids
    convert(tmp_path / "model", tmp_path / "model.gguf", "a name")
    program = [sys.executable, "-c", LLAMA_CPP, str(tmp_path / "model.gguf"), prompt]
    done = subprocess.run(program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.split("ANSWER")[1])
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    whole = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, pad_token_id=0)[0].tolist()
    assert answer["usage"]["prompt_tokens"] == len(ids)
    said = [token["id"] for token in answer["choices"][0]["logprobs"]["content"]]
    assert [*ids, *said] == whole
