"""Updates of PPO and GRPO: the optimiser, the facts of responses, and alarms.

An alarm says that a policy degenerates. It compares an update with the first one, whose responses came from the SFT
policy, so it says that the texts have changed in kind, not whether the advice still helps: `eval` measures that.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from retroformer.config.sections.train import Grpo, Ppo
from retroformer.method.repetition import RESTATEMENT_SHARE, copied_share, distinct

from .. import processes
from ..data.samples import Prompt
from ..integrity import LOWER_THE_RATE, require_finite, require_finite_gradients
from ..loop import Facts
from .policy import SharedBase
from .sampling import Block

logger = logging.getLogger(__name__)

MAX_GRADIENT_NORM = 1.0
WARMUP_SHARE = 0.05
"""Share of the optimiser steps in which the learning rates rise to their peak."""


def adam(*groups: tuple[Iterable[nn.Parameter], float]) -> torch.optim.AdamW:
    """Return Adam over groups of parameters, each with its peak learning rate, which it keeps as `peak`."""
    entries = [{"params": list(parameters), "lr": peak, "peak": peak} for parameters, peak in groups]
    return torch.optim.AdamW(entries, weight_decay=0.0)


def set_learning_rates(optimizer: torch.optim.Optimizer, settings: Ppo | Grpo, step: int) -> None:
    """Set the learning rates of a step: rising in the warm-up, then constant. There is no state to resume."""
    warmup = max(1.0, WARMUP_SHARE * settings.updates * settings.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * min(1.0, (step + 1) / warmup)


def accumulate(
    model: SharedBase,
    optimizer: torch.optim.Optimizer,
    micro_batches: Iterable[Block],
    add_gradients: Callable[[Block], dict[str, float]],
) -> dict[str, float]:
    """Sum the gradients that `add_gradients` adds for each micro-batch, over all processes, and clip them.

    Returns:
        The sums of the facts that `add_gradients` returns; of `ratio_furthest_from_1` the maximum. `gradient_norm` is
        the norm before clipping.
    """
    model.train()
    optimizer.zero_grad()
    parts = processes.each(micro_batches, add_gradients)
    facts: dict[str, float] = {name: sum(part[name] for part in parts) for name in parts[0]}
    facts["ratio_furthest_from_1"] = max(part["ratio_furthest_from_1"] for part in parts)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    processes.sum_gradients(parameters)
    return facts | {"gradient_norm": clip_gradients(model, parameters, "in a pass over the batch")}


def clip_gradients(module: nn.Module, parameters: Iterable[nn.Parameter], when: str) -> float:
    """Clip the gradients of `parameters` of a module; return their norm before. `when` is part of the error message.

    Raises:
        NotFinite: a gradient, or their norm, is infinite or not a number.
    """
    require_finite_gradients(module.named_parameters(), when)
    norm = nn.utils.clip_grad_norm_(parameters, MAX_GRADIENT_NORM)
    require_finite([("The norm of the gradients", norm)], f"{when}: {LOWER_THE_RATE}")
    return float(norm)


Describe = Callable[[Sequence[list[int]], Sequence[list[int]]], dict[str, float]]
"""Computes facts of an update from its prompts and the responses to them, in tokens."""


def repetition(texts: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, float]:
    """Return the facts of one batch.

    distinct_1, distinct_2: share of distinct words and word pairs in the batch.
    copied_from_attempt: mean share of copies from the prompt's last message, which has the failed attempt.
    restating: share of responses of which at least half is copied from that message.
    copied_from_instruction: mean share of copies from the earlier messages only: the instruction, and few-shot examples
    in views that have any (`actor`).
    """
    attempts = [prompt[-1].content for prompt in prompts]
    instructions = ["\n".join(message.content for message in prompt[:-1]) for prompt in prompts]
    shares = [copied_share(text, attempt) for text, attempt in zip(texts, attempts, strict=True)]
    return {
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "copied_from_attempt": fmean(shares),
        "restating": fmean(float(share >= RESTATEMENT_SHARE) for share in shares),
        "copied_from_instruction": fmean(map(copied_share, texts, instructions, attempts)),
    }


def describer(tokenizer: Any, prompts: Sequence[Prompt], prompt_ids: Sequence[list[int]]) -> Describe:
    """Return a function that computes the facts of an update of `prompts`, whose tokens are `prompt_ids`."""
    by_ids = {tuple(ids): prompt for ids, prompt in zip(prompt_ids, prompts, strict=True)}

    def describe(prompts: Sequence[list[int]], responses: Sequence[list[int]]) -> dict[str, float]:
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        return repetition(texts, [by_ids[tuple(ids)] for ids in prompts])

    return describe


class Alarm(NamedTuple):
    """Bounds on facts of an update, and the message when one is crossed."""

    says: str
    least: Mapping[str, float] = MappingProxyType({})
    """Smallest shares of the first value, by the name of the fact."""
    most: Mapping[str, float] = MappingProxyType({})
    """Largest shares of the first value."""

    def is_on(self, first: Facts, now: Facts) -> bool:
        """Return True if the update `now` crosses a bound; `first` is the first update."""
        below = any(now[name] < share * first[name] for name, share in self.least.items())
        return below or any(now[name] > share * first[name] for name, share in self.most.items())


ALARMS: Mapping[str, Alarm] = MappingProxyType(
    {
        # In good runs entropy may fall far; lengths change little.
        "alarm_collapse": Alarm("the policy says the same to everything", {"entropy": 0.25, "distinct_2": 0.5}),
        "alarm_length": Alarm("the responses have grown or do not end", {"ended": 0.75}, {"response_tokens": 2.0}),
    }
)
"""The alarms, by the name of the fact that is 1 while they are on and 0 otherwise."""


def alarm_facts(history: Sequence[Facts], now: Facts) -> Facts:
    """Return a fact for each alarm (1 or 0) of the update `now` that follows `history`."""
    first = history[0] if history else now
    return {name: float(alarm.is_on(first, now)) for name, alarm in ALARMS.items()}


def with_alarms(updates: Iterable[Facts], history: Sequence[Facts]) -> Iterator[Facts]:
    """Yield updates that `take` appends to `history`, with the facts of the alarms; log each alarm the first time."""
    reported = len(first_alarms(history))
    for facts in updates:
        now = facts | alarm_facts(history, facts)
        for alarm in first_alarms([*history, now])[reported:]:
            logger.warning(alarm)
            reported += 1
        yield now


def first_alarms(history: Sequence[Facts]) -> list[str]:
    """Return a sentence for each alarm that has reported, about the first time it did, in the order of updates."""
    sentences: dict[str, str] = {}
    for update, now in enumerate(history, start=1):
        for name, alarm in ALARMS.items():
            if name not in sentences and alarm.is_on(history[0], now):
                read = (*alarm.least, *alarm.most)
                changes = (f"{each} {history[0][each]:.2f} at first and {now[each]:.2f} now" for each in read)
                sentences[name] = f"Update {update}: {alarm.says} ({', '.join(changes)})."
    return list(sentences.values())
