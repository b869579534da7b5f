"""The template that writes prompts: the model's own, with the settings of the config in front of it.

Three things are written in front of a chat template, so that training, serving and exported weights render the same
text, and the template's hash covers all of it:

1. The settings `train.chat_template_kwargs`, such as `enable_thinking: false`.
2. A fixed date, if the template writes today's. Otherwise a prompt would have other tokens tomorrow.
3. A rule that puts a system message before the first user message, if the template refuses or drops system messages.

What a message says is text, never a control token: a control token in it, such as `<|im_end|>`, is marked, and the
tokenizer then reads its characters.
"""

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from retroformer.errors import ConfigError

_FIXED_DATE = (
    '{% macro strftime_now(format) %}{{ {"%d %b %Y": "26 Jul 2024", "%d %B %Y": "26 July 2024"}'
    '.get(format, "2024-07-26") }}{% endmacro %}\n'
)
"""The date that the templates of Llama 3 write where they cannot ask for today's."""
_SYSTEM_RULE = (
    '{% if messages[0]["role"] == "system" %}'
    '{% if messages[1:] and messages[1]["role"] == "user" %}'
    '{% set messages = [{"role": "user", "content": messages[0]["content"] + "\\n\\n" + messages[1]["content"]}]'
    " + messages[2:] %}"
    '{% else %}{% set messages = [{"role": "user", "content": messages[0]["content"]}] + messages[1:] %}{% endif %}'
    "{% endif %}\n"
)
_PROBE = "a system message as a probe"
_QUESTION = {"role": "user", "content": "a question"}
_MARK = "\ufdd0"
"""A character that Unicode reserves for programs, inside a control token that is to be read as text."""
_VICUNA = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + ' ' }}"
    "{% elif message['role'] == 'user' %}{{ 'USER: ' + message['content'] + ' ' }}"
    "{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
"""Template of Vicuna 1.1. LongChat-7b-16k, the paper's reflector, was tuned on it and ships without a template."""


def prompt_template(folder: Path, settings: Mapping[str, JsonValue] | None = None) -> str:
    """Return the template that writes the prompts of the model in `folder`; "" if the model has none.

    The text is a Jinja template for environments with `trim_blocks`, such as that of transformers. Raises ConfigError
    if the template does not read one of the settings.
    """
    template = chat_template(folder)
    if not template:
        return ""
    if unread := [name for name in settings or () if not re.search(rf"\b{name}\b", template)]:
        raise ConfigError(
            f"The chat template of the model in {str(folder)!r} does not read {unread[0]!r}: correct its name in "
            "train.chat_template_kwargs, or leave it out (`train.chat_template_kwargs={}` also drops a preset's)."
        )
    head = "".join(f"{{% set {name} = {_literal(value)} %}}\n" for name, value in (settings or {}).items())
    head += _FIXED_DATE if "strftime_now" in template else ""
    if head and template.startswith(head):
        return template  # It is that of merged weights, which has these lines already.
    if not _renders(head + template, [_QUESTION]) and _renders(head + template, [_QUESTION], part=""):
        raise ConfigError(
            f"The chat template of the model in {str(folder)!r} writes nothing of a message that is a text: put a "
            "chat_template.jinja that does into that folder."
        )
    return head + (_SYSTEM_RULE if _loses_system_messages(head + template) else "") + template


def chat_template(folder: Path) -> str:
    """Return the template of the model in `folder`: the tokenizer's own, else Vicuna's for a LongChat, else ""."""
    separate = folder / "chat_template.jinja"
    if separate.is_file():
        return separate.read_text(encoding="utf-8")
    template = _entry(folder / "tokenizer_config.json", "chat_template")
    if isinstance(template, list):  # Several templates by name.
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if isinstance(template, str):
        return template
    return _VICUNA if _entry(folder / "config.json", "rope_condense_ratio") else ""


def _entry(path: Path, name: str) -> object:
    return json.loads(path.read_text(encoding="utf-8")).get(name) if path.is_file() else None


def render(template: str, messages: list[dict[str, str]]) -> str:
    """Return the prompt that a template writes, with "" for a model's special tokens. Raises what the template does."""
    from transformers.utils.chat_template_utils import render_jinja_template

    special: dict[str, Any] = {"bos_token": "", "eos_token": ""}
    texts, _ = render_jinja_template([messages], chat_template=template, add_generation_prompt=True, **special)
    return str(texts[0])


@lru_cache(maxsize=4)
def _control_tokens(tokenizer: Any) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns of the special tokens, and of all tokens that a template writes around a text."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    others = {token.content for token in added if token.content.startswith(("<", "["))}
    return _any_of(special), _any_of(special | others)


def _any_of(texts: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def mark(tokenizer: Any, text: str, role: str = "user") -> str:
    """Mark the control tokens in a text, so that `encode` reads their characters.

    In a model's own turns these are the special tokens alone: templates look for tokens such as `</think>` there.
    """
    special, every = _control_tokens(tokenizer)
    pattern = special if role == "assistant" else every
    return pattern.sub(lambda token: token[0][0] + _MARK + token[0][1:], text.replace(_MARK, ""))


def prompt_text(tokenizer: Any, messages: Iterable[Mapping[str, str]]) -> str:
    """Return the prompt that the chat template makes of messages, for `encode`. Raises what the template does."""
    if not tokenizer.chat_template:
        raise ConfigError("it has none; put the model's chat_template.jinja into its folder")
    marked = [{**message, "content": mark(tokenizer, message["content"], message["role"])} for message in messages]
    return str(tokenizer.apply_chat_template(marked, add_generation_prompt=True, tokenize=False))


def encode(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text alone, with its control tokens unless they are marked."""
    # The backend is used directly: transformers' wrapper changes its settings and is not thread-safe. It releases the
    # GIL only in `encode_batch`, hence the batch of one.
    (encoding,) = tokenizer.backend_tokenizer.encode_batch([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    if _MARK not in text:
        return ids
    return [token for token, (start, end) in zip(ids, encoding.offsets, strict=True) if text[start:end] != _MARK]


def end_of_turn(tokenizer: Any) -> int | None:
    """Return the special token that the chat template writes after an answer; None if there is none."""
    try:
        turns = [_QUESTION, {"role": "assistant", "content": _PROBE}]
        after = str(tokenizer.apply_chat_template(turns, tokenize=False)).rpartition(_PROBE)[2].lstrip()
    except Exception:  # Chat templates are third-party programs and may raise anything.
        return None
    token = _control_tokens(tokenizer)[0].match(after)
    return tokenizer.convert_tokens_to_ids(token[0]) if token else None


def _loses_system_messages(template: str) -> bool:
    """Return True if the template renders a user's message, and refuses or drops a system message before it."""
    system = {"role": "system", "content": _PROBE}
    return _renders(template, [_QUESTION]) and not _renders(template, [system, _QUESTION])


def _renders(template: str, messages: list[dict[str, str]], part: str | None = None) -> bool:
    """Return True if a template writes this part, by default the text of the first message."""
    try:
        return (messages[0]["content"] if part is None else part) in render(template, messages)
    except Exception:  # Chat templates are third-party programs and may raise anything.
        return False


def _literal(value: JsonValue) -> str:
    """Write a value of JSON as Jinja does, which calls null `none`."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)}: {_literal(entry)}' for key, entry in value.items())}}}"
    return json.dumps(value, ensure_ascii=False)
