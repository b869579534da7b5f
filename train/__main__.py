"""python -m train actor|warm|sft|reward|ppo|dpo|grpo EXPERIMENT.yaml [key=value ...]; plan, merge and gguf beside."""

import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retroformer.assembly import Page, read_page
from retroformer.config import Experiment
from retroformer.errors import ConfigError, asks_for_help, run_command
from retroformer.train_sections import Optimizer
from train import inputs, processes
from train.base import load_tokenizer, require_adapter
from train.card import ABOUT
from train.dataset import Prompt, each_sample
from train.stage import Stage, finished, make_stage

USAGE = """
  python -m train plan EXPERIMENT.yaml [key=value ...]     say what training takes (train plan --help)
  python -m train actor EXPERIMENT.yaml [key=value ...]    teach a household actor by scripted play
  python -m train warm EXPERIMENT.yaml [key=value ...]     imitate advice written by rule
  python -m train sft EXPERIMENT.yaml [key=value ...]      imitate positively rated reflections
  python -m train reward EXPERIMENT.yaml [key=value ...]   learn which of two reflections is better
  python -m train ppo EXPERIMENT.yaml [key=value ...]      write what the reward model prefers
  python -m train dpo EXPERIMENT.yaml [key=value ...]      write what is better of two, without a reward model
  python -m train grpo EXPERIMENT.yaml [key=value ...]     write what is better than its group, scored or tried live"""

USAGE_OF_WEIGHTS = """
  python -m train merge EXPERIMENT.yaml STAGE [key=value ...]   write base and adapter as full weights (serve.dtype)
  python -m train gguf EXPERIMENT.yaml STAGE [key=value ...]    the same in a file for llama.cpp"""


def main(arguments: list[str]) -> None:
    """Run one stage of training, unless it is done; in all processes that a launcher started for it."""
    with processes.joined():
        _run_command(arguments)


def _run_command(arguments: list[str]) -> None:
    stages = {"actor": actor, "warm": warm, "sft": sft, "reward": reward, "ppo": ppo, "dpo": dpo}
    if arguments and arguments[0] not in (*stages, "grpo", "-h", "--help"):
        processes.require_one(arguments[0])
    if arguments[:1] == ["plan"]:
        print_plan(arguments[1:])
        return
    if asks_for_help(arguments):
        print(f"Usage:{USAGE}{USAGE_OF_WEIGHTS}")
        return
    if arguments[:1] in (["merge"], ["gguf"]):
        print(full_weights(*arguments))
        return
    if not arguments or arguments[0] not in (*stages, "grpo"):
        raise ConfigError(f"Name a stage: {', '.join((*stages, 'grpo'))}. Usage:{USAGE}{USAGE_OF_WEIGHTS}")
    page = read_page(arguments[1:], USAGE)
    silence_libraries()
    # Live returns start a server for the page, with the words that made it.
    told = grpo(page) if arguments[0] == "grpo" else stages[arguments[0]](page.experiment)
    if processes.is_main():
        print(told)


def print_plan(arguments: Sequence[str]) -> None:
    """Say what the stages will take, a paragraph at a time, since measuring it takes a while."""
    from train.plan import plan

    silence_libraries()
    for paragraph in plan(arguments):
        print(paragraph, end="\n\n", flush=True)


def full_weights(form: str, *arguments: str) -> str:
    """Base and adapter in one: merged weights, or a file for llama.cpp."""
    if len(arguments) < 2 or arguments[1] not in ABOUT:
        raise ConfigError(f"Name a page and a stage ({', '.join(ABOUT)}). Usage:{USAGE_OF_WEIGHTS}")
    page, stage, *overrides = arguments
    experiment = read_page([page, *overrides], USAGE_OF_WEIGHTS).experiment
    silence_libraries()
    from train.merge import merge, told

    if form == "merge":
        return told(merge(experiment, stage))
    from train.gguf_file import convert_stage

    path = convert_stage(experiment, stage)
    return f"{path}: {path.stat().st_size / 1e6:,.0f} MB for llama.cpp, in {experiment.serve.dtype}"


def actor(experiment: Experiment) -> str:
    """Imitate scripted play, with a fresh adapter; for the frozen actor, before any experiment."""
    from train.cloning import clone, scripted_play

    made = scripted_play(experiment)
    stage = make_stage("actor", experiment, experiment.train.actor, (one.text for one in made), {})
    return run(stage, lambda: clone(stage, made))


def warm(experiment: Experiment) -> str:
    """Imitate all written advice, with a fresh adapter."""
    optimizer, texts = experiment.train.warm, inputs.written_advice(experiment)
    stage = make_stage("warm", experiment, optimizer, _plain(texts), {})
    return run(stage, lambda: _imitate(stage, optimizer, texts, None))


def sft(experiment: Experiment) -> str:
    """Imitate positively rated reflections, starting from the warm adapter where there is one."""
    optimizer, texts = experiment.train.sft, inputs.positive_reflections(experiment)
    folder = experiment.stage_folder("warm")
    start = require_adapter(folder) if folder.is_dir() else None
    stage = make_stage("sft", experiment, optimizer, _plain(texts), {"start": start} if start else {})
    return run(stage, lambda: _imitate(stage, optimizer, texts, start))


def reward(experiment: Experiment) -> str:
    """Learn the order of rated reflections."""
    from train.reward import train_reward_model

    optimizer, pairs = experiment.train.reward, inputs.pairs(experiment)
    stage = make_stage("reward", experiment, optimizer, (pair.model_dump() for pair in pairs), {})
    return run(stage, lambda: train_reward_model(stage, optimizer, pairs, inputs.rated(experiment)))


def ppo(experiment: Experiment) -> str:
    """Improve the SFT policy against the reward model."""
    from train.policy import improve_policy

    prompts = inputs.prompts(experiment)
    adapters = {name: require_adapter(experiment.stage_folder(name)) for name in ("sft", "reward")}
    data = ([message.model_dump() for message in prompt] for prompt in prompts)
    stage = make_stage("ppo", experiment, experiment.train.ppo, data, adapters)
    return run(stage, lambda: improve_policy(stage, prompts, adapters["sft"], adapters["reward"]))


def dpo(experiment: Experiment) -> str:
    """Improve the SFT policy on the reward model's pairs themselves."""
    from train.dpo import prefer

    optimizer, pairs = experiment.train.dpo, inputs.pairs(experiment)
    start = require_adapter(experiment.stage_folder("sft"))
    stage = make_stage("dpo", experiment, optimizer, (pair.model_dump() for pair in pairs), {"start": start})
    return run(stage, lambda: prefer(stage, optimizer, pairs, start))


def grpo(page: Page) -> str:
    """Improve the SFT policy against the reward model, or by what its reflections bring when they are tried."""
    from train.group_policy import improve_in_groups

    experiment = page.experiment
    settings = experiment.train.grpo
    if settings.reward == "live":
        return _grpo_live(page)
    prompts = inputs.prompts(experiment)
    adapters = {name: require_adapter(experiment.stage_folder(name)) for name in ("sft", "reward")}
    data = ([message.model_dump() for message in prompt] for prompt in prompts)
    stage = make_stage("grpo", experiment, settings, data, adapters)
    return run(stage, lambda: improve_in_groups(stage, prompts, adapters, live=None))


def _grpo_live(page: Page) -> str:
    from train.group_policy import improve_in_groups
    from train.live import conditions_of_returns, live_returns

    processes.require_one("grpo with train.grpo.reward=live")
    experiment, failures = page.experiment, inputs.failures(page.experiment)
    adapters = {"sft": require_adapter(experiment.stage_folder("sft"))}
    data = [conditions_of_returns(experiment), *(failure.facts for failure in failures)]
    stage = make_stage("grpo", experiment, experiment.train.grpo, data, adapters)
    prompts = [failure.prompt for failure in failures]
    return run(stage, lambda: improve_in_groups(stage, prompts, adapters, live_returns(page, failures)))


def run(stage: Stage, train: Callable[[], None]) -> str:
    """Train, unless the stage is done with these inputs; a line that says what there is now, in the main process."""
    done = finished(stage)
    if done is None:
        train()
    if not processes.is_main():
        return ""
    metrics = finished(stage) or {}
    start = f"{stage.name} is already done with these inputs" if done else f"trained {stage.name}"
    return f"{start}: {stage.folder} ({_told(metrics)})"


def _told(metrics: dict[str, Any]) -> str:
    parts = [
        f"{metrics[name]} {name}" for name in ("samples", "pairs", "prompts", "steps", "updates") if name in metrics
    ]
    if losses := metrics.get("losses"):
        parts.append(f"loss {losses[0]:.3f} to {losses[-1]:.3f}")
    if "held_out_accuracy" in metrics:
        parts.append(f"held-out accuracy {metrics['held_out_accuracy']:.2f} on {metrics['held_out_pairs']} pairs")
    if history := metrics.get("history"):
        parts.append(f"score {history[0]['score']:+.2f} to {history[-1]['score']:+.2f}")
    return ", ".join([*parts, f"{metrics['seconds']:.0f} s"])


def _imitate(stage: Stage, optimizer: Optimizer, texts: Sequence[tuple[Prompt, str]], start: Path | None) -> None:
    from train.imitation import imitate

    data = each_sample(load_tokenizer(stage.experiment.train), texts)
    imitate(stage, optimizer, data, start, {"samples_with_duplicates": len(texts)})


def _plain(texts: list[tuple[Any, str]]) -> Iterator[Any]:
    return ([[message.model_dump() for message in prompt], text] for prompt, text in texts)


def silence_libraries() -> None:
    """Keep known, harmless noise of libraries off the terminal: what is left there is meant for the user."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # trl reports its use otherwise.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"(peft|trl|torch|transformers)\b")
    for name in ("transformers", "bitsandbytes", "peft", "trl", "accelerate", "datasets", "torch"):
        logging.getLogger(name).setLevel(logging.ERROR)
    from datasets.utils.logging import disable_progress_bar
    from transformers.utils import logging as transformers_logging

    disable_progress_bar()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


if __name__ == "__main__":
    run_command(main)
