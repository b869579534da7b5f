"""Loads base models, their configs, tokenizers and adapters: one function alone calls `from_pretrained`.

It never runs a model's own code. Six faults of the libraries are silent and are mended here:

1. transformers ignores LongChat's `rope_condense_ratio`; dividing positions by it is exactly linear rope scaling.
2. It initialises weights that a file lacks at random.
3. Its tokenizer of 2023's Llamas no longer writes the space with which a text after a special token began.
4. A model's own chat template may lack our settings (`prompt_template`).
5. A tokenizer's file may tell it to cut or to pad every text.
6. A normaliser may turn other characters, such as full-width letters, into a special token.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import JsonValue

from retroformer.errors import ConfigError, RetroformerError, first_line
from retroformer.models.adapter_weights import lora_config
from retroformer.models.base_files import damaged_base_error, json_object, report_damaged_base, require_sound_base
from retroformer.models.precision import compute_in, guard_bnb_cpu
from retroformer.models.prompt_template import end_of_turn, prompt_template

AutoClass = Literal["AutoConfig", "AutoTokenizer", "AutoModelForCausalLM", "AutoModelForSequenceClassification"]
LLAMA_TOKENS = 2048
"""Context of LLaMA, whose positions LongChat condenses. Some configs state this one, others that after condensing."""
PROBE_TOKENS = 16
"""Length of the prompt on which our attention is compared with that of transformers."""
LIMIT = {"torch.float32": 1e-3, "torch.bfloat16": 0.2}
"""Largest norm of the difference, relative to that of transformers. Rounding gave up to 3e-6 and 2e-2; attention
without its sinks gave 0.6, without soft caps 0.2."""
ARGUMENTS = (
    *("batch", "dropout", "is_causal", "scaling", "sliding_window", "position_ids", "cache_position"),
    *("use_cache", "logits_to_keep", "output_attentions", "output_hidden_states", "output_router_logits"),
)
"""Arguments of attention that our functions compute, or that change nothing. No context is longer than a window."""


def load_pretrained(kind: AutoClass, folder: Path, **options: Any) -> Any:
    """Call `from_pretrained` of one of transformers' classes on the files in `folder`.

    Raises DamagedFile if they cannot be read.
    """
    import transformers

    with report_damaged_base(folder):
        return _from_pretrained(getattr(transformers, kind), folder, **options)


def load_adapter(base: Any, folder: Path, name: str = "default", *, trainable: bool = True) -> Any:
    """Put the adapter in `folder` on `base` under this name, to be trained further if `trainable`."""
    from peft import PeftModel

    config = lora_config(folder)
    return _from_pretrained(PeftModel, base, str(folder), name, is_trainable=trainable, config=config)


def _from_pretrained(loader: Any, *arguments: Any, **options: Any) -> Any:
    return loader.from_pretrained(*arguments, trust_remote_code=False, **options)


def model_config(folder: Path) -> Any:
    """Load the transformers config of the model in `folder`, including LongChat's condensed rotary positions.

    Raises DamagedFile if it cannot be read, ConfigError if it is of no architecture that transformers has.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind = json_object(folder / "config.json").get("model_type")
    if isinstance(kind, str) and kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise _unsupported(folder, kind, "the installed transformers has no language model of it")
    config = load_pretrained("AutoConfig", folder)
    ratio = getattr(config, "rope_condense_ratio", None)
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if ratio and rope.get("rope_type", "default") == "default":
        config.rope_parameters = {**rope, "rope_type": "linear", "factor": float(ratio)}
        config.max_position_embeddings = max(config.max_position_embeddings, int(LLAMA_TOKENS * ratio))
    return config


def load_tokenizer(folder: Path, template_settings: Mapping[str, JsonValue] | None = None) -> Any:
    """Load the tokenizer in `folder`, with the chat template that these settings give; "" if there is none.

    Raises:
        DamagedFile: a file of the base model cannot be read.
        ConfigError: the template does not read one of the settings, or writes no text of messages; or the tokenizer is
            none of the library `tokenizers`, has no end of a turn, or a token without an embedding.
    """
    require_sound_base(folder)
    tokenizer = load_pretrained("AutoTokenizer", folder, **({"legacy": True} if _is_of_2023(folder) else {}))
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise ConfigError(
            f"The tokenizer in {folder} has no tokenizer.json: save it there with the library `tokenizers`."
        )
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"The tokenizer in {folder} has no token that ends a turn: name one as eos_token in tokenizer_config.json."
        )
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    _match_exactly(tokenizer.backend_tokenizer)
    tokenizer.chat_template = prompt_template(folder, template_settings)
    _require_embeddings(folder, tokenizer)
    return tokenizer


def _require_embeddings(folder: Path, tokenizer: Any) -> None:
    """Raise ConfigError if a token of texts, of the template or at their ends has no embedding in the model."""
    size = model_config(folder).get_text_config().vocab_size
    written = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template)
    for number, token in tokenizer.backend_tokenizer.get_added_tokens_decoder().items():
        # Nothing writes other special tokens, such as Gemma's for an image.
        if number >= size and (not token.special or any(token.content in text for text in filter(None, written))):
            raise ConfigError(
                f"The tokenizer in {folder} writes {token.content!r} as token {number}, and the model has {size} "
                "embeddings: resize them, or put the tokenizer there that the model was trained with."
            )


def _match_exactly(library: Any) -> None:
    """Let no text that a normaliser makes equal to a special token, as of full-width letters, be read as it."""
    from tokenizers import AddedToken

    normalizer, names = library.normalizer, ("special", "lstrip", "rstrip", "single_word")
    for token in library.get_added_tokens_decoder().values() if normalizer else ():
        # Where the normaliser changes the token itself, it is found in normalised texts alone.
        if token.special and token.normalized and normalizer.normalize_str(token.content) == token.content:
            settings = {name: getattr(token, name) for name in names}
            library.add_special_tokens([AddedToken(token.content, normalized=False, **settings)])


def end_tokens(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """Return all tokens that end a turn: the tokenizer's, which training teaches, the model's and the template's."""
    ends = [tokenizer.eos_token_id, end_of_turn(tokenizer)]
    for path in (folder / "generation_config.json", folder / "config.json"):
        own = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        ends += own if isinstance(own, list) else [own]
    return tuple(dict.fromkeys(end for end in ends if isinstance(end, int)))


def load_model(folder: Path, *, scores: bool = False, **options: Any) -> Any:
    """Load the model in `folder` with a language head or, with `scores`, as a sequence classifier with one score.

    Raises DamagedFile if a file of it is missing or cannot be read, or it lacks weights.
    """
    require_sound_base(folder)
    config = model_config(folder)
    if scores:
        config.num_labels = 1
    packed = options.get("quantization_config")
    if packed is not None:
        # Otherwise 4-bit weights of a float16 base would differ by the dtype that computes with them.
        options["dtype"] = "auto"
    model, loading = load_pretrained(_kind(scores), folder, config=config, output_loading_info=True, **options)
    # The head of a new reward model begins at random.
    if lacking := sorted(name for name in loading["missing_keys"] if not (scores and name.startswith("score."))):
        raise damaged_base_error(folder, ValueError(f"it has no weights called {lacking[0]}"))
    if packed is not None:
        compute_in(model, packed.bnb_4bit_compute_dtype)
    guard_bnb_cpu(model)
    return model


def replace_attention(model: Any, name: str, torch: ModuleType, options: Callable[[], Mapping[str, Any]]) -> None:
    """Let `model` compute attention by our function of this name, once it gives what transformers' own gives.

    On a prompt of at most `PROBE_TOKENS` tokens, the hidden states after each layer and the logits are compared.
    `options` returns those of the pass with our function. Raises ConfigError: they differ, or the layers do not call
    the function as the server needs.
    """
    reason, config = "", model.config.get_text_config()
    window = getattr(config, "sliding_window", None) or PROBE_TOKENS
    # Spread over the vocabulary: rounding grows on a prompt of special tokens alone.
    ids = (997 * torch.arange(min(PROBE_TOKENS, window), device=model.device)[None] + 1009) % config.vocab_size
    try:
        with torch.no_grad():
            model.set_attn_implementation("eager")
            own = model(input_ids=ids, use_cache=False, output_hidden_states=True)
            with _checked_attention(name) as layers:
                model.set_attn_implementation(name)
                positions = torch.arange(ids.shape[1], device=ids.device)[None]
                settings = {"position_ids": positions, "output_hidden_states": True, "batch": None, **options()}
                ours = model(input_ids=ids, **settings)
        pairs = [*zip(own.hidden_states, ours.hidden_states, strict=True), (own.logits, ours.logits)]
        difference = max(float((left - right).norm() / left.norm()) for left, right in pairs)
        if layers != set(range(config.num_hidden_layers)):
            reason = f"attention of {len(layers)} of {config.num_hidden_layers} layers can be replaced"
        elif any(type(module).__name__ == "Conv1D" for module in model.modules()):
            reason = "its weights are not those of linear layers"
        elif difference > LIMIT.get(str(model.dtype), 0.2):
            reason = f"our results differ from those of transformers by {difference:.2g}"
    except (RetroformerError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # Architectures that we do not know fail in many ways.
        reason = first_line(error)
    if reason:
        raise _unsupported(model.name_or_path, config.model_type, reason)


def _unsupported(folder: Path | str, kind: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The base model at {folder} has an architecture ({kind}) that is not supported: {reason}. Set "
        "train.base_model to another model (docs/models.md)."
    )


def longest_row(config: Any) -> float:
    """Return the tokens of a row beyond which a window slides, a chunk ends, or longrope switches all frequencies."""
    config = config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    sizes = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
    named = [(kind, getattr(config, name, None)) for kind, name in sizes.items()]
    limits = [size for kind, size in named if size is not None and (kinds is None or kind in kinds)]
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        limits.append(rope["original_max_position_embeddings"])
    return min(limits, default=math.inf)


@contextmanager
def _checked_attention(name: str) -> Iterator[set[int]]:
    """Refuse unknown arguments of the attention `name` in this block; yield the numbers of the layers that call it."""
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    attend, layers = ALL_ATTENTION_FUNCTIONS[name], set[int]()

    def checked(module: Any, *tensors: Any, **arguments: Any) -> Any:
        unknown = sorted(key for key, value in arguments.items() if value is not None and key not in ARGUMENTS)
        if unknown or "batch" not in arguments:
            raise ValueError(f"its attention has {unknown[0]!r}" if unknown else "its layers hide the rows of a batch")
        layers.add(module.layer_idx)
        return attend(module, *tensors, **arguments)

    AttentionInterface.register(name, checked)
    try:
        yield layers
    finally:
        AttentionInterface.register(name, attend)


def untrained_model(config: Any, *, scores: bool) -> Any:
    """Make the model of a transformers config with random weights, with a language head or one score."""
    import transformers

    config.num_labels = 1
    return getattr(transformers, _kind(scores)).from_config(config, trust_remote_code=False)


def _kind(scores: bool) -> AutoClass:
    return "AutoModelForSequenceClassification" if scores else "AutoModelForCausalLM"


def _is_of_2023(folder: Path) -> bool:
    """Return True for a SentencePiece Llama whose files do not say whether its tokenizer is the `legacy` one."""
    path = folder / "tokenizer_config.json"
    if not path.is_file() or (folder / "tokenizer.json").is_file():
        return False
    settings = json.loads(path.read_text(encoding="utf-8"))
    return settings.get("tokenizer_class") == "LlamaTokenizer" and settings.get("legacy") is None
