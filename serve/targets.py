"""What a worker serves under each name: its targets in the engine, and their provenance."""

from collections.abc import Mapping
from pathlib import Path

from pydantic import JsonValue

from retroformer.experiment.best_of import best_of
from retroformer.provenance import ServedModel, chat_template_sha256, folder_sha256

from .engine.best_of import Target
from .engine.model import BASE

PINNED_DIGITS = 12


def served_targets(
    base: Path,
    adapters: Mapping[str, Path],
    aliases: Mapping[str, str],
    reward_folders: Mapping[str, Path],
    template_settings: Mapping[str, JsonValue] | None = None,
) -> tuple[dict[str, Target], dict[str, ServedModel]]:
    """Return the target and provenance of every name: base, adapters, aliases, best-of names, each also as NAME@HASH.

    `reward_folders` has the folders of reward models by best-of name, such as `sft+best8`.
    """
    base_sha256, template_sha256 = folder_sha256(base), chat_template_sha256(base, template_settings)
    targets = {"base": Target(BASE)} | {name: Target(f"adapter{number}") for number, name in enumerate(adapters)}
    hashes: dict[str, str | None] = {"base": None} | {name: folder_sha256(path) for name, path in adapters.items()}
    for alias, name in aliases.items():
        targets[alias], hashes[alias] = targets[name], hashes[name]
    models = {
        name: ServedModel(base_sha256=base_sha256, adapter_sha256=adapter_sha256, chat_template_sha256=template_sha256)
        for name, adapter_sha256 in hashes.items()
    }
    rewards = reward_names(reward_folders)
    for name, folder in reward_folders.items():
        parsed = best_of(name)
        assert parsed is not None, f"{name} is not a best-of name"
        targets[name] = targets[parsed.model]._replace(answers=parsed.answers, reward=rewards[folder])
        models[name] = models[parsed.model].model_copy(update={"reward_sha256": folder_sha256(folder)})
    for name, model in list(models.items()):
        pinned = f"{name}@{(model.trained_sha256 or base_sha256)[:PINNED_DIGITS]}"
        targets[pinned], models[pinned] = targets[name], model
    return targets, models


def reward_names(reward_folders: Mapping[str, Path]) -> dict[Path, str]:
    """Return the engine's names of reward models by folder."""
    return {folder: f"reward{number}" for number, folder in enumerate(dict.fromkeys(reward_folders.values()))}
