"""Alarms of PPO and GRPO, and the facts of responses that they read.

An alarm says that a policy degenerates. It compares an update with the first one, whose responses came from the SFT
policy, so it says that the texts have changed in kind, not whether the advice still helps: `eval` measures that.
"""

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any

from retroformer.method.repetition import RESTATEMENT_SHARE, copied_share

from ..data.samples import Prompt
from ..loop import Facts

logger = logging.getLogger(__name__)

Describe = Callable[[Sequence[list[int]], Sequence[list[int]]], dict[str, float]]
"""Computes facts of an update from its prompts and the responses to them, in tokens."""

ALIKE = 0.1
"""Policies that helped stayed below .02. One that told three of four failures *Open product 2.* had .32."""


def repetition(texts: Sequence[str], prompts: Sequence[Prompt]) -> dict[str, float]:
    """Return the facts of one batch.

    alike: share of the pairs of responses to two different prompts that are the same text, to the letter; 0 if all
    prompts are equal.
    copied_from_attempt: mean share of copies from the prompt's last message, which has the failed attempt.
    restating: share of responses of which at least half is copied from that message.
    copied_from_instruction: mean share of copies from the earlier messages only: the instruction, and few-shot examples
    in views that have any (`actor`).
    """
    attempts = [prompt[-1].content for prompt in prompts]
    instructions = ["\n".join(message.content for message in prompt[:-1]) for prompt in prompts]
    shares = [copied_share(text, attempt) for text, attempt in zip(texts, attempts, strict=True)]
    return {
        "alike": _alike(texts, prompts),
        "copied_from_attempt": fmean(shares),
        "restating": fmean(float(share >= RESTATEMENT_SHARE) for share in shares),
        "copied_from_instruction": fmean(map(copied_share, texts, instructions, attempts)),
    }


def _alike(texts: Sequence[str], prompts: Sequence[Prompt]) -> float:
    def ordered_pairs(keys: Iterable[Hashable]) -> int:
        return sum(count * count for count in Counter(keys).values())

    pairs = len(texts) ** 2 - ordered_pairs(prompts)
    same = ordered_pairs(texts) - ordered_pairs(zip(texts, prompts, strict=True))
    return same / pairs if pairs else 0.0


def describer(tokenizer: Any, prompts: Sequence[Prompt], prompt_ids: Sequence[list[int]]) -> Describe:
    """Return a function that computes the facts of an update of `prompts`, whose tokens are `prompt_ids`."""
    by_ids = {tuple(ids): prompt for ids, prompt in zip(prompt_ids, prompts, strict=True)}

    def describe(prompts: Sequence[list[int]], responses: Sequence[list[int]]) -> dict[str, float]:
        texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in responses]
        return repetition(texts, [by_ids[tuple(ids)] for ids in prompts])

    return describe


ALARMS: Mapping[str, tuple[str, tuple[str, ...], Callable[[Facts, Facts], bool]]] = MappingProxyType(
    {
        # Stored reflections, and an SFT policy without much to say, are alike from the first update on.
        "alarm_collapse": (
            "the policy says the same to different failures",
            ("alike",),
            lambda first, now: now["alike"] > first["alike"] + ALIKE,
        ),
        "alarm_length": (
            "the responses have grown or do not end",
            ("ended", "response_tokens"),
            lambda first, now: (
                now["ended"] < 0.75 * first["ended"] or now["response_tokens"] > 2 * first["response_tokens"]
            ),
        ),
    }
)
"""What each alarm says, the facts it shows, and whether it is on, given the first update and the one now; by the name
of the fact that is 1 while it is on and 0 otherwise."""


def with_alarms(updates: Iterable[Facts], history: Sequence[Facts]) -> Iterator[Facts]:
    """Yield updates that `take` appends to `history`, with the facts of the alarms; log each alarm the first time."""
    reported = len(first_alarms(history))
    for facts in updates:
        first = history[0] if history else facts
        now = facts | {
            # A run that an earlier version began may lack a fact in its first update.
            name: float(first.keys() >= set(shown) and is_on(first, facts))
            for name, (_, shown, is_on) in ALARMS.items()
        }
        for alarm in first_alarms([*history, now])[reported:]:
            logger.warning(alarm)
            reported += 1
        yield now


def first_alarms(history: Sequence[Facts]) -> list[str]:
    """Return a sentence for each alarm that has reported, about the first time it did, in the order of updates."""
    sentences: dict[str, str] = {}
    for update, now in enumerate(history, start=1):
        for name, (says, shown, _) in ALARMS.items():
            if now.get(name) and name not in sentences:
                changes = (f"{fact} {history[0][fact]:.2f} at first and {now[fact]:.2f} now" for fact in shown)
                sentences[name] = f"Update {update}: {says} ({', '.join(changes)})."
    return list(sentences.values())
