"""Test that cases become facts of a run: each one once, with its rating, under conditions of their own."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from retroformer.cases.case import Case, parse_case
from retroformer.cases.export_cases import stored_cases
from retroformer.cases.import_cases import StoredCases, store_cases
from retroformer.config.experiment import Experiment
from retroformer.environments.agent import AgentSection
from retroformer.errors import ConfigError
from retroformer.method.rating import preference_pairs, ratings
from retroformer.method.records import Outcome
from retroformer.run.arm_names import COLLECT, UNADVISED
from retroformer.run.store import Store, open_store
from tests.support.cases import case
from train.base import load_tokenizer
from train.data.inputs import failures, pairs, positive_reflections, rated
from train.data.samples import samples
from train.pair_split import held_out_tasks


def store(experiment: Experiment, *cases: Case, source: str = "cases") -> StoredCases:
    return store_cases(experiment, lambda: cases, source)


def read_case(attempt: dict[str, Any]) -> Case:
    """Return a case as it is read from a line, with this attempt alone."""
    line = json.dumps({"task": {"id": "refund-1", "input": "Refund."}, "attempt": attempt})
    return parse_case(line, "the line")


def opened(experiment: Experiment) -> "closing[Store]":
    return closing(open_store(experiment))


def test_an_attempt_with_advice_and_a_retry_is_a_rated_reflection(experiment: Experiment) -> None:
    assert store(experiment, case(attempt={"score": 0.25, "output": "No."})) == StoredCases(1, 1, 0, 3)
    with opened(experiment) as facts:
        (rated,) = ratings(facts, COLLECT, records=True)
        assert (rated.text, rated.rating, rated.reflection.author.model) == ("Search by customer first.", 0.75, "sft")
        assert "Refund order 4711." in rated.reflection.prompt[-1].content
        outcomes = [attempt.outcome for _, attempt in facts.stream_trajectories(COLLECT)]
        assert sorted(outcomes) == [Outcome.FAILURE, Outcome.SUCCESS]
    assert [advice.text for advice in positive_reflections(experiment)] == ["Search by customer first."]


def test_advice_cut_at_the_limit_of_tokens_is_not_taught_as_complete(experiment: Experiment) -> None:
    cut, whole = {"text": "Search by", "model": "sft", "is_cut": True}, {"text": "Search by name.", "model": "sft"}
    store(experiment, case(advice=cut), case(advice=whole, candidate=1, retry={"score": 0.0, "output": "No."}))
    tokenizer = load_tokenizer(experiment.train)
    (sample,) = samples(tokenizer, positive_reflections(experiment))
    assert tokenizer.decode(sample.response_ids) == "Search by", "no end of turn follows"
    with opened(experiment) as facts:
        (pair,) = preference_pairs(facts, COLLECT)
        exported = [each.advice for each in stored_cases(facts)]
    assert (pair.chosen_is_cut, pair.rejected_is_cut) == (True, False)
    assert sorted(advice.is_cut for advice in exported if advice is not None) == [False, True]


def test_a_failure_without_a_retry_waits_for_advice(experiment: Experiment) -> None:
    assert store(experiment, case(advice=None, retry=None)) == StoredCases(1, 0, 1, 1)
    with opened(experiment) as facts:
        assert (facts.arm_counts()[COLLECT].attempts, facts.arm_counts()[COLLECT].advice) == (1, 0)


def test_a_retry_without_advice_is_an_unadvised_one(experiment: Experiment) -> None:
    store(experiment, case(advice=None))
    with opened(experiment) as facts:
        assert facts.arms() == [UNADVISED]
        assert [(key.trial, attempt.episode_return) for key, attempt in facts.stream_trajectories(UNADVISED)] == [
            (0, 0.0),
            (1, 1.0),
        ]


def test_cases_stored_twice_in_any_order_are_stored_once(url: str) -> None:
    experiment = Experiment(run="mine", environment=AgentSection(), store=url)
    cases = [case(), case(trial=1), case(candidate=1), case(advice={"text": "Other."}), case(advice=None, retry=None)]
    assert store(experiment, *cases).new_facts > 0
    assert store(experiment, *reversed(cases)).new_facts == 0


def test_different_cases_of_one_task_do_not_displace_each_other(experiment: Experiment) -> None:
    failed = [{"score": 0.0, "output": text} for text in ("No.", "Never.")]
    advice = [{"text": text} for text in ("Look.", "Ask.")]
    retried = [{"score": score, "output": "Done."} for score in (0.5, 1.0)]
    cases = [case(attempt=a, advice=b, retry=c) for a in failed for b in advice for c in retried]
    assert store(experiment, *cases) == StoredCases(8, 8, 0, 2 + 4 + 8)
    with opened(experiment) as facts:
        rated = list(ratings(facts, COLLECT, records=True))
        assert sorted((each.text, each.rating) for each in rated) == [("Ask.", 0.75)] * 2 + [("Look.", 0.75)] * 2
        assert {returned for each in rated for returned in each.returns_after} == {0.5, 1.0}


def test_advice_on_one_attempt_makes_preference_pairs(experiment: Experiment) -> None:
    store(experiment, case(), case(advice={"text": "Give up."}, retry={"score": 0.0, "output": "No."}))
    with opened(experiment) as facts:
        (pair,) = preference_pairs(facts, COLLECT)
    assert (pair.chosen, pair.rejected) == ("Search by customer first.", "Give up.")


def test_pairs_and_ratings_of_several_failures_of_one_task_have_its_id_and_are_held_out_together(
    experiment: Experiment,
) -> None:
    for number in range(3):
        failed = {"score": 0.0, "output": f"No, {number}."}
        bad = {"advice": {"text": "Give up."}, "retry": {"score": 0.0, "output": "No."}}
        store(experiment, case(attempt=failed), case(attempt=failed, **bad))
    found = pairs(experiment)
    assert [pair.task_id for pair in found] == ["refund-1"] * 3
    assert {rating.task_id for rating in rated(experiment)} == {"refund-1"}
    assert held_out_tasks([*(pair.task_id for pair in found), "another"], 0) in ({"refund-1"}, {"another"})


def test_equal_retries_with_numbers_of_their_own_are_all_counted(experiment: Experiment) -> None:
    store(experiment, *(case(repeat=number) for number in range(3)))
    with opened(experiment) as facts:
        (rated,) = ratings(facts, COLLECT, records=True)
        assert rated.returns_after == (1.0, 1.0, 1.0)


def test_cases_are_never_mixed_with_attempts_of_other_conditions(experiment: Experiment) -> None:
    store(experiment, case(), source="inspect")
    with pytest.raises(ConfigError, match=r"recorded\.source='inspect', not 'cases'"):
        store(experiment, case())


def test_nothing_of_a_file_is_stored_if_reading_it_fails(experiment: Experiment) -> None:
    def read() -> Iterator[Case]:
        for number in range(1200):
            yield case(task={"id": f"refund-{number}", "input": "Refund it."})
        raise ConfigError("Line 1201 is wrong.")

    with pytest.raises(ConfigError, match="Line 1201"):
        store_cases(experiment, read)
    with opened(experiment) as facts:
        assert facts.arms() == []


def test_no_thinking_is_stored(experiment: Experiment) -> None:
    thinking = "<think>The secret thought.</think>"
    says = {"role": "assistant", "content": f"{thinking}Which order?"}
    store(
        experiment,
        case(
            attempt={"score": 0.0, "messages": [{"role": "user", "content": "Hi."}, says]},
            advice={"text": f"{thinking}Search."},
            retry={"score": 1.0, "steps": [{"thought": f"{thinking}a", "action": "b", "observation": "c"}]},
        ),
    )
    with opened(experiment) as facts:
        (rated,) = ratings(facts, COLLECT, records=True)
        assert rated.text == "Search."
        records = [attempt.model_dump_json() for _, attempt in facts.stream_trajectories(COLLECT)]
        assert not [text for text in [*records, str(rated.record)] if "secret thought" in text]


def test_cases_of_later_trials_can_be_trained_on(experiment: Experiment) -> None:
    store(experiment, case(trial=2), case(trial=1))
    assert sorted(failure.trial for failure in failures(experiment)) == [2, 3]


def test_messages_are_kept_beside_the_steps(experiment: Experiment) -> None:
    says = {"role": "assistant", "content": "Which order?", "reasoning_content": "The secret thought."}
    attempt = read_case({"score": 0.0, "messages": [{"role": "user", "content": "Refund."}, says]})
    store(experiment, attempt)
    with opened(experiment) as facts:
        ((_, stored),) = facts.stream_trajectories(COLLECT)
    assert stored.messages is not None
    assert [message.model_dump() for message in stored.messages] == [
        {"role": "user", "content": "Refund."},
        {"role": "assistant", "content": "Which order?"},
    ]
    assert [step.action for step in stored.steps] == ["Which order?"]
