"""The advisers of a contest, the config with which both are served, and the refusals before anything is played."""

import random
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from retroformer.errors import ConfigError, MissingInput
from retroformer.experiment.adapters import finished_advisers, has_adapter, model_folder
from retroformer.experiment.config import Experiment
from retroformer.experiment.parts import LoadedConfig, check_prompts, chosen_tasks, load_config
from retroformer.experiment.sections.eval import Arm
from retroformer.experiment.storage import open_store
from retroformer.promotions.history import History, current_of, name_of
from retroformer.promotions.promotion import DIGITS, PromotedAdapter, Promotion
from retroformer.records import Task

from ..play.arms import held_out_splits
from ..play.overlap import refuse_adapter_trained_on, refuse_trained_tasks


class Contest(NamedTuple):
    """A candidate, what it is compared with, and the tasks, in the order in which they are played."""

    history: History
    known: Sequence[Promotion]
    """The promotions on which the contest is based."""
    candidate: PromotedAdapter
    opponent: PromotedAdapter | None
    """None: no advice."""
    config: LoadedConfig
    """Config whose own server serves both adapters."""
    tasks: tuple[Task, ...]


def prepare(path: Path, overrides: Sequence[str], name: str, against: str) -> Contest:
    """Copy the candidate and choose the tasks.

    Raises:
        ConfigError: the config, the tasks or the adapter cannot be used; the message says what to change.
        MissingInput: there is no such adapter, or the split has no tasks.
        DamagedFile: a promotion is damaged.
    """
    experiment = load_config(path, overrides).experiment
    _refuse_config(experiment)
    history = History(experiment.folder)
    known = history.records()
    candidate = history.keep(name, _folder_of_candidate(experiment, name))
    opponent = None if against == "none" else current_of(known)
    _refuse_candidate(known, candidate, opponent)
    adapters = [adapter for adapter in (candidate, opponent) if adapter is not None]
    # Names that depend on nothing but the content: the conditions of an adapter's retries are then always the same.
    served = [f"serve.adapters.{served_name(adapter)}={history.folder_of(adapter)}" for adapter in adapters]
    config = load_config(path, (*overrides, *served))
    split = experiment.gate.split or held_out_splits(experiment)[0]
    environment = config.experiment.environment.model_copy(update={"split": split})
    config = replace(config, experiment=config.experiment.model_copy(update={"environment": environment}))
    tasks = chosen_tasks(config.experiment, None, (split,))
    with closing(open_store(experiment)) as store:
        refuse_trained_tasks(store, tasks)
    for adapter in adapters:
        refuse_adapter_trained_on(experiment, str(adapter), history.folder_of(adapter), tasks)
    check_prompts(config.experiment)
    shuffled = random.Random(f"gate {experiment.seed}").sample(tasks, len(tasks))
    return Contest(history, known, candidate, opponent, config, tuple(shuffled[: experiment.gate.tasks]))


def served_name(adapter: PromotedAdapter) -> str:
    """Return the name under which an adapter is served for a contest."""
    return f"gate-{adapter.sha256[:DIGITS]}"


def arm_of(adapter: PromotedAdapter | None) -> Arm:
    """Return the arm in which an adviser's retries are played."""
    return Arm(kind="none") if adapter is None else Arm(kind="model", model=served_name(adapter))


def _refuse_config(experiment: Experiment) -> None:
    if experiment.domain or experiment.domains:
        raise ConfigError(
            "A promotion is decided on the tasks of one environment, and this config has domains: use a config of one "
            "of them with the same run."
        )
    if experiment.reflector.endpoint.base_url is not None:
        raise ConfigError(
            "reflector.endpoint.base_url names another server, and a promotion is decided on a server of its own: add "
            "reflector.endpoint.base_url= to the command."
        )
    if "reflector" in experiment.serve.adapters:
        raise ConfigError("serve.adapters.reflector fixes what is served as reflector: leave it out to promote.")


def _folder_of_candidate(experiment: Experiment, name: str) -> Path:
    names = [*finished_advisers(experiment), *experiment.serve.adapters]
    folder = model_folder(experiment, name)
    if name not in names or not has_adapter(folder):
        raise MissingInput(
            f"No adapter {name!r} in {experiment.folder} can be promoted, only {', '.join(names) or 'none yet'}: train "
            "it with `retroformer train`, or name it in serve.adapters."
        )
    return folder


def _refuse_candidate(known: Sequence[Promotion], candidate: PromotedAdapter, opponent: PromotedAdapter | None) -> None:
    if opponent is not None and candidate.sha256 == opponent.sha256:
        raise ConfigError(
            f"{name_of(candidate)} is the reflector already: add --against none to compare it with no advice."
        )
    for record in known:
        replaced = record.replaced
        if record.by_monitor and replaced is not None and replaced.sha256 == candidate.sha256:
            raise ConfigError(
                f"{name_of(candidate)} was rolled back on {record.at:%Y-%m-%d}, as live outcomes have shown it to be "
                "worse than no advice: train another adapter."
            )
