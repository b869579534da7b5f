"""How much a stage has to read, where the store knows, and how long that takes, where a finished stage was measured."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from retroformer.config import Experiment
from retroformer.errors import MissingInput
from train import inputs
from train.base import load_tokenizer
from train.dataset import prompt_ids, sample_pairs, samples
from train.memory import StageName
from train.stage import METRICS


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

    PPO's responses are not written yet, so its tokens are an upper bound: as if all were as long as they may be. The
    reward model's are one, too: a tenth of the tasks is held out.

    Raises:
        MissingInput: there is no store, or nothing in it for this stage.
    """
    page = experiment.train
    if stage == "ppo":
        prompts = inputs.prompts(experiment)
        tokenizer = load_tokenizer(page)
        lengths = [len(prompt_ids(tokenizer, one)) + experiment.reflector.max_new_tokens for one in prompts]
        drawn = page.ppo.updates * page.ppo.batch_size
        tokens = page.ppo.epochs * drawn * sum(lengths) // len(lengths)
        return Workload(len(lengths), tokens, max(lengths), page.ppo.updates * page.ppo.epochs)
    if stage == "reward":
        pairs = inputs.pairs(experiment)
        made = sample_pairs(load_tokenizer(page), pairs)
        texts = [len(one.ids) for pair in made for one in pair]
        return _supervised(len(made), texts, page.reward.epochs, page.reward.batch_size)
    written = inputs.positive_reflections(experiment)
    texts = [len(one.ids) for one in samples(load_tokenizer(page), written)]
    return _supervised(len(texts), texts, page.sft.epochs, page.sft.batch_size)


def _supervised(count: int, lengths: Sequence[int], epochs: int, batch_size: int) -> Workload:
    return Workload(count, epochs * sum(lengths), max(lengths), -(-epochs * count // batch_size))


def throughput(experiment: Experiment, stage: StageName, like: str | None) -> Throughput | None:
    """Measured by the finished stage of the run `like`, or of this run; None where there is no such measurement.

    A stage that went on after a stop measured its last part alone, which says nothing about its tokens.

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
    metrics = json.loads(path.read_text())
    if metrics.get("resumed_from_step") or not metrics.get("seconds"):
        return None
    return Throughput(metrics["tokens"] / metrics["seconds"], path)
