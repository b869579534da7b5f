import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retroformer.errors import MissingInput
from retroformer.files.packages import MODEL, package_folder
from retroformer.models.embedded import base_model_folder
from retroformer.models.loading import model_config

PROGRAM = "from retroformer.models.embedded import base_model_folder; print(base_model_folder('embedded'))"


@pytest.fixture(scope="module")
def converted() -> Path:
    """Return the converted model in the user's cache; the first use on a machine converts it."""
    _require_package()
    return base_model_folder("embedded")


def _require_package() -> None:
    try:
        package_folder(MODEL)
    except MissingInput as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
def test_two_processes_convert_one_model_and_leave_nothing_unfinished(tmp_path: Path) -> None:
    _require_package()
    environment = {**os.environ, "RETROFORMER_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=300) for process in both]
    folder = tmp_path / "SmolLM2-135M-Instruct"
    assert [process.returncode for process in both] == [0, 0], said
    assert [output for output, _ in said] == [f"{folder}\n"] * 2
    assert ["it/s]" in errors for _, errors in said] == [False, False]
    assert list(tmp_path.iterdir()) == [folder]


def test_the_tokenizer_splits_digits_and_round_trips(converted: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    tokens = tokenizer("put 12 cups").input_ids
    assert [tokenizer.decode([token]) for token in tokens] == ["put", " ", "1", "2", " cups"]
    assert tokenizer.decode(tokens) == "put 12 cups"


def test_padding_is_not_the_end_of_a_turn(converted: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert json.loads((converted / "config.json").read_text())["pad_token_id"] == tokenizer.pad_token_id


def test_its_files_have_the_settings_that_every_version_of_transformers_needs(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert "quantization_config" not in config
    assert json.loads((converted / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_it_knows_the_capital_of_france(converted: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(converted)
    model = AutoModelForCausalLM.from_pretrained(converted, dtype="float32")
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_a_folder_is_taken_as_it_is_if_it_holds_a_model(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="No model in"):
        base_model_folder(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert base_model_folder(str(tmp_path)) == tmp_path


def test_an_unknown_model_name_is_a_missing_input_with_instructions(tmp_path: Path) -> None:
    program = f"from retroformer.models.embedded import base_model_folder; base_model_folder({'nobody/nothing'!r})"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    finished = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert "MissingInput: No base model 'nobody/nothing'" in finished.stderr
    assert "`embedded`, a folder, or a hub name" in finished.stderr


def test_condensed_rotary_positions_become_linear_scaling(tmp_path: Path) -> None:
    settings = {
        "model_type": "llama",
        "rope_condense_ratio": 8,
        "rope_theta": 10000.0,
        "max_position_embeddings": 16384,
    }
    (tmp_path / "config.json").write_text(json.dumps(settings))
    rope = model_config(tmp_path).rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["rope_theta"]) == ("linear", 8.0, 10000.0)
