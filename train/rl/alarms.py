"""Alarms about a policy that degenerates in training, as sentences.

Every alarm compares an update with the first one, whose responses came from the SFT policy. An alarm says that the
texts have changed in kind, not whether the advice still helps: `eval` measures that.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

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
