"""Measures how much the policy repeats: other responses of the batch, or its own prompt."""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from retroformer.repetition import RESTATING, copied, distinct

from ..data.samples import Prompt

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
    shares = [copied(text, attempt) for text, attempt in zip(texts, attempts, strict=True)]
    return {
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
        "copied_from_attempt": fmean(shares),
        "restating": fmean(float(share >= RESTATING) for share in shares),
        "copied_from_instruction": fmean(map(copied, texts, instructions, attempts)),
    }


def describer(tokenizer: Any, prompts: Sequence[Prompt], prompt_ids: Sequence[list[int]]) -> Describe:
    """Return a function that computes the facts of an update of `prompts`, whose tokens are `prompt_ids`."""
    by_ids = {tuple(ids): prompt for ids, prompt in zip(prompt_ids, prompts, strict=True)}

    def describe(asked: Sequence[list[int]], responses: Sequence[list[int]]) -> dict[str, float]:
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        return repetition(texts, [by_ids[tuple(ids)] for ids in asked])

    return describe
