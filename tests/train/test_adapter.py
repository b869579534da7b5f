"""Adapters and base models with damaged files, NaN or another shape are refused in one sentence, before training."""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from retroformer.config.file import load
from retroformer.errors import ConfigError, DamagedFile, MissingInput, NotFinite, ProvenanceError, RetroformerError
from retroformer.method.records import Key, Message, Reflection
from retroformer.run.provenance import folder_sha256
from retroformer.run.store import open_store
from serve.adapters import name_targets
from serve.served_names import ServedNames
from tests.support.killing import refused
from tests.train.world import AUTHOR, TEMPLATE, collect, config_file, save_tiny_model, trained
from train.__main__ import main
from train.adapter import require_adapter

QUICK: dict[str, Any] = {"learning_rate": 3e-3}
UPDATES = {**QUICK, "batch_size": 4, "updates": 2, "epochs": 2}
SETTINGS: dict[str, Any] = {
    **dict.fromkeys(("sft", "reward", "dpo"), QUICK),
    "ppo": UPDATES,
    "grpo": {**UPDATES, "group": 4},
    "weak_reward_model": "allow",
}
USES = (
    ("sft", "warm"),
    ("dpo", "sft"),
    ("ppo", "sft"),
    ("ppo", "reward"),
    ("grpo", "sft"),
    ("merge sft", "sft"),
    ("gguf sft", "sft"),
)
"""Commands, each with an adapter that it loads."""
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


class Run:
    """A run with the adapters warm, sft and reward."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.folder, self.base = folder, base
        self.config = config_file(folder, base, **SETTINGS)
        with contextlib.chdir(folder):
            collect(self.config, tasks=8)
            for stage in ("warm", "sft", "reward"):
                main([stage, str(self.config)])


@pytest.fixture(scope="module")
def whole(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("sound"), tiny_base)


@pytest.fixture
def run(whole: Run, workplace: Path) -> Run:
    """Copy the run into the current folder."""
    shutil.copytree(whole.folder / "runs", workplace / "runs")
    return whole


def command(run: Run, words: str, *overrides: str) -> list[str]:
    stage, *rest = words.split()
    return [stage, str(run.config), *rest, *overrides]


def sentence(words: list[str], kind: type[RetroformerError] | tuple[type[RetroformerError], ...]) -> str:
    """Return the error message of a command."""
    with pytest.raises(kind) as refusal:
        main(words)
    said = str(refusal.value)
    assert "\n" not in said
    assert said.endswith(".")
    return said


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def fill(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def put_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_number(value: float, path: Path) -> str:
    """Write a number into a tensor of a file, and return the tensor's name."""
    weights = load_file(path)
    name = sorted(weights)[len(weights) // 2]
    weights[name].view(-1)[3] = value
    save_file(weights, path, metadata={"format": "pt"})
    return name


DAMAGES = (
    (WEIGHTS, halve),
    (WEIGHTS, fill(b"garbage")),
    (WEIGHTS, fill(b"")),
    (CONFIG, Path.unlink),
    (CONFIG, put_pipe),
    (CONFIG, fill(b"\xff\x00")),
    (CONFIG, fill(b"{}")),
    ("metrics.json", halve),
)


@pytest.mark.parametrize(
    ("words", "adapter", "name", "damage"),
    [*((*USES[0], *damage) for damage in DAMAGES), *((*use, *DAMAGES[0]) for use in USES[1:])],
)
def test_a_damaged_adapter_is_refused_by_every_command_that_loads_it(
    words: str, adapter: str, name: str, damage: Callable[[Path], object], run: Run
) -> None:
    damage(Path("runs/tiny", adapter, name))
    said = sentence(command(run, words), DamagedFile)
    assert f"runs/tiny/{adapter}/{name}" in said
    assert f"delete runs/tiny/{adapter} and train it again by `retroformer train {adapter} EXPERIMENT.yaml`" in said


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_adapter_with_nan_is_refused_with_tensor_and_file(value: float, run: Run) -> None:
    tensor = put_number(value, Path("runs/tiny/sft", WEIGHTS))
    said = sentence(command(run, "dpo"), NotFinite)
    assert tensor in said
    assert f"runs/tiny/sft/{WEIGHTS}" in said


def test_a_changed_adapter_is_detected_by_its_hash(run: Run) -> None:
    put_number(0.25, Path("runs/tiny/sft", WEIGHTS))
    said = sentence(command(run, "dpo"), ProvenanceError)
    assert "The adapter of runs/tiny/sft has sha256" in said
    assert "delete runs/tiny/sft and train it again" in said


def test_a_finished_stage_with_a_damaged_adapter_is_not_done(run: Run) -> None:
    halve(Path("runs/tiny/reward", WEIGHTS))
    assert "delete runs/tiny/reward" in sentence(command(run, "reward"), DamagedFile)
    shutil.rmtree("runs/tiny/reward")
    main(command(run, "reward"))
    assert (Path("runs/tiny/reward", WEIGHTS)).read_bytes() == (run.folder / "runs/tiny/reward" / WEIGHTS).read_bytes()


def test_damaged_merged_weights_are_written_again(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    main(command(run, "merge sft"))
    merged = Path("runs/tiny/sft-merged/model.safetensors")
    content = merged.read_bytes()
    halve(merged)
    main(command(run, "gguf sft"))
    assert merged.read_bytes() == content
    assert "merged weights in runs/tiny/sft-merged are damaged" in caplog.text


@pytest.mark.parametrize(("words", "adapter"), USES[:5])
def test_a_base_of_another_shape_is_refused_in_one_sentence(words: str, adapter: str, run: Run, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", hidden=64)
    if adapter == "reward":  # With an SFT adapter that fits.
        shutil.rmtree("runs/tiny/warm")
        main(command(run, "sft", f"train.base_model={other}"))
    said = sentence(command(run, words, f"train.base_model={other}"), ConfigError)
    assert f"runs/tiny/{adapter} does not fit the base model" in said
    assert "Set train.base_model" in said


def test_a_base_with_more_layers_than_the_adapter_was_made_for_is_refused(run: Run, tmp_path: Path) -> None:
    """Without the check, the last layers would silently stay without an adapter."""
    from transformers import LlamaConfig, LlamaForCausalLM

    deeper = save_tiny_model(tmp_path / "deeper")
    LlamaForCausalLM(LlamaConfig.from_pretrained(deeper, num_hidden_layers=3)).save_pretrained(deeper)
    said = sentence(command(run, "dpo", f"train.base_model={deeper}"), ConfigError)
    assert "runs/tiny/sft does not fit the base model" in said
    assert "layers.2" in said


def test_a_template_that_refuses_a_prompt_is_refused_in_one_sentence(tmp_path: Path, workplace: Path) -> None:
    base = save_tiny_model(tmp_path / "base")
    strict = "{% if messages[0]['content'] == 'You advise.' %}{{ raise_exception('No advisers here') }}{% endif %}"
    (base / "chat_template.jinja").write_text(strict + TEMPLATE)
    config = config_file(workplace, base, **SETTINGS)
    collect(config, tasks=2)
    store = open_store(load(config))
    asked = (Message(role="system", content="You advise."), Message(role="user", content="It failed."))
    key = Key(arm="written", task_id="collect task-0", trial=1, candidate=2)
    store.add_reflection(key, 0, Reflection(text="Look.", prompt=asked, author=AUTHOR))
    store.close()
    said = sentence(["warm", str(config)], ConfigError)
    assert "No advisers here" in said
    assert str(base) in said
    assert "system, user" in said


DAMAGED_BASES = (
    ("model.safetensors", halve),
    ("model.safetensors", fill(b"garbage")),
    ("config.json", halve),
    ("tokenizer.json", halve),
    ("tokenizer.json", fill(b"{}")),
    ("tokenizer.json", fill(b'{"added_tokens": [], "model": {"type": "nonsense"}}')),
    ("tokenizer_config.json", fill(b"\xff")),
)


@pytest.mark.parametrize(
    ("stage", "name", "damage"),
    [
        *(("warm", *damage) for damage in DAMAGED_BASES),
        *((stage, *DAMAGED_BASES[0]) for stage in ("reward", "dpo", "ppo")),
    ],
)
def test_a_damaged_base_is_refused_in_one_sentence(
    stage: str, name: str, damage: Callable[[Path], object], run: Run, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    shutil.copytree(run.base, base)
    damage(base / name)
    said = sentence(command(run, stage, f"train.base_model={base}"), DamagedFile)
    assert str(base) in said
    assert name in said or name == "tokenizer.json"
    assert "Put the model's files there again" in said


@pytest.mark.parametrize("words", ["warm", "sft", "ppo", "merge sft", "plan"])
def test_a_base_with_code_of_its_own_is_refused_and_the_code_does_not_run(
    words: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = shutil.copytree(run.base, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    classes = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (base / "config.json").write_text(json.dumps(config | {"model_type": "own", "auto_map": classes}))
    (base / "own.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))  # transformers asks whether it may run the code.
    said = sentence(command(run, words, f"train.base_model={base}"), ConfigError)
    assert said.startswith(f"{base}/config.json names Python code of the model's own (auto_map)")
    assert not (base / "ran").exists()


@pytest.mark.parametrize(("words", "adapter"), [*USES[:4], ("merge sft", "sft")])
def test_an_adapter_on_another_base_of_the_same_shape_is_refused(
    words: str, adapter: str, run: Run, tmp_path: Path
) -> None:
    base = shutil.copytree(run.base, tmp_path / "base")
    put_number(7.0, base / "model.safetensors")
    said = sentence(command(run, words, f"train.base_model={base}"), (ConfigError, ProvenanceError))
    assert folder_sha256(run.base)[:12] in said
    assert folder_sha256(base)[:12] in said
    names = ServedNames(adapters={adapter: run_folder(adapter)}, aliases={}, best_of={}, quantization="none")
    with pytest.raises(ConfigError, match=r"was trained on a base model with sha256 \w+, and train\.base_model has"):
        name_targets(base, names)
    assert name_targets(run.base, names)[adapter].model.adapter_sha256


def test_an_adapter_that_has_changed_since_its_training_is_not_served(run: Run) -> None:
    names = ServedNames(adapters={"sft": run_folder("sft")}, aliases={}, best_of={}, quantization="none")
    put_number(7.0, run_folder("sft") / "adapter_model.safetensors")
    with pytest.raises(
        ProvenanceError, match=r"runs/tiny/sft has sha256 \w+, but had \w+ after training: put the folder"
    ):
        name_targets(run.base, names)


def run_folder(adapter: str) -> Path:
    return Path("runs/tiny") / adapter


@pytest.mark.parametrize("name", ["processor_config.json", "generation_config.json", "custom_generate/generate.py"])
def test_code_that_any_other_file_of_a_base_names_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    base = shutil.copytree(run.base, tmp_path / "base")
    (base / name).parent.mkdir(exist_ok=True)
    (base / name).write_text(json.dumps({"auto_map": {"AutoProcessor": "own.Own"}}))
    said = sentence(command(run, "warm", f"train.base_model={base}"), ConfigError)
    assert said.startswith(f"{base / name.partition('/')[0]} names Python code of the model's own (")


def test_a_base_that_lacks_weights_is_refused(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(run.base, base)
    weights = load_file(base / "model.safetensors")
    lost = next(name for name in sorted(weights) if "q_proj" in name)
    del weights[lost]
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    assert lost in sentence(command(run, "warm", f"train.base_model={base}"), DamagedFile)


def test_a_base_with_nan_is_refused_with_the_tensor(run: Run, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(run.base, base)
    tensor = put_number(float("nan"), base / "model.safetensors")
    said = sentence(command(run, "warm", f"train.base_model={base}"), NotFinite)
    assert tensor in said
    assert str(base) in said


def test_a_loss_of_nan_stops_the_stage_before_a_weight_changes(tiny_base: Path, workplace: Path) -> None:
    """The adapter's weights are finite, but overflow in the first layer."""
    config = trained(workplace, tiny_base, "warm", size=1e38, **SETTINGS)
    said = sentence(["sft", str(config)], NotFinite)
    assert said.startswith("The gradient of base_model.model.model.layers.")
    assert "in step 1" in said
    assert not list(workplace.glob("runs/tiny/checkpoints/*/checkpoint-*"))
    assert not (workplace / "runs/tiny/sft").exists()


@pytest.mark.parametrize(
    ("stage", "size", "what"),
    [
        ("ppo", 3e38, "The reward model's score"),
        ("grpo", 3e38, "The reward model's score"),
        ("ppo", 1e25, "The norm of the gradients"),
    ],
)
def test_an_infinite_score_stops_the_update(stage: str, size: float, what: str, run: Run) -> None:
    """The reward model's head is finite, but its scores, or their squares in the value loss, are not."""
    reward = Path("runs/tiny/reward")
    weights = load_file(reward / WEIGHTS)
    head = next(name for name in weights if name.endswith("score.weight"))
    weights[head] = torch.full_like(weights[head], size)
    save_file(weights, reward / WEIGHTS, metadata={"format": "pt"})
    metrics = json.loads((reward / "metrics.json").read_text())
    del metrics["adapter_sha256"]
    (reward / "metrics.json").write_text(json.dumps(metrics))
    said = sentence(command(run, stage), NotFinite)
    assert said.startswith(f"Update 1 of {stage} cannot be taken. {what}")
    assert not list(Path("runs/tiny/checkpoints").glob("*/update-*"))


def test_a_policy_with_nan_probabilities_is_reported_in_one_sentence(
    tiny_base: Path, workplace: Path, run: Run
) -> None:
    shutil.rmtree("runs/tiny/sft")
    trained(workplace, tiny_base, "sft", size=1e38, **SETTINGS)
    said = sentence(["ppo", str(workplace / "config.yaml")], NotFinite)
    assert "probabilities are infinite or not numbers" in said


@pytest.mark.slow
def test_a_command_prints_the_error_in_one_line_and_exits_with_status_1(run: Run, workplace: Path) -> None:
    halve(Path("runs/tiny/sft", WEIGHTS))
    said = [line for line in refused(workplace, "train", ["ppo", str(run.config)]).splitlines() if line.strip()]
    assert said[-1].startswith(f"runs/tiny/sft/{WEIGHTS} is damaged")
    assert not any("Traceback" in line for line in said)


def test_the_error_for_a_missing_adapter_names_its_command(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match=r"No adapter at .*sft: run `retroformer train sft EXPERIMENT.yaml` first"):
        require_adapter(tmp_path / "sft")
