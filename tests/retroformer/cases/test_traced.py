"""Tests of the grouping of recorded attempts into cases."""

import pytest

from retroformer.cases.case import Case, CaseAttempt, CaseTask
from retroformer.cases.traced import Omission, TracedAttempt, cases_of
from retroformer.errors import MissingInput
from retroformer.method.records import LAST_TRIAL


def tried(
    score: float,
    *advice: str,
    task: str = "refund-1",
    at: int = 0,
    trial: int | None = None,
    model: str = "",
) -> TracedAttempt:
    return TracedAttempt(
        task=CaseTask(id=task, input=f"Do {task}."),
        attempt=CaseAttempt(score=score, output=f"scored {score}"),
        trial=trial,
        started_ns=at,
        advice=advice,
        advice_model=model,
        source=f"Line {at} of traces.jsonl",
    )


def summary(case: Case) -> tuple[int, float, str | None, float | None]:
    return case.trial, case.attempt.score, case.advice and case.advice.text, case.rating


def test_two_attempts_with_advice_between_are_rated() -> None:
    [case] = cases_of([tried(1, "Search first.", at=2, model="sft"), tried(0.25, at=1)])
    assert summary(case) == (0, 0.25, "Search first.", 0.75)
    assert case.advice is not None
    assert case.advice.model == "sft"
    assert case.retry is not None
    assert case.retry.output == "scored 1"


def test_a_retry_that_fails_waits_for_advice_itself() -> None:
    rated, waiting = cases_of([tried(0, at=1), tried(0.5, "Search first.", at=2)])
    assert summary(rated) == (0, 0, "Search first.", 0.5)
    assert summary(waiting) == (0, 0.5, None, None)
    assert waiting.retry is None


def test_a_failure_without_new_advice_after_it_waits() -> None:
    cases = list(cases_of([tried(0, at=1), tried(0, at=2), tried(0, "Search first.", at=3), tried(1, "Pay.", at=4)]))
    assert [summary(case) for case in cases] == [(0, 0, None, None), (1, 0, "Search first.", 0), (2, 0, "Pay.", 1)]


@pytest.mark.parametrize(
    ("first", "second", "written"),
    [
        (("Search first.",), ("Search first.", "Then pay."), "Then pay."),
        (("Search first.",), ("Search first.\nThen pay.",), "Then pay."),
        (("a", "b"), ("b", "c"), "c"),
        (("a",), ("a", "a"), "a"),
        (("a",), ("a",), None),
        (("a",), ("  a ",), None),
        ((), ("", " "), None),
        (("a",), (), None),
    ],
)
def test_advice_that_the_attempt_before_read_is_not_new(
    first: tuple[str, ...], second: tuple[str, ...], written: str | None
) -> None:
    case, *_ = cases_of([tried(0, *first, at=1), tried(0, *second, at=2)])
    assert (case.advice and case.advice.text) == written


def test_equal_attempts_beyond_the_last_trial_number_are_left_out() -> None:
    *cases, last = cases_of([tried(0)] * (LAST_TRIAL + 1))
    assert isinstance(cases[-1], Case)
    assert (len(cases), cases[-1].trial) == (LAST_TRIAL, LAST_TRIAL - 1)
    assert last == Omission(reason="attempts beyond 9999 equal ones at a task")


def test_what_follows_a_success_is_no_retry() -> None:
    assert not list(cases_of([tried(1, at=1), tried(1, "Search first.", at=2)]))


def test_trial_numbers_rank_before_the_time() -> None:
    [case] = cases_of([tried(1, "Search first.", at=1, trial=8), tried(0, at=2, trial=7)])
    assert summary(case) == (0, 0, "Search first.", 1)


def test_a_case_stays_the_same_when_an_earlier_attempt_comes_later() -> None:
    known = [tried(0.5, at=2), tried(1, "Search first.", at=3)]
    (before,) = cases_of(known)
    earlier, after = cases_of([tried(0, at=1), *known])
    assert (earlier.rating, after) == (None, before)


def test_tasks_keep_their_attempts_apart() -> None:
    cases = list(cases_of([tried(0, at=1, task="a"), tried(1, "Search.", at=2, task="b"), tried(0, at=3, task="c")]))
    assert [(case.task.id, case.advice) for case in cases] == [("a", None), ("c", None)]


@pytest.mark.parametrize(
    ("trials", "sentence"),
    [
        ((0, 0), "Line 2 of traces.jsonl: trial 0 of the task 'refund-1' is also at Line 1 of traces.jsonl"),
        ((0, None), "Line 2 of traces.jsonl: the attempt at the task 'refund-1' has no trial number"),
    ],
)
def test_attempts_that_contradict_each_other_are_refused(trials: tuple[int | None, ...], sentence: str) -> None:
    with pytest.raises(MissingInput) as refused:
        list(cases_of([tried(0, at=number, trial=trial) for number, trial in enumerate(trials, start=1)]))
    assert sentence in str(refused.value)
