"""Base models in `.bin` shards, in the form of LongChat-7b-16k: the same model, and nothing but weights is read."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.models.base_files import require_sound_base, weight_files, weights_index
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import load_model, load_tokenizer
from retroformer.run.provenance import folder_sha256
from tests.support.hub import LocalHub, Repository, local_hub
from tests.support.longchat import save_as_safetensors, save_longchat
from tests.train.world import save_tiny_model

SHARD = "pytorch_model-00001-of-00002.bin"
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_longchat(tmp_path_factory.mktemp("longchat") / "bin")


@pytest.fixture
def longchat(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "longchat")


class Intruder:
    """An object whose pickle creates a folder when it is read."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize(
    ("dtype", "options"), [("float32", {}), ("bfloat16", {}), ("bfloat16", {"quantization": True})], ids=str
)
def test_logits_are_those_of_the_same_model_in_safetensors(
    dtype: str, options: dict[str, bool], saved: Path, tmp_path: Path
) -> None:
    import torch

    from retroformer.models.precision import nf4

    number = getattr(torch, dtype)
    quantized = {"quantization_config": nf4(number)} if options else {}
    ids = torch.randint(3, 1000, (2, 64), generator=torch.Generator().manual_seed(0))
    first, second = (
        load_model(folder, dtype=number, **quantized).eval()(input_ids=ids).logits
        for folder in (saved, save_as_safetensors(saved, tmp_path / "safetensors"))
    )
    assert torch.equal(first, second)
    assert first.std() > 0.01


def test_its_context_is_that_after_condensing(saved: Path) -> None:
    config = load_model(saved).config
    assert (config.max_position_embeddings, config.rope_parameters["factor"]) == (16384, 8.0)


def test_its_tokens_are_those_that_sentencepiece_makes_after_the_start_of_a_text(saved: Path) -> None:
    """As in 2023, a text after a special token begins with a space."""
    from sentencepiece import SentencePieceProcessor

    tokenizer = load_tokenizer(saved)
    pieces = SentencePieceProcessor(model_file=str(saved / "tokenizer.model"))
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Look 12 times."}], add_generation_prompt=True, tokenize=False
    )
    assert asked == "<s>USER: Look 12 times. ASSISTANT:"
    ids = tokenizer.backend_tokenizer.encode(asked, add_special_tokens=False).ids
    assert ids == [pieces.bos_id(), *pieces.encode("USER: Look 12 times. ASSISTANT:")]


def test_a_shard_changes_the_hash_unless_there_are_safetensors(longchat: Path) -> None:
    before = folder_sha256(longchat)
    (longchat / SHARD).write_bytes(b"other")
    changed = folder_sha256(longchat)
    (longchat / "model.safetensors").write_bytes(b"weights")
    beside = folder_sha256(longchat)
    (longchat / SHARD).unlink()
    assert len({before, changed, beside}) == 3
    assert folder_sha256(longchat) == beside


def cut(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:-1000])


def pickled(content: object) -> Callable[[Path], None]:
    return lambda shard: shard.write_bytes(pickle.dumps(content))


def torch_list(shard: Path) -> None:
    import torch

    torch.save([torch.zeros(2)], shard)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (cut, "failed finding central directory"),
        (Path.unlink, "it is missing, but pytorch_model.bin.index.json lists it"),
        (lambda shard: shard.write_bytes(b""), "EOFError"),
        (lambda shard: shard.write_bytes(b"<html>"), "it holds something other than weights"),
        (torch_list, "it holds something other than weights"),
        (pickled({"weight": "text"}), "it holds something other than weights"),
    ],
)
def test_a_damaged_shard_is_refused_in_one_sentence(
    damage: Callable[[Path], object], reason: str, longchat: Path
) -> None:
    damage(longchat / SHARD)
    with pytest.raises(
        DamagedFile, match=rf"^The base model cannot be read: \S+{SHARD} is damaged \(.*{reason}[^\n]*\.$"
    ):
        require_sound_base(longchat)


def test_code_in_a_pickle_does_not_run(longchat: Path, tmp_path: Path) -> None:
    import torch

    for save in (lambda content, path: path.write_bytes(pickle.dumps(content)), torch.save):
        save({"weight": Intruder(tmp_path / "intruded")}, longchat / SHARD)
        with pytest.raises(DamagedFile, match="which could be code, and nothing of it was run"):
            load_model(longchat)
    assert not (tmp_path / "intruded").exists()


def test_a_copy_with_the_index_of_the_other_kind_is_sound(longchat: Path, tmp_path: Path) -> None:
    other = save_as_safetensors(longchat, tmp_path / "other")
    shutil.copyfile(longchat / "pytorch_model.bin.index.json", other / "pytorch_model.bin.index.json")
    require_sound_base(other)
    assert weights_index(other) is None
    assert [path.name for path in weight_files(other)] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_model_with_code_of_its_own_is_refused(name: str, longchat: Path) -> None:
    path = longchat / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoConfig": "own.Config"}}))
    with pytest.raises(ConfigError, match=rf"^\S+{name} names Python code of the model's own \(auto_map\)[^\n]*\.$"):
        base_model_folder(str(longchat))


def fetch(hub: LocalHub, folder: Path, files: dict[str, bytes]) -> "subprocess.CompletedProcess[str]":
    """Offer these files on the hub, and ask for the folder of the base model in a process of its own."""
    hub.repositories["model", "lmsys/longchat"] = Repository(private=False, commits=[files])
    program = "from retroformer.models.embedded import base_model_folder; print(base_model_folder('lmsys/longchat'))"
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(folder / "hf")}
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | own | {"no_proxy": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.parametrize("safe", [True, False])
def test_shards_are_fetched_from_the_hub_only_if_there_are_no_safetensors(
    safe: bool, longchat: Path, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in longchat.iterdir()}
    files |= {"model.safetensors": b"weights"} if safe else {}
    with local_hub() as hub:
        said = fetch(hub, tmp_path, files).stdout
    shards = {name for name in files if name.endswith(".bin")}
    assert {path.name for path in Path(said.strip()).iterdir()} == files.keys() - (shards if safe else set())


def test_the_weights_of_a_model_with_code_of_its_own_are_not_fetched(longchat: Path, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in longchat.iterdir()}
    files["config.json"] = json.dumps({"auto_map": {"AutoModelForCausalLM": "own.Model"}}).encode()
    with local_hub() as hub:
        complained = fetch(hub, tmp_path, files | {"own.py": b"import os"}).stderr
    assert "names Python code of the model's own (auto_map)" in complained.splitlines()[-1]
    assert not [request for request in hub.requests if request.endswith((".bin", ".py"))]


@pytest.mark.parametrize(
    "weights",
    [
        [],
        {},
        {"a": 3},
        {"a": "."},
        {"a": "../model-2.safetensors"},
        {"a": "/tmp/model.safetensors"},
        {"a": "other.bin"},
    ],
)
def test_an_index_lists_shards_of_its_own_folder_alone(tmp_path: Path, weights: object) -> None:
    """Files of other names would be loaded, and neither checked nor hashed."""
    folder = tmp_path / "base"
    save_tiny_model(folder)
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(DamagedFile, match=r"it lists .*, and shards are called model\*\.safetensors"):
        require_sound_base(folder)


def test_files_of_other_formats_beside_the_weights_do_not_hide_them(tmp_path: Path) -> None:
    folder = tmp_path / "base"
    save_tiny_model(folder)
    before = folder_sha256(folder)
    (folder / "consolidated.safetensors").write_bytes(b"")
    assert folder_sha256(folder) == before
    assert [path.name for path in weight_files(folder)] == ["model.safetensors"]


def test_an_adapter_in_the_folder_of_a_base_is_refused(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "base")
    (tmp_path / "base" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"holds an adapter \(adapter_config\.json\)"):
        base_model_folder(str(tmp_path / "base"))


@pytest.mark.parametrize(
    "entry", [{"text_config": {"auto_map": {"AutoConfig": "own.C"}}}, {"attn_implementation": "a/b"}]
)
def test_code_is_found_at_any_depth_of_a_config(tmp_path: Path, entry: dict[str, object]) -> None:
    save_tiny_model(tmp_path / "base")
    path = tmp_path / "base" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entry))
    with pytest.raises(ConfigError, match="names Python code of the model's own"):
        base_model_folder(str(tmp_path / "base"))


def with_token(**token: str) -> Callable[[Path], None]:
    """Add a special token, or the word `word`, to the tokenizer alone."""

    def change(base: Path) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(base)
        tokenizer.add_tokens([token["word"]]) if "word" in token else tokenizer.add_special_tokens(token)
        tokenizer.save_pretrained(base)

    return change


def with_setting(**settings: Any) -> Callable[[Path], None]:
    def change(base: Path) -> None:
        path = base / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | settings))

    return change


UNUSABLE: list[tuple[Callable[[Path], None], str]] = [
    (with_token(eos_token="<|eot|>"), "writes '<|eot|>' as token 259, and the model has 259 embeddings: resize them"),
    (with_token(word="fridge"), "writes 'fridge' as token 259, and the model has 259 embeddings: resize them"),
    (with_setting(quantization_config={"quant_method": "hqq"}), " needs a package: A valid HQQ version"),
    (
        with_setting(model_type="llama9"),
        r"an architecture \(llama9\) that is not supported: the installed",
    ),
    (with_setting(model_type="t5"), r"an architecture \(t5\) that is not supported: the installed"),
]


@pytest.mark.parametrize(("change", "reason"), UNUSABLE)
def test_a_model_that_cannot_be_used_is_not_called_damaged(
    change: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    change(base := save_tiny_model(tmp_path / "base"))
    with pytest.raises((ConfigError, MissingInput), match=reason):
        load_tokenizer(base), load_model(base)


def test_a_token_that_nothing_writes_needs_no_embedding(tmp_path: Path) -> None:
    """As Gemma's for an image, or one for padding."""
    with_token(pad_token="<pad>")(base := save_tiny_model(tmp_path / "base"))
    assert load_tokenizer(base).pad_token_id == 259
