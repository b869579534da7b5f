"""Alarms about a policy that degenerates in training, as sentences.

Every alarm compares an update with the first one, whose responses came from the SFT policy. An alarm says that the
texts have changed in kind, not whether the advice still helps: `eval` measures that.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

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


Facts = dict[str, float]

LEAST_ENTROPY = 0.25
LEAST_DISTINCT = 0.5
LEAST_ENDED = 0.75
MOST_TOKENS = 2.0
"""Shares of the first value beyond which an alarm rings. In good runs entropy may fall far; lengths change little."""


class Alarm(NamedTuple):
    """A condition on the facts of the first update and of a later one, and its message."""

    rings: Callable[[Facts, Facts], bool]
    says: str
    facts: tuple[str, ...]
    """Names of the facts that the condition reads."""


def _collapsed(first: Facts, now: Facts) -> bool:
    return now["entropy"] < LEAST_ENTROPY * first["entropy"] or now["distinct_2"] < LEAST_DISTINCT * first["distinct_2"]


def _blown_up(first: Facts, now: Facts) -> bool:
    return (
        now["ended"] < LEAST_ENDED * first["ended"] or now["response_tokens"] > MOST_TOKENS * first["response_tokens"]
    )


ALARMS: Mapping[str, Alarm] = MappingProxyType(
    {
        "alarm_collapse": Alarm(_collapsed, "the policy says the same to everything", ("entropy", "distinct_2")),
        "alarm_length": Alarm(_blown_up, "the responses have grown or do not end", ("ended", "response_tokens")),
    }
)
"""The alarms, by the name of the fact that is 1 while they ring and 0 otherwise."""


def ringing(history: Sequence[Facts], now: Facts) -> Facts:
    """Return a fact for each alarm (1 or 0) of the update `now` that follows `history`."""
    first = history[0] if history else now
    return {name: float(alarm.rings(first, now)) for name, alarm in ALARMS.items()}


def first_rings(history: Sequence[Facts]) -> list[str]:
    """Return a sentence for each alarm that has rung, about the first time it did, in the order of updates."""
    sentences: dict[str, str] = {}
    for update, now in enumerate(history, start=1):
        for name, alarm in ALARMS.items():
            if name not in sentences and alarm.rings(history[0], now):
                sentences[name] = f"Update {update}: {alarm.says} ({_change(alarm, history[0], now)})."
    return list(sentences.values())


def _change(alarm: Alarm, first: Facts, now: Facts) -> str:
    return ", ".join(f"{name} {first[name]:.2f} at first and {now[name]:.2f} now" for name in alarm.facts)
