"""How much of what the policy writes was there before: in the same batch, and in its own prompt.

Counted in words, which are runs of letters and digits in lower case: so it means the same for every tokenizer, but it
sees no meaning. A word for word quotation of an observation counts as much as one of an action.
"""

import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from train.dataset import Prompt

COPIED_WORDS = 4
"""A run of this many words that the prompt has, too, is a copy."""
RESTATING = 0.5
"""A response restates where at least this share of its runs of words is copied from the message with the attempt."""

Describe = Callable[[Sequence[list[int]], Sequence[list[int]]], dict[str, float]]
"""Facts of an update from its prompts and the responses to them, in tokens."""


def runs(text: str, length: int) -> list[tuple[str, ...]]:
    """All runs of `length` words, in their order."""
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]


def distinct(texts: Sequence[str], length: int) -> float:
    """Different runs of words in all texts by all runs (distinct-n of Li et al., 2016); 0 where there is none.

    The more text the smaller: only batches of about one length compare.
    """
    found = [run for text in texts for run in runs(text, length)]
    return len(set(found)) / len(found) if found else 0.0


def copied(text: str, source: str, elsewhere: str = "") -> float:
    """Share of the text's runs of four words that `source` has and `elsewhere` has not; 0 for a shorter text."""
    here, there = set(runs(source, COPIED_WORDS)), set(runs(elsewhere, COPIED_WORDS))
    found = runs(text, COPIED_WORDS)
    return sum(run in here and run not in there for run in found) / len(found) if found else 0.0


def repetition(texts: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, float]:
    """The facts of one batch.

    distinct_1, distinct_2: of words and of pairs of words in the batch.
    copied_from_attempt: mean share of copies from the last message of the prompt, where the failed attempt stands.
    restating: share of responses of which at least half is copied from there.
    copied_from_instruction: mean share of copies from the messages before it and not from it: the instruction, and the
    few-shot examples where the view has any (`actor`; the others have none).
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
    """What tells the facts of an update of `prompts`, whose tokens are `prompt_ids`."""
    known = {tuple(ids): prompt for ids, prompt in zip(prompt_ids, prompts, strict=True)}

    def describe(asked: Sequence[list[int]], responses: Sequence[list[int]]) -> dict[str, float]:
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        return repetition(texts, [known[tuple(ids)] for ids in asked])

    return describe
