"""Tests of the lines in front of a chat template: settings, a fixed date, and folded system messages."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template
from jinja2.exceptions import SecurityError

from retroformer.errors import ConfigError
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import load_tokenizer
from retroformer.models.prompt_template import chat_template, prompt_template, prompt_text, render
from retroformer.run.provenance import chat_template_sha256

TURNS = [{"role": "system", "content": "You advise."}, {"role": "user", "content": "I failed."}]
OPENED = "<|im_start|>system\nYou advise.<|im_end|>\n<|im_start|>user\nI failed.<|im_end|>\n<|im_start|>assistant\n"
OWN = Path(__file__).parents[2] / "templates"
"""Templates of the form of those whose text may not be copied."""


def model(folder: Path, name: str) -> Path:
    """Write the chat template of this name into `folder`: our own, or the original that TRL's package carries."""
    own = OWN / f"{name}.jinja"
    text = own.read_text() if own.is_file() else (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    (folder / "chat_template.jinja").write_text(text)
    return folder


def prompt_of(folder: Path, messages: list[dict[str, str]] = TURNS, **settings: Any) -> str:
    return render(prompt_template(folder, settings), messages)


@pytest.mark.parametrize("name", ["qwen3", "qwen3_instruct_2507", "llama3"])
def test_a_template_that_needs_nothing_stays_as_it_is(tmp_path: Path, name: str) -> None:
    assert prompt_template(model(tmp_path, name)) == (tmp_path / "chat_template.jinja").read_text()


def test_qwen3_closes_its_thinking_at_once_where_the_config_turns_it_off(tmp_path: Path) -> None:
    model(tmp_path, "qwen3")
    assert prompt_of(tmp_path) == OPENED
    assert prompt_of(tmp_path, enable_thinking=False) == OPENED + "<think>\n\n</think>\n\n"


def test_smollm3_writes_its_mode_into_the_system_message_and_a_fixed_date(tmp_path: Path) -> None:
    model(tmp_path, "smollm3")
    text = prompt_of(tmp_path, enable_thinking=False)
    assert "Today Date: 26 July 2024\nReasoning Mode: /no_think\n\n## Custom Instructions\n\nYou advise.\n\n" in text
    assert text.endswith("<|im_start|>user\nI failed.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n")
    assert prompt_of(tmp_path).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("name", ["llama3_1", "llama3_2"])
def test_llama_3_writes_the_same_date_every_day_unless_the_config_sets_one(tmp_path: Path, name: str) -> None:
    model(tmp_path, name)
    assert "Today Date: 26 Jul 2024\n\nYou advise.<|eot_id|>" in prompt_of(tmp_path)
    assert "Today Date: 1 Jan 2030\n" in prompt_of(tmp_path, date_string="1 Jan 2030")


def test_mistral_puts_the_system_message_before_the_last_question(tmp_path: Path) -> None:
    later = [*TURNS, {"role": "assistant", "content": "Look."}, {"role": "user", "content": "And now?"}]
    text = prompt_of(model(tmp_path, "mistral"), later)
    assert text == "[INST] I failed.[/INST] Look.[INST] You advise.\n\nAnd now?[/INST]"


def test_a_system_message_that_a_template_refuses_or_drops_opens_the_first_question(tmp_path: Path) -> None:
    folded = "<start_of_turn>user\nYou advise.\n\nI failed.<end_of_turn>\n<start_of_turn>model\n"
    assert prompt_of(model(tmp_path, "gemma")) == folded
    assert prompt_of(tmp_path, TURNS[1:]) == folded.replace("You advise.\n\n", "")
    assert prompt_of(tmp_path, TURNS[:1]) == folded.replace("\n\nI failed.", "")
    dropping = "{% for message in messages if message.role == 'user' %}Q: {{ message.content }}\n{% endfor %}A:"
    (tmp_path / "chat_template.jinja").write_text(dropping)
    assert prompt_of(tmp_path) == "Q: You advise.\n\nI failed.\nA:"


def test_a_template_that_renders_no_question_either_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('never') }}")
    assert prompt_template(tmp_path) == "{{ raise_exception('never') }}"


def test_the_lines_before_a_template_add_no_text_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("\n  {% if setting %}  {{ messages[0].content }}{% endif %}")
    assert prompt_of(tmp_path, TURNS[1:], setting=[{"a": None, "b": 'a "word"%}', "c": 1.5}]) == "\n  I failed."


def test_settings_reach_the_template_as_json_has_them(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}{{ setting | tojson }}")
    for value in (None, True, -3, 0.5, 'é "quoted" {% x %}\n', [1, [None]], {"key": {"deep": False}}):
        template = prompt_template(tmp_path, {"setting": value})
        assert json.loads(render(template, TURNS[1:]).removeprefix("I failed.")) == value


def test_weights_with_these_lines_in_their_template_get_them_only_once(tmp_path: Path) -> None:
    for name, settings in (("smollm3", {"enable_thinking": False}), ("gemma", {}), ("llama3_2", {"date_string": "x"})):
        template = prompt_template(model(tmp_path, name), settings)
        (tmp_path / "chat_template.jinja").write_text(template)
        assert prompt_template(tmp_path, settings) == template


def test_a_setting_that_the_template_does_not_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=re.escape("does not read 'enabel_thinking': correct its name in train.chat_")
    ):
        prompt_template(model(tmp_path, "qwen3"), {"enabel_thinking": False})


def test_the_hash_of_the_template_covers_its_settings(tmp_path: Path) -> None:
    model(tmp_path, "qwen3")
    hashes = {chat_template_sha256(tmp_path, settings) for settings in (None, {}, {"enable_thinking": False})}
    assert len(hashes) == 2


def test_the_template_is_read_from_its_file_or_from_the_tokenizers_configuration(tmp_path: Path) -> None:
    assert chat_template(tmp_path) == ""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ old }}"}))
    assert chat_template(tmp_path) == "{{ old }}"
    (tmp_path / "chat_template.jinja").write_text("{{ new }}")
    assert chat_template(tmp_path) == "{{ new }}"


def test_longchat_alone_gets_vicunas_template_if_it_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    assert chat_template(tmp_path) == ""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "rope_condense_ratio": 8}))
    turns = [
        {"role": "system", "content": "You advise."},
        {"role": "user", "content": "I failed."},
        {"role": "assistant", "content": "Look again."},
        {"role": "user", "content": "And now?"},
    ]
    template = Template(chat_template(tmp_path))
    text = template.render(messages=turns, bos_token="<s>", eos_token="</s>", add_generation_prompt=True)
    assert text == "<s>You advise. USER: I failed. ASSISTANT: Look again.</s>USER: And now? ASSISTANT:"


@pytest.mark.parametrize("reach", ["cycler.__init__.__globals__['os']", "messages.append.__self__.__class__.__mro__"])
def test_no_template_reaches_python(reach: str, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(base_model_folder("embedded"))
    tokenizer.chat_template = "{{ " + reach + " }}"
    for write in (lambda: render(tokenizer.chat_template, TURNS), lambda: prompt_text(tokenizer, TURNS)):
        with pytest.raises(SecurityError):
            write()
