"""The reward model: predicts which of two reflections on one trajectory is better (Retroformer, section 4.2, eq. 4).

Reads preference pairs; writes a LoRA adapter with a score head to runs/NAME/reward. A tenth of the tasks is held out;
train/reward_audit.py measures on them what the scores are worth.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import correlation, fmean, pstdev
from typing import Any

import torch
from peft import (
    get_peft_model_state_dict,
    load_peft_weights,
    set_peft_model_state_dict,
)
from torch import Tensor

from retroformer.config.sections.train import Train
from retroformer.method.rating import Rating
from retroformer.method.records import PreferencePair

from .adapter import Adapter
from .base import add_fresh_adapter, keep_trainables_in_fp32, load_base, load_tokenizer
from .data.samples import AdviceText, Sample, samples
from .group_trainer import GroupReader, Objective, make_trainer
from .losses import CENTRING, preference_loss
from .pair_split import in_pairs, split_pairs, weights_of_pairs
from .reward_audit import audit_of_pairs
from .shared_prompt.packed import Group, Groups, Packed
from .stage import Meter, Stage, publish
from .trainer import run_trainer


class Ranking(Objective):
    """The Bradley-Terry loss over the pairs of a batch (Retroformer eq. 4). Each text is scored once."""

    def __init__(self, pair_weight: str) -> None:
        self._weigh = pair_weight

    def values(self, model: Any, hidden_BLH: Tensor, packed: Packed) -> Tensor:
        """Return the score of each text at its last token, (R,)."""
        scores_R1: Tensor = model.get_base_model().score(hidden_BLH[packed.row_R, packed.last_R].float())
        return scores_R1[:, 0]

    def loss(self, values: Tensor, packed: Packed, groups: Sequence[Group], batch: Sequence[Group]) -> Tensor:
        """Return the share of `groups` in the loss of their batch."""
        chosen_P, rejected_P = in_pairs(values, groups)
        losses_P = preference_loss(chosen_P, rejected_P) + CENTRING * (chosen_P + rejected_P).square()
        return (losses_P * weights_of_pairs(groups, batch, self._weigh).to(losses_P)).sum()


def train_reward_model(
    stage: Stage, pairs: Sequence[PreferencePair], rated: Sequence[Rating], adapters: Mapping[str, Adapter]
) -> None:
    """Train on the pairs of most tasks, measure on pairs and `rated` reflections of the held-out tasks, and publish.

    It starts from the reflector `start` of `adapters`, or from the base.
    """
    meter, seed = Meter(), stage.experiment.seed
    tokenizer = load_tokenizer(stage.experiment.train)
    split = split_pairs(stage, tokenizer, pairs, adapters)
    torch.manual_seed(seed)  # The score head is initialised at random when the model is loaded.
    model = scorer(stage.experiment.train, adapters["start"].folder if "start" in adapters else None)
    trainer = make_trainer(stage, model, split.train, Ranking(stage.experiment.train.pair_weight))
    progress = run_trainer(trainer, stage)
    held_out = [pair for group in split.held_out for pair in group.sample_pairs]
    trained_on = [pair for group in split.train for pair in group.sample_pairs]
    chosen, rejected = scores_of_pairs(trainer.reader, split.held_out)
    measured: dict[str, Any] = measure(*scores_of_pairs(trainer.reader, split.measured(seed)), "train")
    measured |= measure(chosen, rejected, "held_out") | audit_of_pairs(chosen, rejected, held_out, trained_on)
    texts = [rating for rating in rated if rating.task_id in split.held_out_tasks]
    measured |= audit(trainer.reader, tokenizer, texts)
    cost = meter.read(stage.steps.epochs * split.tokens, progress["resumed_from_step"])
    metrics = split.counts | measured | progress | cost
    publish(stage, trainer.model.save_pretrained, metrics)


def scorer(train: Train, start: Path | None = None) -> Any:
    """Return a base with a fresh score head, and a fresh adapter or that of the reflector in `start`."""
    base = load_base(train, scores=True)
    model = add_fresh_adapter(base, train.lora, scores=True)
    keep_trainables_in_fp32(model)
    if start is not None:
        # peft wants the score head as well, which a reflector does not have.
        weights = get_peft_model_state_dict(model) | load_peft_weights(str(start), device="cpu")
        set_peft_model_state_dict(model, weights)
    return model


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


def audit(reader: GroupReader, tokenizer: Any, rated: Sequence[Rating]) -> dict[str, float]:
    """Return Pearson's correlation of the scores of reflections with their ratings, and with their lengths.

    Unlike pairs, this includes ties and compares across trajectories, so it is the harder measure.
    """
    by_text: dict[AdviceText, list[float]] = {}
    for row in rated:
        advice = AdviceText(row.prompt, row.text, row.is_cut)
        by_text.setdefault(advice, []).append(row.rating)
    ratings = {text: fmean(values) for text, values in by_text.items()}
    texts = list(samples(tokenizer, ratings))
    scores = scores_of(reader, texts)
    metrics: dict[str, float] = {"held_out_reflections": len(ratings)}
    lengths = [float(len(sample.response_ids)) for sample in texts]
    compared: dict[str, list[float]] = {"correlation": list(ratings.values()), "length_correlation": lengths}
    for name, values in compared.items():
        if len(set(scores)) > 1 and len(set(values)) > 1:
            metrics[f"held_out_{name}"] = correlation(scores, values)
    return metrics


def scores_of(reader: GroupReader, texts: Sequence[Sample]) -> list[float]:
    """Score texts, those on one prompt in one row."""
    scores: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}
    groups = list(Groups(texts, most_tokens=sys.maxsize))
    for group, scores_R in zip(groups, reader.measured(groups), strict=True):
        for response, score in zip(group.responses, scores_R.tolist(), strict=True):
            scores[tuple(group.prompt), tuple(response)] = score
    return [scores[tuple(sample.prompt_ids), tuple(sample.response_ids)] for sample in texts]


def scores_of_pairs(reader: GroupReader, groups: Sequence[Group]) -> tuple[list[float], list[float]]:
    """Score the better and the worse texts of all pairs of `groups`."""
    if not groups:
        return [], []
    chosen_P, rejected_P = in_pairs(torch.cat(reader.measured(groups)), groups)
    return chosen_P.tolist(), rejected_P.tolist()
