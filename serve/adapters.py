"""Which adapters a run serves, and by what names."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from retroformer.best_of import asked_for, best_of, reward_folder
from retroformer.config import Experiment
from retroformer.errors import ConfigError, MissingInput
from retroformer.packaged import adapter_folder

STAGES = ("warm", "sft", "dpo", "grpo", "ppo")
"""Stages whose adapters write advice, the later ones the better trained."""
REWARD = "reward"
"""The stage of the reward model, which is not served: it chooses among what is written for names like `sft+best8`."""
ACTOR = "actor"
"""What `python -m train actor` leaves: it plays, so it is never the reflector."""
WEIGHTS = "adapter_model.safetensors"
REFLECTOR = "reflector"
UNUSABLE = frozenset("@+= ")
"""Characters that mean something in the names of models."""


@dataclass(frozen=True)
class Names:
    """Adapter folders by name, and other names for them."""

    adapters: dict[str, Path]
    aliases: dict[str, str]
    best_of: dict[str, Path]
    """By names such as `sft+best8`, the folder of the reward model."""


def names(experiment: Experiment, page: Path) -> Names:
    """What the experiment serves beside `base`: its own finished stages and actor, `serve.adapters`, and `reflector`.

    `page` is where the experiment was read from, for the message. `reflector` is the last finished stage. Of the names
    such as `sft+best8` that the page has, those whose adapter and reward model are there.

    Raises:
        MissingInput: a folder of `serve.adapters` has no adapter.
        ConfigError: a name of `serve.adapters` is not free.
    """
    advisers = _advisers(experiment)
    adapters = {name: experiment.folder / name for name in (ACTOR, *advisers)}
    adapters = {name: folder for name, folder in adapters.items() if (folder / WEIGHTS).is_file()}
    aliases = {REFLECTOR: advisers[-1]} if advisers else {}
    for name, named in experiment.serve.adapters.items():
        folder = adapter_folder(named)
        if name == "base" or not name or set(name) & UNUSABLE:
            raise ConfigError(f"serve.adapters.{name}: {name!r} cannot name an adapter; take another word.")
        if not (folder / WEIGHTS).is_file():
            raise MissingInput(_absent(name, folder, experiment, page))
        adapters[name] = folder
        aliases.pop(name, None)
    return Names(adapters, aliases, _best_of(experiment, adapters, aliases))


def _best_of(experiment: Experiment, adapters: Mapping[str, Path], aliases: Mapping[str, str]) -> dict[str, Path]:
    found = {}
    for name in asked_for(experiment):
        chosen = best_of(name)
        assert chosen is not None, "asked_for returns no other names"
        model = aliases.get(chosen.model, chosen.model)
        folder = reward_folder(experiment, model)
        if (model == "base" or model in adapters) and (folder / WEIGHTS).is_file():
            found[name] = folder
    return found


def _advisers(experiment: Experiment) -> list[str]:
    """Names of the finished stages that advise, round by round: warm, sft, ppo, sft-2, ppo-2 and so on."""
    finished = [path.parent.name for path in experiment.folder.glob(f"*/{WEIGHTS}")]
    known = [(name, *name.partition("-")[::2]) for name in finished]
    rounds = [
        (int(number or 1), STAGES.index(stage), name)
        for name, stage, number in known
        if stage in STAGES and (not number or number.isdecimal())
    ]
    return [name for _, _, name in sorted(rounds)]


def _absent(name: str, folder: Path, experiment: Experiment, page: Path) -> str:
    message = f"No adapter {name!r} in {str(folder)!r}"
    for stage in (ACTOR, *STAGES):
        if folder.resolve() == (experiment.folder / stage).resolve():
            return f"{message}: train it with `python -m train {stage} {page} run={experiment.run}`."
    return f"{message}: expected a folder with {WEIGHTS} and adapter_config.json, as `python -m train` writes."
