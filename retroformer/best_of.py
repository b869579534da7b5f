"""Best-of-n by name: `sft+best8` is, of 8 answers that `sft` draws, the one that a reward model scores highest."""

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from retroformer.packaged import adapter_folder

if TYPE_CHECKING:
    from retroformer.config import Experiment

BEST_OF = r"(?P<model>[^@+]+)\+best(?P<answers>[2-9]|[1-5]\d|6[0-4])"
"""Of 64 answers at most."""


class BestOf(NamedTuple):
    """What such a name means."""

    model: str
    """That draws the answers: `base` or the name of an adapter."""
    answers: int
    """To choose from."""


def best_of(name: str) -> BestOf | None:
    """What `name` means, with or without a hash behind it; None where it is that of a model alone."""
    found = re.fullmatch(BEST_OF, name.partition("@")[0])
    return BestOf(found["model"], int(found["answers"])) if found else None


def asked_for(experiment: "Experiment") -> list[str]:
    """The names of this kind that the page has for its own server."""
    names = list(experiment.serve.best_of)
    if experiment.reflector.endpoint.base_url is None:
        names.append(experiment.reflector.endpoint.model)
        for arm in experiment.eval.arms.values():
            names += [arm.model] if isinstance(arm.model, str) else arm.model
    return list(dict.fromkeys(name.partition("@")[0] for name in names if best_of(name)))


def model_folder(experiment: "Experiment", model: str) -> Path:
    """Where the adapter is that answers by this name."""
    return adapter_folder(experiment.serve.adapters.get(model, experiment.folder / model))


def reward_folder(experiment: "Experiment", model: str) -> Path:
    """Where the reward model is that judges what `model` draws: beside its adapter and of the same round, or the run's.

    So each training seed that a page names in serve.adapters has the judge that it was trained against.
    """
    beside = reward_beside(model_folder(experiment, model))
    return beside if beside.is_dir() else experiment.stage_folder("reward")


def reward_beside(adapter: Path) -> Path:
    """Where the run of the adapter in this folder has the reward model of the same round, if it has one."""
    _, *of_round = adapter.name.split("-")
    return adapter.with_name("-".join(("reward", *of_round)))


def trained_sha256(adapter: str | None, reward: str | None) -> str | None:
    """One hash for all that was trained of a model: that of its adapter, or with a judge one of both hashes."""
    return adapter if reward is None else hashlib.sha256(f"{adapter} {reward}".encode()).hexdigest()
