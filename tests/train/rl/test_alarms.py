"""Alarms ring when the texts of an update differ in kind from the first ones, and are reported once."""

import pytest

from train.rl.alarms import first_rings, ringing

FIRST = {"entropy": 1.0, "distinct_2": 0.8, "ended": 1.0, "response_tokens": 20.0}


def history_of(*changes: dict[str, float]) -> list[dict[str, float]]:
    history: list[dict[str, float]] = []
    for change in ({}, *changes):
        now = FIRST | change
        history.append(now | ringing(history, now))
    return history


@pytest.mark.parametrize(
    ("change", "alarm"),
    [
        ({"entropy": 0.24}, "alarm_collapse"),
        ({"distinct_2": 0.39}, "alarm_collapse"),
        ({"ended": 0.74}, "alarm_length"),
        ({"response_tokens": 41.0}, "alarm_length"),
        ({"entropy": 0.26, "distinct_2": 0.41, "ended": 0.76, "response_tokens": 39.0}, None),
        ({"entropy": 3.0, "distinct_2": 1.0, "response_tokens": 2.0}, None),
    ],
)
def test_an_alarm_rings_beyond_its_share_of_the_first_value(change: dict[str, float], alarm: str | None) -> None:
    now = history_of(change)[-1]
    assert {name for name in ("alarm_collapse", "alarm_length") if now[name]} == ({alarm} - {None})


def test_an_alarm_that_rings_again_is_reported_once_with_its_first_update() -> None:
    history = history_of({}, {"entropy": 0.1}, {}, {"entropy": 0.1, "ended": 0.5})
    assert [facts["alarm_collapse"] for facts in history] == [0.0, 0.0, 1.0, 0.0, 1.0]
    assert first_rings(history) == [
        "Update 3: the policy says the same to everything (entropy 1.00 at first and 0.10 now, distinct_2 0.80 at "
        "first and 0.80 now).",
        "Update 5: the responses have grown or do not end (ended 1.00 at first and 0.50 now, response_tokens "
        "20.00 at first and 20.00 now).",
    ]


def test_the_first_update_never_rings() -> None:
    assert first_rings(history_of()) == []
    assert ringing([], {"entropy": 0.0, "distinct_2": 0.0, "ended": 0.0, "response_tokens": 99.0}) == {
        "alarm_collapse": 0.0,
        "alarm_length": 0.0,
    }


def test_updates_recorded_without_alarms_ring_as_well() -> None:
    (said,) = first_rings([FIRST, FIRST | {"ended": 0.5}])
    assert said.startswith("Update 2: the responses have grown or do not end")
