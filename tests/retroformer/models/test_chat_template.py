"""Tests of the text around the turns of a chat."""

import json
from pathlib import Path

from jinja2 import Template

from retroformer.models.chat_template import chat_template


def test_the_template_is_read_from_its_file_or_from_the_tokenizers_configuration(tmp_path: Path) -> None:
    assert chat_template(tmp_path) == ""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ old }}"}))
    assert chat_template(tmp_path) == "{{ old }}"
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert chat_template(tmp_path) == "{{ new }}"


def test_a_llama_without_a_template_gets_vicunas(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    turns = [
        {"role": "system", "content": "You advise."},
        {"role": "user", "content": "I failed."},
        {"role": "assistant", "content": "Look again."},
        {"role": "user", "content": "And now?"},
    ]
    template = Template(chat_template(tmp_path))
    text = template.render(messages=turns, bos_token="<s>", eos_token="</s>", add_generation_prompt=True)
    assert text == "<s>You advise. USER: I failed. ASSISTANT: Look again.</s>USER: And now? ASSISTANT:"
