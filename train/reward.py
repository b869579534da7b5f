"""The reward model: predicts which of two reflections on one trajectory is better (Retroformer, section 4.3, eq. 4).

Reads preference pairs; writes a LoRA adapter with a score head to runs/NAME/reward. A tenth of the tasks is held out;
train/reward_audit.py measures on them what the scores are worth.
"""

from collections.abc import Sequence
from statistics import correlation, fmean, pstdev
from typing import Any

import torch
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from retroformer.experiment.sections.train import Optimizer, Train
from retroformer.records import PreferencePair, RatedReflection

from .base import load_base, load_tokenizer, lora_config
from .data.rows import write_rows
from .data.samples import Sample, SamplePair, samples
from .losses import preference_loss
from .pair_split import split_pairs
from .reward_audit import audit_of_pairs
from .stage import Meter, Stage, publish
from .trainer import ParallelTrainer, ordered_rows, run_trainer, trainer_settings

CENTRING = 0.01
"""Weight of the squared sum of a pair's scores. The loss fixes only differences; this keeps scores around zero."""


class ScoreTrainer(ParallelTrainer, RewardTrainer):  # type: ignore[misc]
    """trl's trainer of reward models, in any number of processes."""


def train_reward_model(
    stage: Stage, optimizer: Optimizer, pairs: Sequence[PreferencePair], rated: Sequence[RatedReflection] = ()
) -> None:
    """Train on the pairs of most tasks, measure on pairs and `rated` reflections of the held-out tasks, and publish.

    Raises:
        ConfigError: a sample is longer than train.max_length.
    """
    meter, seed = Meter(), stage.experiment.seed
    tokenizer = load_tokenizer(stage.experiment.train)
    split = split_pairs(stage, tokenizer, pairs)
    texts = ({"chosen_ids": pair.chosen.ids, "rejected_ids": pair.rejected.ids} for pair in split.train)
    rows = write_rows(texts, ("chosen_ids", "rejected_ids"), stage.experiment.folder)
    torch.manual_seed(seed)  # The score head is initialised at random when the model is loaded.
    settings = trainer_settings(stage, optimizer)
    trainer = score_trainer(stage.experiment.train, settings, ordered_rows(rows, split.lengths, optimizer, seed))
    progress = run_trainer(trainer, stage, len(rows) * optimizer.epochs)
    chosen, rejected = scores_of_pairs(trainer, split.held_out)
    measured: dict[str, Any] = measure(*scores_of_pairs(trainer, split.measured(seed)), "train")
    measured |= measure(chosen, rejected, "held_out") | audit_of_pairs(chosen, rejected, split.held_out, split.train)
    measured |= audit(trainer, tokenizer, [rating for rating in rated if rating.key.task_id in split.held_out_tasks])
    metrics = split.counts | measured | progress | meter.read(optimizer.epochs * split.tokens)
    publish(stage, trainer.model.save_pretrained, metrics)


def score_trainer(train: Train, settings: dict[str, Any], rows: Any) -> Any:
    """Return the trainer of a base with a fresh adapter and score head, on `rows` of chosen_ids and rejected_ids."""
    return ScoreTrainer(
        model=load_base(train, scores=True),
        peft_config=lora_config(train.lora, scores=True),
        args=RewardConfig(**settings, center_rewards_coefficient=CENTRING, disable_dropout=not train.lora.dropout),
        processing_class=load_tokenizer(train),
        train_dataset=rows,
    )


def measure(chosen: Sequence[float], rejected: Sequence[float], name: str) -> dict[str, float]:
    """Return accuracy, loss, mean and standard deviation of the scores of pairs; {} without pairs."""
    if not chosen:
        return {}
    loss = preference_loss(torch.tensor(chosen), torch.tensor(rejected)).mean()
    scores = (*chosen, *rejected)
    return {
        f"{name}_accuracy": fmean(float(better > worse) for better, worse in zip(chosen, rejected, strict=True)),
        f"{name}_loss": float(loss),
        f"{name}_score_mean": fmean(scores),
        f"{name}_score_deviation": pstdev(scores),
    }


def audit(trainer: Any, tokenizer: Any, rated: Sequence[RatedReflection]) -> dict[str, float]:
    """Return Pearson's correlation of the scores of reflections with their ratings, and with their lengths.

    Unlike pairs, this includes ties and compares across trajectories, so it is the harder measure.
    """
    ratings = {(row.reflection.prompt, row.reflection.text): row.rating for row in rated}
    texts = list(samples(tokenizer, ratings))
    scores, lengths = scores_of(trainer, texts), [float(len(sample.response_ids)) for sample in texts]
    metrics: dict[str, float] = {"held_out_reflections": len(ratings)}
    compared: dict[str, list[float]] = {"correlation": list(ratings.values()), "length_correlation": lengths}
    for name, values in compared.items():
        if len(set(scores)) > 1 and len(set(values)) > 1:
            metrics[f"held_out_{name}"] = correlation(scores, values)
    return metrics


def scores_of_pairs(trainer: Any, pairs: Sequence[SamplePair]) -> tuple[list[float], list[float]]:
    """Score the chosen and the rejected texts of `pairs`."""
    return scores_of(trainer, [pair.chosen for pair in pairs]), scores_of(trainer, [pair.rejected for pair in pairs])


@torch.no_grad()
def scores_of(trainer: Any, texts: Sequence[Sample]) -> list[float]:
    """Score texts one by one, so that padding has no effect."""
    trainer.model.eval()
    scores = []
    for sample in texts:
        ids = torch.tensor([sample.ids], device=trainer.args.device)
        with trainer.accelerator.autocast():
            scores.append(float(trainer.model(input_ids=ids, use_cache=False).logits[0, 0]))
    return scores
