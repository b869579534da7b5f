"""Refuses adapters and base models whose files are damaged, hold no finite numbers, or do not fit each other."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from retroformer.errors import ConfigError, DamagedFile, MissingInput, ProvenanceError, RetroformerError
from retroformer.provenance import ADAPTER_FILES, folder_sha256
from train.finite import require_finite

METRICS = "metrics.json"
CONFIG, WEIGHTS = ADAPTER_FILES
SCORE = "base_model.model.score.weight"
"""The reward model's head, which peft saves beside its adapter."""


def require_sound_adapter(folder: Path, metrics: Mapping[str, Any]) -> None:
    """Check the files of the adapter in `folder`, and their hash where `metrics` record it.

    Raises:
        DamagedFile: a file of it is missing or cannot be read.
        NotFinite: a weight is infinite or not a number.
        ProvenanceError: it was altered after training.
    """
    try:
        _require_lora(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise damaged_adapter(folder, CONFIG, error) from None
    require_finite_weights(folder, _how_to_replace(folder))
    recorded = metrics.get("adapter_sha256")
    if recorded is not None and (found := folder_sha256(folder)) != recorded:
        raise ProvenanceError(
            f"The adapter of {folder} has sha256 {found[:12]}, and {str(recorded)[:12]} was trained: "
            f"{_how_to_replace(folder)}"
        )


def require_finite_weights(folder: Path, what_now: str) -> None:
    """Read the weights of the adapter in `folder`; `what_now` ends the sentence.

    Raises:
        DamagedFile: they cannot be read.
        NotFinite: one is infinite or not a number.
    """
    try:
        require_finite(_tensors(folder / WEIGHTS), f"in {folder / WEIGHTS}: {what_now}")
    except (OSError, SafetensorError) as error:
        raise damaged_adapter(folder, WEIGHTS, error) from None


def damaged_adapter(folder: Path, name: str, error: Exception) -> DamagedFile:
    """The error for a file of the adapter in `folder` that cannot be read."""
    return DamagedFile(f"{folder / name} is damaged ({_first_line(error)}): {_how_to_replace(folder)}")


def require_fit(base: nn.Module, folder: Path, *, scores: bool = False) -> None:
    """Compare the adapter in `folder` with the layers of `base`; with `scores` it has a score head beside.

    Raises:
        ConfigError: it was made for a base of another shape.
    """
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    modules = dict(base.named_modules())
    expected = {
        f"base_model.model.{path}.lora_{factor}.weight": shape
        for path, module in modules.items()
        if _is_target(path, config["target_modules"]) and hasattr(module, "in_features")
        for factor, shape in (("A", (config["r"], module.in_features)), ("B", (module.out_features, config["r"])))
    }
    if scores:
        expected[SCORE] = (1, base.config.get_text_config().hidden_size)  # type: ignore[union-attr, operator]
    found = _shapes(folder / WEIGHTS)
    for name in sorted(expected.keys() | found.keys()):
        if found.get(name) != expected.get(name):
            raise ConfigError(
                f"The adapter in {folder} does not fit the base model {getattr(base, 'name_or_path', '')!r}: "
                f"{name} has {_told(found.get(name))} there and {_told(expected.get(name))} on this base. Set "
                "train.base_model to the model that it was trained on, or delete the folder and train it again."
            )


def require_sound_base(folder: Path) -> None:
    """Raises DamagedFile where a file of the base model in `folder` is cut short, altered or missing."""
    for path in (
        one for pattern in ("*config.json", "tokenizer*.json", "*.index.json") for one in folder.glob(pattern)
    ):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged_base(path, error) from None
        parts = set(content.get("weight_map", {}).values()) if path.name.endswith(".index.json") else set()
        for part in sorted(part for part in parts if not (folder / part).is_file()):
            raise damaged_base(folder / part, FileNotFoundError(f"{path.name} names it, and it is missing"))
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):
                pass
        except (OSError, SafetensorError) as error:
            raise damaged_base(path, error) from None


def damaged_base(path: Path, error: Exception) -> DamagedFile:
    """The error for a file or folder of a base model that cannot be read."""
    return DamagedFile(
        f"The base model cannot be read: {path} is damaged ({_first_line(error)}). Put the model's files there again; "
        "`embedded`, and a model from the hub, come back by themselves once their folder is deleted."
    )


@contextmanager
def reading_base(folder: Path) -> Iterator[None]:
    """Within this a library reads the base model in `folder`. Raises DamagedFile where it cannot."""
    try:
        yield
    except RetroformerError:
        raise
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise damaged_base(folder, error) from None
    except RuntimeError as error:
        if "mismatch" not in str(error):  # It may tell of a card without memory.
            raise
        raise damaged_base(folder, error) from None
    except Exception as error:
        if type(error) is not Exception:  # What the library of tokenizers raises has no name of its own.
            raise
        raise damaged_base(folder, error) from None


def read_metrics(path: Path) -> dict[str, Any]:
    """What a stage has written into its metrics.json.

    Raises:
        MissingInput: it is not there.
        DamagedFile: it is not as it was written.
    """
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(metrics, dict):
            raise ValueError("no JSON object")
    except FileNotFoundError:
        raise MissingInput(f"No {path}: {_how_to_replace(path.parent)}") from None
    except ValueError as error:
        raise DamagedFile(f"{path} is damaged ({_first_line(error)}): {_how_to_replace(path.parent)}") from None
    return metrics


def _require_lora(config: Any) -> None:
    """Raises ValueError where this is not what peft writes for a LoRA."""
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise ValueError("no LoRA configuration")
    for name, kind in (("r", int), ("lora_alpha", int | float), ("target_modules", list | str)):
        if not isinstance(config.get(name), kind):
            raise ValueError(f"no {name}")


def _is_target(path: str, targets: list[str] | str) -> bool:
    """Whether an adapter belongs on a layer. peft may name the layers one by one: those of every block are alike."""
    if isinstance(targets, str):
        return re.fullmatch(targets, path) is not None
    return path.rpartition(".")[2] in {target.rpartition(".")[2] for target in targets}


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as weights:
        for name in sorted(weights.keys()):
            yield name, weights.get_tensor(name)


def _shapes(path: Path) -> Mapping[str, tuple[int, ...]]:
    with safe_open(path, framework="pt") as weights:
        return {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118


def _told(shape: tuple[int, ...] | None) -> str:
    return "no weights" if shape is None else f"shape {shape}"


def _how_to_replace(folder: Path) -> str:
    return (
        f"put the folder back from a copy, or delete {folder} and run "
        f"`python -m train {folder.name.partition('-')[0]} EXPERIMENT.yaml` to train it again."
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
