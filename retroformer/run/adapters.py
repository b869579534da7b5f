"""Folders of a run's adapters: `runs/RUN/STAGE[-VARIANT]`, in later rounds with `-ROUND` behind it."""

import re
from importlib import resources
from pathlib import Path

from retroformer.config.experiment import Experiment
from retroformer.config.sections.base import best_of
from retroformer.run.adapter_names import ADVISERS, FOLDER_NAME, REFLECTOR, REWARD
from retroformer.run.promotions import History
from retroformer.run.provenance import ADAPTER_WEIGHTS
from retroformer.run.stage_metrics import METRICS, read_metrics


def has_adapter(folder: Path) -> bool:
    """Return True if this folder has the weights of an adapter."""
    return (folder / ADAPTER_WEIGHTS).is_file()


def is_trained(experiment: Experiment, model: str) -> bool:
    """Return True if this is the name of an adapter: a stage's, or one of serve.adapters."""
    return bool(FOLDER_NAME.fullmatch(model)) or model in experiment.serve.adapters


def finished_advisers(experiment: Experiment) -> list[str]:
    """Return the finished stages that write advice, in order of training: warm, sft, ppo, sft-2, ppo-2 and so on.

    Variants other than the config's come first, so that they are never the last where there are others.
    """

    def order(name: re.Match[str]) -> tuple[bool, int, int, str]:
        chosen = name["variant"] == experiment.train.variants.get(name["stage"])
        return chosen, int(name["round"] or 1), ADVISERS.index(name["stage"]), name.string

    finished = (FOLDER_NAME.fullmatch(path.parent.name) for path in experiment.folder.glob(f"*/{ADAPTER_WEIGHTS}"))
    advisers = [name for name in finished if name and name["stage"] in ADVISERS]
    return [name.string for name in sorted(advisers, key=order)]


def newest_folder(experiment: Experiment, stage: str) -> Path:
    """Return the folder of a stage in this round, or in the last round before it in which the stage was begun."""
    folders = round_folders(experiment, stage)
    return next((folder for folder in folders if folder.exists()), folders[0])


def round_folders(experiment: Experiment, stage: str) -> list[Path]:
    """Return the folders of a stage in this round and in those before it, the newest first."""
    numbers = range(experiment.round, 0, -1)
    return [experiment.model_copy(update={"round": number}).stage_folder(stage) for number in numbers]


def best_of_names(experiment: Experiment) -> list[str]:
    """Return the best-of-n names that the config, in any of its domains, asks its own server for."""
    names = list(experiment.serve.best_of)
    for domain in experiment.each_domain if experiment.reflector.endpoint.base_url is None else ():
        names.append(domain.reflector.endpoint.model)
        for arm in domain.eval.arms.values():
            names += arm.models
    return list(dict.fromkeys(name.partition("@")[0] for name in names if best_of(name)))


def model_folder(experiment: Experiment, model: str) -> Path:
    """Return the folder of the adapter served under this name; it does not exist if there is none."""
    return adapter_folder(experiment.serve.adapters.get(model, experiment.folder / model))


def served_folder(experiment: Experiment, model: str) -> Path:
    """Return the folder of the adapter that a server has under this name now, `reflector` too. Raises DamagedFile."""
    if model != REFLECTOR or REFLECTOR in experiment.serve.adapters:
        return model_folder(experiment, model)
    history = History(experiment.folder)
    if promoted := history.current():
        return history.folder_of(promoted)
    # Where a promotion was rolled back, no adapter is served.
    advisers = [] if history.length else finished_advisers(experiment)
    return experiment.folder / (advisers[-1] if advisers else REFLECTOR)


def reward_folder(experiment: Experiment, model: str) -> Path:
    """Return the folder of the reward model that scores the answers of `model`: the one beside it, or the run's."""
    beside = reward_beside(model_folder(experiment, model))
    return beside if beside.is_dir() else experiment.stage_folder(REWARD)


def reward_beside(adapter: Path) -> Path:
    """Return the folder, which may not exist, of the reward model of this adapter's run.

    It is the one that the adapter was trained against, if its metrics name one that is still there. Otherwise it is the
    one of the same round, and of the same variant if there is such a variant of the reward model.
    """
    if (adapter / METRICS).is_file() and (sha256 := read_metrics(adapter).inputs.get("adapters", {}).get(REWARD)):
        for metrics in sorted(adapter.parent.glob(f"{REWARD}*/{METRICS}")):
            if read_metrics(metrics.parent).adapter_sha256 == sha256:
                return metrics.parent
    name = FOLDER_NAME.fullmatch(adapter.name)
    variant, number = (name["variant"], name["round"]) if name else (None, None)
    same_variant = adapter.with_name("-".join(filter(None, (REWARD, variant, number))))
    return same_variant if same_variant.is_dir() else adapter.with_name("-".join(filter(None, (REWARD, number))))


def adapter_folder(named: Path) -> Path:
    """Return the folder of an adapter that a config names by path, or by the bare name of a shipped adapter."""
    packaged = Path(str(resources.files("retroformer.models") / "adapters" / named.name))
    is_bare = named.parts == (named.name,)
    return packaged if is_bare and packaged.is_dir() and not named.is_dir() else named
