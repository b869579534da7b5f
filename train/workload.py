"""How much a stage has to read, where the store knows, and how long that takes, where a finished stage was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from retroformer.config import Experiment
from retroformer.errors import MissingInput
from retroformer.train_sections import Grpo, Optimizer, Ppo
from train import inputs
from train.base import load_tokenizer
from train.dataset import Prompt, prompt_ids, sample_pairs, samples
from train.sound import METRICS, read_metrics
from train.stage import CONFIG
from train.stage_kind import StageName


class Workload(NamedTuple):
    """All tokens of a stage, every epoch and padding apart, as `metrics.json` counts them."""

    samples: int
    """Texts, pairs or prompts."""
    tokens: int
    longest: int
    """Tokens of the longest sample, its response included."""
    steps: int
    """Of the optimiser."""


class Throughput(NamedTuple):
    tokens_per_second: float
    source: Path


def workload(experiment: Experiment, stage: StageName) -> Workload:
    """What the store holds for a stage.

    Responses that are drawn are not written yet, so PPO's and GRPO's tokens are an upper bound: as if all were as long
    as they may be. The tokens of pairs are one, too: a tenth of the tasks is held out.

    Raises:
        MissingInput: there is no store, or nothing in it for this stage.
    """
    page: Optimizer = getattr(experiment.train, stage)
    if isinstance(page, Ppo | Grpo):
        return _drawn(experiment, page, _prompts(experiment, page))
    if stage in ("reward", "dpo"):
        pairs = sample_pairs(load_tokenizer(experiment.train), inputs.pairs(experiment))
        return _supervised(page, len(pairs), [len(one.ids) for pair in pairs for one in pair])
    written = inputs.written_advice(experiment) if stage == "warm" else inputs.positive_reflections(experiment)
    texts = [len(one.ids) for one in samples(load_tokenizer(experiment.train), written)]
    return _supervised(page, len(texts), texts)


def _prompts(experiment: Experiment, page: Ppo | Grpo) -> list[Prompt]:
    if isinstance(page, Grpo) and page.reward == "live":
        return [failure.prompt for failure in inputs.failures(experiment)]
    return inputs.prompts(experiment)


def _drawn(experiment: Experiment, page: Ppo | Grpo, prompts: Sequence[Prompt]) -> Workload:
    tokenizer = load_tokenizer(experiment.train)
    lengths = [len(prompt_ids(tokenizer, one)) + experiment.reflector.max_new_tokens for one in prompts]
    tokens = page.epochs * page.updates * page.batch_size * sum(lengths) // len(lengths)
    return Workload(len(lengths), tokens, max(lengths), page.updates * page.epochs)


def _supervised(page: Optimizer, count: int, lengths: Sequence[int]) -> Workload:
    return Workload(count, page.epochs * sum(lengths), max(lengths), -(-page.epochs * count // page.batch_size))


def throughput(experiment: Experiment, stage: StageName, like: str | None) -> Throughput | None:
    """Measured by the finished stage of the run `like`, or of this run; None where there is no such measurement.

    A stage that went on after a stop measured its last part alone, loading the model included. Another base, or the
    same one in another type, takes another time; and rewards that are rolled out say nothing about the time that a
    model's scores take.

    Raises:
        MissingInput: there is no run `like`.
    """
    folder = experiment.stage_folder(stage)
    if like is not None:
        run = Path("runs") / like
        if not run.is_dir():
            raise MissingInput(f"No run at {run}: name one of those under runs/ with --like.")
        folder = run / stage
    path = folder / METRICS
    if not path.is_file():
        return None
    metrics = read_metrics(path)
    resumed = metrics.get("resumed_from_step") or metrics.get("resumed_from_update")
    if resumed or not metrics.get("seconds") or not metrics.get("tokens"):
        return None
    page = yaml.safe_load((folder / CONFIG).read_text())["train"]
    if any(page[name] != getattr(experiment.train, name) for name in ("base_model", "dtype", "quantization")):
        return None
    if stage == "grpo" and page["grpo"]["reward"] != experiment.train.grpo.reward:
        return None
    return Throughput(metrics["tokens"] / metrics["seconds"], path)
