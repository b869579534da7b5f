"""Adapters are served on the weights on which they were trained."""

import json
from pathlib import Path

import pytest
import torch

from retroformer.config.file import load
from retroformer.errors import ConfigError
from retroformer.models.loading import load_adapter
from serve.engine.model import Model
from serve.engine.prefixes import Prefix, PrefixStore, token_budget
from serve.engine.slots import KeyValueSlots
from serve.served_names import served_names
from tests.train.world import save_adapter, tiny_experiment
from train.base import load_base

IDS = [5, 6, 7, 20, 21, 22, 23, 24, 9]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


def served_logits(model: Model, adapter: str) -> torch.Tensor:
    """Return the logits after `IDS`."""
    store = PrefixStore(model.geometry, token_budget(model.geometry, 1.0).prefixes)
    slots = KeyValueSlots(model.geometry, 1000, store)
    slots.add(Prefix())
    return model.forward([IDS], slots, [adapter]).logits_BV[0]


def test_an_adapter_trained_on_4_bits_is_served_on_the_same_weights(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = tiny_experiment(tmp_path, tiny, quantization="nf4")
    save_adapter(experiment, tmp_path / "sft", size=0.5)
    trained = load_adapter(load_base(experiment.train), tmp_path / "sft").eval()
    with torch.no_grad():
        expected = trained(input_ids=torch.tensor([IDS])).logits[0, -1]
    in_4_bits, whole = (
        Model(tiny, {"sft": tmp_path / "sft"}, "float32", quantization=kind) for kind in ("nf4", "none")
    )
    assert (in_4_bits.quantization, whole.quantization) == ("nf4", "none")
    torch.testing.assert_close(served_logits(in_4_bits, "sft"), expected, rtol=0, atol=1e-4)
    assert (served_logits(whole, "sft") - expected).abs().max() > 1e-2, "other weights are another model"


def finished(folder: Path, quantization: str | None) -> None:
    """Write the files of a stage that was trained on such weights, or by others."""
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    if quantization is not None:
        metrics = {"stage": folder.name, "inputs": {"quantization": quantization}}
        (folder / "metrics.json").write_text(json.dumps(metrics))


@pytest.mark.parametrize(
    ("trained", "served"),
    [
        ({}, "none"),
        ({"sft": "nf4"}, "nf4"),
        ({"sft": "none", "warm": "none"}, "none"),
        ({"sft": "nf4", "warm": None}, "nf4"),
    ],
)
def test_a_server_has_the_weights_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: dict[str, str | None], served: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text("run: try\nenvironment: {name: alfworld}\n")
    for name, quantization in trained.items():
        finished(Path("runs/try") / name, quantization)
    assert served_names(load(path)).quantization == served


def test_adapters_trained_on_different_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text("run: try\nenvironment: {name: alfworld}\n")
    for name, quantization in (("warm", "none"), ("sft", "nf4")):
        finished(Path("runs/try") / name, quantization)
    with pytest.raises(ConfigError, match="The adapter 'sft' was trained on 4-bit weights and 'warm' was not"):
        served_names(load(path))
