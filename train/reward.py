"""The reward model: which of two reflections on one trajectory was better (Retroformer, section 4.3 and eq. 4).

Reads preference pairs; writes a LoRA adapter with a score head to runs/NAME/reward. A tenth of the tasks is held out:
train/audit.py says on them whether the scores mean anything.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from statistics import correlation, fmean, pstdev
from typing import Any

import torch
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from retroformer.records import PreferencePair, RatedReflection
from retroformer.train_sections import Optimizer, Train
from train.audit import audit_of_pairs
from train.base import load_base, load_tokenizer, lora_config
from train.dataset import Sample, SamplePair, each_pair, require_length, samples
from train.losses import preference_loss
from train.rows import write_pairs, write_rows
from train.stage import Meter, Stage, publish
from train.supervised import DealingTrainer, ordered_rows, run_trainer, trainer_settings

HELD_OUT_SHARE = 0.1
"""Of the tasks."""
MEASURED_PAIRS = 64
"""Of those trained on, to measure accuracy and where scores lie; all of them would cost half an epoch."""
CENTRING = 0.01
"""Weight of the squared sum of a pair's scores: only differences are learned, and this keeps them around zero."""


class OrderTrainer(DealingTrainer, RewardTrainer):  # type: ignore[misc]
    """trl's trainer, in any number of processes."""


def held_out_tasks(task_ids: Sequence[str], seed: int) -> set[str]:
    """A tenth of the tasks, at least one where there are two; the same ones for the same tasks and seed."""
    tasks = sorted(set(task_ids), key=lambda task: hashlib.sha256(f"{seed} {task}".encode()).digest())
    return set(tasks[: math.ceil(HELD_OUT_SHARE * len(tasks))]) if len(tasks) > 1 else set()


def train_reward_model(
    stage: Stage, optimizer: Optimizer, pairs: Sequence[PreferencePair], rated: Sequence[RatedReflection] = ()
) -> None:
    """Train on the pairs of most tasks, measure on the pairs and all `rated` reflections of the others, publish.

    Raises:
        ConfigError: a sample is longer than train.max_length.
    """
    meter, page = Meter(), stage.experiment.train
    tokenizer = load_tokenizer(page)
    apart = held_out_tasks([pair.task_id for pair in pairs], stage.experiment.seed)
    folder = stage.experiment.folder
    known = write_pairs(each_pair(tokenizer, (pair for pair in pairs if pair.task_id not in apart)), folder)
    unknown = write_pairs(each_pair(tokenizer, (pair for pair in pairs if pair.task_id in apart)), folder)
    texts = [len(sample.ids) for pair in (*known, *unknown) for sample in pair]
    require_length(texts, page.max_length, "samples of pairs")
    whole = ({"chosen_ids": pair.chosen.ids, "rejected_ids": pair.rejected.ids} for pair in known)
    rows = write_rows(whole, ("chosen_ids", "rejected_ids"), folder)
    lengths = [max(len(pair.chosen.ids), len(pair.rejected.ids)) for pair in known]
    torch.manual_seed(stage.experiment.seed)  # The score head is drawn when the model is loaded.
    settings = trainer_settings(stage, optimizer)
    trainer = order_trainer(page, settings, ordered_rows(rows, lengths, optimizer, stage.experiment.seed))
    told = run_trainer(trainer, stage, len(rows) * optimizer.epochs)
    some = random.Random(stage.experiment.seed).sample(known, min(MEASURED_PAIRS, len(known)))
    chosen, rejected = scores_of_pairs(trainer, unknown)
    measured: dict[str, Any] = measure(*scores_of_pairs(trainer, some), "train")
    measured |= measure(chosen, rejected, "held_out") | audit_of_pairs(chosen, rejected, unknown, known)
    measured |= audit(trainer, tokenizer, [one for one in rated if one.key.task_id in apart])
    counts = {"pairs": len(known), "held_out_pairs": len(unknown), "held_out_tasks": sorted(apart)}
    tokens = optimizer.epochs * sum(len(sample.ids) for pair in known for sample in pair)
    publish(
        stage,
        lambda folder: trainer.model.save_pretrained(folder),
        counts | measured | told | meter.read(tokens),
    )


def order_trainer(page: Train, settings: dict[str, Any], rows: Any) -> Any:
    """The trainer of a base with a fresh adapter and score head, on `rows` of chosen_ids and rejected_ids."""
    return OrderTrainer(
        model=load_base(page, scores=True),
        peft_config=lora_config(page.lora, scores=True),
        args=RewardConfig(**settings, center_rewards_coefficient=CENTRING, disable_dropout=not page.lora.dropout),
        processing_class=load_tokenizer(page),
        train_dataset=rows,
    )


def measure(chosen: Sequence[float], rejected: Sequence[float], name: str) -> dict[str, float]:
    """How many pairs are put in order, their loss, and where scores lie; nothing where there are no pairs."""
    if not chosen:
        return {}
    loss = preference_loss(torch.tensor(chosen), torch.tensor(rejected)).mean()
    everything = (*chosen, *rejected)
    return {
        f"{name}_accuracy": fmean(float(better > worse) for better, worse in zip(chosen, rejected, strict=True)),
        f"{name}_loss": float(loss),
        f"{name}_score_mean": fmean(everything),
        f"{name}_score_deviation": pstdev(everything),
    }


def audit(trainer: Any, tokenizer: Any, rated: Sequence[RatedReflection]) -> dict[str, float]:
    """How the scores of reflections go with their realised ratings, and with their lengths: Pearson's correlation.

    Pairs leave out ties and compare within a trajectory; this does not, so it is the harder measure.
    """
    ratings = {(one.reflection.prompt, one.reflection.text): one.rating for one in rated}
    texts = samples(tokenizer, ratings)
    given, lengths = scores(trainer, texts), [float(len(sample.response_ids)) for sample in texts]
    found: dict[str, float] = {"held_out_reflections": len(ratings)}
    compared: dict[str, list[float]] = {"correlation": list(ratings.values()), "length_correlation": lengths}
    for name, values in compared.items():
        if len(set(given)) > 1 and len(set(values)) > 1:
            found[f"held_out_{name}"] = correlation(given, values)
    return found


def scores_of_pairs(trainer: Any, pairs: Sequence[SamplePair]) -> tuple[list[float], list[float]]:
    """Of the chosen and of the rejected ones."""
    return scores(trainer, [pair.chosen for pair in pairs]), scores(trainer, [pair.rejected for pair in pairs])


@torch.no_grad()
def scores(trainer: Any, texts: Sequence[Sample]) -> list[float]:
    """The scores of texts, one text at a time, so that padding cannot matter."""
    trainer.model.eval()
    found = []
    for sample in texts:
        ids = torch.tensor([sample.ids], device=trainer.args.device)
        with trainer.accelerator.autocast():
            found.append(float(trainer.model(input_ids=ids, use_cache=False).logits[0, 0]))
    return found
