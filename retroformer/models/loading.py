"""Loads base models, their configs and tokenizers: the only module that calls transformers' Auto classes.

No function here runs a model's own code (`trust_remote_code=False`). Four faults of the libraries are silent and
are mended here:

1. transformers ignores LongChat's `rope_condense_ratio`; dividing positions by it is exactly linear rope scaling.
2. It initialises weights that a file lacks at random.
3. Its tokenizer of 2023's Llamas no longer writes the space with which a text after a special token began.
4. A model's own chat template may lack our settings (`prompt_template`).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import JsonValue

from retroformer.models.base_files import damaged_base_error, report_damaged_base, require_sound_base
from retroformer.models.prompt_template import prompt_template

AutoClass = Literal["AutoConfig", "AutoTokenizer", "AutoModelForCausalLM", "AutoModelForSequenceClassification"]
LLAMA_TOKENS = 2048
"""Context of LLaMA, whose positions LongChat condenses. Some configs state this one, others that after condensing."""


def load_pretrained(kind: AutoClass, folder: Path, **options: Any) -> Any:
    """Call `from_pretrained` of one of transformers' classes on the files in `folder`.

    Raises DamagedFile if they cannot be read.
    """
    import transformers

    with report_damaged_base(folder):
        return getattr(transformers, kind).from_pretrained(folder, trust_remote_code=False, **options)


def model_config(folder: Path) -> Any:
    """Load the transformers config of the model in `folder`, including LongChat's condensed rotary positions.

    Raises DamagedFile if it cannot be read, or is of no architecture that transformers has.
    """
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
        ConfigError: the template does not read one of the settings.
    """
    require_sound_base(folder)
    tokenizer = load_pretrained("AutoTokenizer", folder, **({"legacy": True} if _is_of_2023(folder) else {}))
    tokenizer.chat_template = prompt_template(folder, template_settings)
    return tokenizer


def load_model(folder: Path, *, scores: bool = False, **options: Any) -> Any:
    """Load the model in `folder` with a language head or, with `scores`, as a sequence classifier with one score.

    Raises DamagedFile if a file of it is missing or cannot be read, or it lacks weights.
    """
    require_sound_base(folder)
    config = model_config(folder)
    if scores:
        config.num_labels = 1
    model, loading = load_pretrained(_kind(scores), folder, config=config, output_loading_info=True, **options)
    # The head of a new reward model begins at random.
    if lacking := sorted(name for name in loading["missing_keys"] if not (scores and name.startswith("score."))):
        raise damaged_base_error(folder, ValueError(f"it has no weights called {lacking[0]}"))
    return model


def untrained_model(config: Any, *, scores: bool = False) -> Any:
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
