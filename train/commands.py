"""The training stages as commands: each gathers its inputs, and trains unless it is done with the same inputs."""

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from itertools import groupby
from operator import attrgetter
from typing import Any

from retroformer.config.conditions import STORED
from retroformer.config.experiment import Experiment
from retroformer.config.file import Config
from retroformer.config.parts import chosen_tasks
from retroformer.files.cache import hold_lock
from retroformer.run.adapters import model_folder, newest_folder
from retroformer.run.stage_metrics import StageMetrics, first_and_last, training_tasks

from . import processes
from .adapter import Adapter, require_adapter
from .data import inputs
from .data.samples import AdviceText, Prompt
from .loop import on_sigterm
from .preflight import check_config
from .stage import Stage, finished, make_stage, refuse_missed_milestones

_TRAINED_ON_RATINGS = ("sft", "reward", "dpo")
"""Stages whose texts or pairs the ratings choose."""


def train(name: str, configs: Sequence[Config]) -> str:
    """Run the stage `name` unless it is done; return a summary in the main process, "" in all others.

    `configs` are all domains of a config that has some, which train one reflector; else the config alone.
    """
    check_config(name, configs)
    config = configs[0]
    if name == "grpo":
        # Live returns start a server for the config, from its path and overrides.
        return grpo(config)
    stages = {"actor": actor, "warm": warm, "sft": sft, "reward": reward, "ppo": ppo, "dpo": dpo, "sac": sac}
    summary = stages[name](config.experiment)
    anew = name in _TRAINED_ON_RATINGS and config.experiment.train.rated_by != STORED
    return f"{summary}\n{inputs.both_ratings(config.experiment)}" if summary and anew else summary


def actor(experiment: Experiment) -> str:
    """Train the actor, which every experiment keeps frozen, on scripted play with a fresh adapter."""
    from .actor import clone, scripted_play

    demonstrations = scripted_play(experiment, experiment.train.actor.demonstrations)
    texts = (demonstration.text for demonstration in demonstrations)
    played = training_tasks(experiment, (demonstration.task_id for demonstration in demonstrations))
    stage = make_stage("actor", experiment, texts, {}, [played])
    return run(stage, lambda: clone(stage, demonstrations))


def warm(experiment: Experiment) -> str:
    """Imitate all advice that was written by rule, with a fresh adapter."""
    from .imitation import imitate

    texts = inputs.written_advice(experiment)
    stage = make_stage("warm", experiment, _plain(texts), {}, inputs.written_tasks(experiment))
    return run(stage, lambda: imitate(stage, texts, {}))


def sft(experiment: Experiment) -> str:
    """Imitate advice that helped, or that attempts have proved right, from the warm adapter on if there is one."""
    from .imitation import imitate

    texts, folder = inputs.advice_to_imitate(experiment), experiment.stage_folder("warm")
    begins = folder.is_dir() or "warm" in experiment.train.variants
    adapters = {"start": require_adapter(folder)} if begins else {}
    stage = _on_ratings("sft", experiment, _plain(texts), adapters)
    return run(stage, lambda: imitate(stage, texts, adapters))


def reward(experiment: Experiment) -> str:
    """Train the reward model on pairs of rated reflections."""
    from .reward import train_reward_model

    pairs = inputs.pairs(experiment)
    first, adapters = experiment.train.reward.start, dict[str, Adapter]()
    if before := _own_before(experiment, "reward"):
        adapters["start"] = before
    elif first != "base":
        adapters["start"] = _newest(experiment, first)
    # The batches of a reward model count failures, whose pairs are adjacent.
    failures = ([pair.model_dump() for pair in on_one] for _, on_one in groupby(pairs, attrgetter("prompt")))
    stage = _on_ratings("reward", experiment, failures, adapters, recent=True)
    return run(stage, lambda: train_reward_model(stage, pairs, inputs.rated(experiment), adapters))


def ppo(experiment: Experiment) -> str:
    """Optimise the policy against the reward model."""
    from .rl.stage import train_by_ppo

    prompts = inputs.prompts(experiment)
    adapters = {"sft": _policy(experiment, "ppo"), "reward": _newest(experiment, "reward")}
    stage = _on_ratings("ppo", experiment, map(_turns, prompts), adapters, recent=True)
    return run(stage, lambda: train_by_ppo(stage, prompts, adapters))


def dpo(experiment: Experiment) -> str:
    """Optimise the policy on the preference pairs directly."""
    from .dpo import train_by_dpo

    pairs = inputs.pairs(experiment)
    adapters = {"start": _policy(experiment, "dpo")}
    stage = _on_ratings("dpo", experiment, (pair.model_dump() for pair in pairs), adapters, recent=True)
    return run(stage, lambda: train_by_dpo(stage, pairs, adapters))


def grpo(config: Config) -> str:
    """Optimise the policy against the reward model, the returns of real retries, or stored ratings."""
    from .rl.stage import train_by_grpo

    experiment, source = config.experiment, config.experiment.train.grpo.reward
    if source == "live":
        from .rl.live import conditions_of_returns, live_returns

        failures = inputs.failures(experiment)
        adapters = {"sft": _policy(experiment, "grpo")}
        data = [conditions_of_returns(experiment), *(failure.facts for failure in failures)]
        stage, prompts = _on_ratings("grpo", experiment, data, adapters), [failure.prompt for failure in failures]
        # One process plays, and sends the rewards to the others.
        play = live_returns(config, failures) if processes.is_main() else nullcontext()
        return run(stage, lambda: train_by_grpo(stage, prompts, adapters, play))
    if source == "stored":
        groups = inputs.groups(experiment)
        prompts, adapters = [group.prompt for group in groups], {"sft": _policy(experiment, "grpo")}
        stage = _on_ratings("grpo", experiment, ([_turns(prompt), *rated] for prompt, rated in groups), adapters)
        return run(stage, lambda: train_by_grpo(stage, prompts, adapters, groups=groups))
    prompts = inputs.prompts(experiment)
    adapters = {"sft": _policy(experiment, "grpo"), "reward": _newest(experiment, "reward")}
    stage = _on_ratings("grpo", experiment, map(_turns, prompts), adapters, recent=True)
    return run(stage, lambda: train_by_grpo(stage, prompts, adapters))


def sac(experiment: Experiment) -> str:
    """Train the actor itself by soft actor-critic on the tasks of environment.split."""
    from .sac.stage import facts_of_play, train_by_sac

    model, tasks = experiment.actor.endpoint.model, chosen_tasks(experiment, None)
    adapters = {} if model == "base" else {"start": require_adapter(model_folder(experiment, model))}
    played = training_tasks(experiment, (task.id for task in tasks))
    stage = make_stage("sac", experiment, facts_of_play(experiment, tasks), adapters, [played])
    return run(stage, lambda: train_by_sac(stage, tasks, adapters))


def _newest(experiment: Experiment, stage: str) -> Adapter:
    """Return the adapter of a stage in this round, or in the last one before it."""
    return require_adapter(newest_folder(experiment, stage))


def _policy(experiment: Experiment, stage: str) -> Adapter:
    """Return the adapter that a stage starts from and stays near: of SFT or, with train.iterated, its own newest."""
    return _own_before(experiment, stage) or _newest(experiment, "sft")


def _own_before(experiment: Experiment, stage: str) -> Adapter | None:
    """Return the newest adapter of a stage before this round, from which it goes on with train.iterated, if any."""
    if not experiment.train.iterated or experiment.round == 1:
        return None
    folder = newest_folder(experiment.model_copy(update={"round": experiment.round - 1}), stage)
    return require_adapter(folder) if folder.exists() else None


def _on_ratings(
    name: str, experiment: Experiment, data: Iterable[Any], adapters: Mapping[str, Adapter], *, recent: bool = False
) -> Stage:
    """Describe a stage whose data come from the rated reflections of the rounds so far, or from `recent` ones."""
    rounds = inputs.rounds_read(experiment, recent=recent)
    return make_stage(name, experiment, data, adapters, inputs.rated_tasks(experiment, rounds), rounds)


def run(stage: Stage, train: Callable[[], None]) -> str:
    """Call `train` unless the stage is done with these inputs; return a summary in the main process, "" elsewhere."""
    done = finished(stage)
    checkpoints = sorted(path.name for path in stage.checkpoints.glob("*"))
    processes.require_same([stage.fingerprint, done is not None, checkpoints], "inputs, results and checkpoints")
    if done is not None and stage.name == "grpo":
        refuse_missed_milestones(stage, stage.experiment.train.grpo.milestones, stage.experiment.train.grpo.updates)
    if done is None:
        lock = stage.experiment.folder / "checkpoints" / f"{stage.folder.name}.lock"
        alone = hold_lock(lock, f"training {stage.name}") if processes.is_main() else nullcontext()
        with alone, on_sigterm():
            train()
    if not processes.is_main():
        return ""
    start = f"{stage.name} is already done with these inputs" if done else f"trained {stage.name}"
    return f"{start}: {stage.folder} ({_summary(finished(stage) or StageMetrics())})"


def _summary(metrics: StageMetrics) -> str:
    counts = {
        name: metrics.measure(name)
        for name in ("samples", "pairs", "prompts", "episodes", "env_steps", "steps", "updates")
    }
    parts = [f"{count} {name}" for name, count in counts.items() if count is not None]
    if losses := first_and_last(metrics.losses):
        parts.append("loss {:.3f} to {:.3f}".format(*losses))
    if "held_out_accuracy" in metrics.model_fields_set:
        p_value, power = metrics.measure("held_out_p_value"), metrics.measure("held_out_power")
        test = "" if p_value is None else f" (p = {p_value:.2g} against chance, power {power:.0%})"
        parts.append(f"held-out accuracy {metrics.held_out_accuracy:.2f} on {metrics.held_out_pairs} pairs{test}")
        if read := metrics.measure("held_out_tasks_read_by_start"):
            tasks = len(metrics.measure("held_out_tasks"))
            parts.append(f"its starting adapter was trained on {read} of {tasks} held-out tasks")
    if "solved_last_quarter" in metrics.model_fields_set:
        first, last = (metrics.measure(f"solved_{name}_quarter") for name in ("first", "last"))
        parts.append(f"solved {first:.0%} of the first quarter and {last:.0%} of the last")
    elif scores := first_and_last([update["score"] for update in metrics.history], most=2):
        parts.append("score {:+.2f} to {:+.2f}".format(*scores))
    return ", ".join([*parts, f"{metrics.seconds:.0f} s"])


def _plain(texts: Iterable[AdviceText]) -> Iterator[Any]:
    """Yield advice in JSON's types."""
    return ([_turns(prompt), text, is_cut] for prompt, text, is_cut in texts)


def _turns(prompt: Prompt) -> list[dict[str, Any]]:
    return [message.model_dump() for message in prompt]


def silence_libraries() -> None:
    """Hide harmless warnings, logs and progress bars of libraries, so that users see only our own messages."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # Otherwise trl reports its use.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"(peft|trl|torch|transformers)\b")
    for name in ("transformers", "bitsandbytes", "peft", "trl", "accelerate", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
