"""TRL's trainers of SFT, reward models and DPO, on our tokens and batches.

TRL's are the collation and the reading of rows, the loss, and DPO's reference. Ours are the tokens, the batches and
their micro-batches, the weights of pairs, and checkpoints. Each response is in a row of its own, with its prompt.

Silent faults of TRL 1.16 that this module prevents:

1. A row longer than `max_length` is cut or dropped. No row passes through TRL's preparation of data, and the number of
   tokens of each micro-batch is checked.
2. Trainable weights of a 4-bit model are rounded to bf16, at the start and in each step, but DPO's reference is not.
3. Layers are computed again on a CPU too, for nothing, and dropout of reward models is switched off.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from datasets import Dataset
from torch import Tensor
from transformers import default_data_collator
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from .base import load_tokenizer, save_memory
from .data.samples import IGNORED
from .losses import BETA, CENTRING
from .pair_split import weights_of_pairs
from .shared_prompt.packed import Group, Groups, micro_batches
from .stage import Stage
from .trainer import ParallelTrainer, trainer_settings


class MicroBatch(NamedTuple):
    """Rows that TRL reads at once."""

    rows: list[dict[str, list[int]]]
    """Token lists by the names of TRL's columns."""
    tokens: int
    """Number of tokens that TRL reads."""
    weight: float = 1.0
    """Factor of TRL's loss."""
    learnt: int | None = None
    """For SFT, the number of tokens with a label in the whole batch, of which the loss is the mean."""


Parts = Callable[[int], Iterator[MicroBatch]]
"""Reads the micro-batches of the batch with a number."""


class TrlTrainer(ParallelTrainer):
    """Our side of the three trainers."""

    data_collator: Any

    def __init__(self, stage: Stage, model: Any, batches: int, parts: Parts, args: Any) -> None:
        self._parts = parts
        train, trunk = stage.experiment.train, model.get_base_model().base_model
        trunk.config._attn_implementation = "sdpa" if trunk._supports_sdpa else "eager"
        save_memory(model.get_base_model(), model, gradient_checkpointing=train.gradient_checkpointing)
        exact = {name: parameter.data for name, parameter in model.named_parameters() if parameter.requires_grad}
        super().__init__(
            model=model,
            args=args,
            processing_class=load_tokenizer(train),
            train_dataset=Dataset.from_dict({"batch": list(range(batches))}),
        )
        for name, parameter in model.named_parameters():
            if name in exact:
                parameter.data = exact[name]
        self._collate: Any = self.data_collator
        self.data_collator = default_data_collator

    def losses(self, batch: int) -> Iterator[Callable[[], Tensor]]:
        """Yield a function for each micro-batch of a batch, which computes its share in the loss of the batch."""
        for part in self._parts(batch):
            yield partial(self._loss, part)

    def _loss(self, part: MicroBatch) -> Tensor:
        inputs = self._prepare_inputs(self._collate(part.rows))
        if (read := int(inputs["attention_mask"].sum())) != part.tokens:
            raise RuntimeError(f"TRL reads {read} of {part.tokens} tokens: it cut or dropped some.")
        with self.compute_loss_context_manager():
            loss: Tensor = self.compute_loss(self.model, inputs, num_items_in_batch=part.learnt)
        return loss * part.weight

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        return dataset


class SftOnTokens(TrlTrainer, SFTTrainer):  # type: ignore[misc]
    """The mean cross-entropy of labelled tokens."""


class RewardModel(TrlTrainer, RewardTrainer):  # type: ignore[misc]
    """The Bradley-Terry loss, with the centring term."""


class Preferences(TrlTrainer, DPOTrainer):  # type: ignore[misc]
    """DPO. The reference is a copy of the policy, under the name `ref`."""


def sft_trainer(stage: Stage, learning_rate: float, model: Any, batches: int, parts: Parts) -> Any:
    """Return TRL's trainer of a language model on rows of `input_ids` and `labels`."""
    return SftOnTokens(stage, model, batches, parts, SFTConfig(**_settings(stage, learning_rate), **_NO_BALANCING))


def trainer_on_groups(stage: Stage, model: Any, groups: Groups, batches: Sequence[Sequence[int]]) -> Any:
    """Return TRL's trainer of a stage; `batches` holds the numbers of the groups of each."""
    rate, train = stage.steps.learning_rate, stage.experiment.train
    settings = _settings(stage, rate)

    def batch(number: int) -> list[Group]:
        return [groups[index] for index in batches[number]]

    def texts(number: int) -> Iterator[MicroBatch]:
        return _texts(batch(number), train.micro_batch_tokens)

    def pairs(number: int) -> Iterator[MicroBatch]:
        return _pairs(batch(number), train.micro_batch_tokens, train.pair_weight, whole=stage.name == "reward")

    if stage.name == "dpo":
        args = DPOConfig(**settings, beta=BETA, **_NO_BALANCING)
        return Preferences(stage, model, len(batches), pairs, args)
    if stage.name == "reward":
        rewards = RewardConfig(**settings, center_rewards_coefficient=CENTRING, disable_dropout=False)
        return RewardModel(stage, model, len(batches), pairs, rewards)
    return sft_trainer(stage, rate, model, len(batches), texts)


_NO_BALANCING = {"router_aux_loss_coef": 0.0}
"""TRL would add a loss that balances the experts of a mixture; the router is frozen."""


def _settings(stage: Stage, learning_rate: float) -> dict[str, Any]:
    return trainer_settings(stage, learning_rate) | {"max_length": None}


def _texts(batch: Sequence[Group], most_tokens: int) -> Iterator[MicroBatch]:
    texts = [text for group in batch for text in group.alone]
    learnt = sum(len(text.responses[0]) for text in texts)
    for part in micro_batches(texts, most_tokens):
        rows = [
            {
                "input_ids": text.prompt + text.responses[0],
                "labels": [IGNORED] * len(text.prompt) + text.responses[0],
            }
            for text in part
        ]
        yield MicroBatch(rows, sum(text.length for text in part), learnt=learnt)


def _pairs(batch: Sequence[Group], most_tokens: int, pair_weight: str, *, whole: bool) -> Iterator[MicroBatch]:
    """Yield micro-batches of pairs with the same weight, since TRL's loss is the mean over a micro-batch.

    If `whole`, the prompt is part of the texts, as the reward model's trainer reads it.
    """

    def row(prompt: list[int], chosen: list[int], rejected: list[int]) -> dict[str, list[int]]:
        if whole:
            return {"chosen_ids": prompt + chosen, "rejected_ids": prompt + rejected}
        return {"prompt_ids": prompt, "chosen_ids": chosen, "rejected_ids": rejected}

    def weight(group: Group) -> float:
        return float(weights_of_pairs([group], batch, pair_weight)[0])

    for of_each, groups in groupby(batch, weight):
        pairs = [
            Group(group.prompt, [group.responses[better], group.responses[worse]])
            for group in groups
            for better, worse in group.pairs
        ]
        for part in micro_batches(pairs, most_tokens, length=lambda pair: 2 * pair.longest):
            tokens = sum(pair.length + len(pair.prompt) for pair in part)
            yield MicroBatch([row(pair.prompt, *pair.responses) for pair in part], tokens, of_each * len(part))
