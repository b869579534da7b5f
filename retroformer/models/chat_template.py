"""Chat template of a model: its own, or that of Vicuna 1.1 for an old Llama model."""

import json
from pathlib import Path

_VICUNA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + ' ' }}"
    "{% elif message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Template of Vicuna 1.1. LongChat-7b-16k, the paper's reflector, was tuned on it and ships without a template."""


def chat_template(folder: Path) -> str:
    """Return the template of the model in `folder`: the tokenizer's own, else Vicuna's for a Llama, else "".

    Training and serving both use this function, so they see the same tokens.
    """
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    template = _entry(folder / "tokenizer_config.json", "chat_template")
    if isinstance(template, list):  # Several templates by name.
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if isinstance(template, str):
        return template
    return _VICUNA if _entry(folder / "config.json", "model_type") == "llama" else ""


def _entry(path: Path, name: str) -> object:
    return json.loads(path.read_text(encoding="utf-8")).get(name) if path.is_file() else None
