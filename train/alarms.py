"""Alarms: what the curves show when a policy goes wrong, as a sentence.

Every alarm holds an update against the first one, which the SFT policy answered. So none says whether the advice is
good, only that it has become another kind of text; whether it helps no more is seen where it is played, in `eval`.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

Facts = dict[str, float]

LEAST_ENTROPY = 0.25
LEAST_DISTINCT = 0.5
LEAST_ENDED = 0.75
MOST_TOKENS = 2.0
"""Shares of the first value beyond which an alarm rings. Entropy may fall far in a run that ends well; length not."""


class Alarm(NamedTuple):
    """When it rings, by the facts of the first update and of a later one, and what it says."""

    rings: Callable[[Facts, Facts], bool]
    says: str
    facts: tuple[str, ...]
    """Those that it looks at."""


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
"""By the fact of an update that says whether they ring: 1 or 0."""


def ringing(history: Sequence[Facts], now: Facts) -> Facts:
    """A fact for each alarm, of the update `now` that follows `history`."""
    first = history[0] if history else now
    return {name: float(alarm.rings(first, now)) for name, alarm in ALARMS.items()}


def first_rings(history: Sequence[Facts]) -> list[str]:
    """A sentence for each alarm that ever rang, about the update at which it did first, in the order of updates."""
    said: dict[str, str] = {}
    for update, now in enumerate(history, start=1):
        for name, alarm in ALARMS.items():
            if name not in said and alarm.rings(history[0], now):
                said[name] = f"Update {update}: {alarm.says} ({_seen(alarm, history[0], now)})."
    return list(said.values())


def _seen(alarm: Alarm, first: Facts, now: Facts) -> str:
    return ", ".join(f"{name} {first[name]:.2f} at first and {now[name]:.2f} now" for name in alarm.facts)
