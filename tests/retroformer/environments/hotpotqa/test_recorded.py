"""Imports of two invented logs, and of the real logs where they are installed."""

import json
import lzma
import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from retroformer.cases.case import Case
from retroformer.cases.import_cases import import_cases
from retroformer.cases.traced import Omission
from retroformer.config.conditions import prompts_sha256
from retroformer.config.experiment import Experiment
from retroformer.environments.hotpotqa.data import question_id
from retroformer.environments.hotpotqa.environment import Hotpotqa
from retroformer.environments.hotpotqa.recorded import attempts, read
from retroformer.errors import ConfigError, MissingInput
from retroformer.method.records import Ending, Key, Outcome
from retroformer.run.store import open_store
from tests.support.data import DATA, needs_data

REAL = DATA / "recorded" / "reflexion_logs.jsonl.xz"
EARLIER = (
    "You have attempted to answer following question before and failed. The following reflection(s) give a plan to"
    " avoid failing to answer the question in the same way you did previously.\nReflections:\n"
)
WHERE, WHEN = "Where was Ada Lind born?", "When was  Harrow shot?"


def record(question: str, gold: str, *actions: str, reflections: tuple[str, ...] = ()) -> str:
    carried = EARLIER + "".join(f"- {text}\n" for text in reflections) if reflections else "\n"
    steps = [
        f"Thought {number}: I think.\nAction {number}: {action}\nObservation {number}: First line.\nSecond: line.\n"
        for number, action in enumerate(actions, start=1)
    ]
    return f"\nQuestion: {question}{carried}{''.join(steps)}Correct answer: {gold}\n"


def trial(number: int, *records: str) -> str:
    rule = "#" * 40
    return (
        f"\n{rule}\nBEGIN TRIAL {number}\nTrial summary: Correct: 7, Incorrect: 9, Halted: 9\n{rule}\n"
        f"------------- BEGIN CORRECT AGENTS -------------\n{records[0]}"
        f"------------- BEGIN INCORRECT AGENTS -----------\n{''.join(records[1:])}"
        "------------- BEGIN HALTED AGENTS --------------\n"
    )


FIRST = trial(
    1,
    record(WHERE, "Bergen, Norway", "Search[Ada Lind]", "Finish[Oslo]"),
    record(WHEN, "in 1971", "Search[Harrow]", "Search[Harrow], Search[Ada Lind]"),
)
SECOND = trial(
    2,
    record(WHERE, "Bergen, Norway", "Finish[Bergen]", reflections=("Look for the town.",)),
    record(WHEN, "in 1971", "Finish[1971 in]", reflections=("Answer.", "Be quick.")),
)
THIRD = trial(
    3,
    record(WHERE, "Bergen, Norway", "Finish[Bergen (Norway)]", reflections=("Look for the town.",) * 2),
    record(WHEN, "in 1971", "Finish[1971]", reflections=("Be quick.", "Do not say in.")),
)
FOURTH = trial(4, record(WHERE, "Bergen, Norway"), record(WHEN, "in 1971", "Finish[in 1971]"))


def write(folder: Path, **logs: str) -> Path:
    for name, text in logs.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


class Read(NamedTuple):
    """What a path of logs holds."""

    cases: list[Case]
    skipped: dict[str, int]

    @property
    def rated(self) -> list[Case]:
        return [case for case in self.cases if case.advice is not None]

    @property
    def signs(self) -> tuple[int, int, int]:
        """Numbers of ratings: positive, negative, zero."""
        gains = [case.gain for case in self.rated if case.gain is not None]
        return sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains), gains.count(0)

    @property
    def keys(self) -> set[Key]:
        origins = [case.origin for case in self.cases if case.origin is not None]
        return {key for origin in origins for key in (origin.attempt, origin.retry) if key is not None}


def recorded(path: Path, score: str | None = None) -> Read:
    entries = list(read(path, score, Hotpotqa(name="hotpotqa", split="all")))
    skipped = Counter(entry.reason for entry in entries if isinstance(entry, Omission))
    return Read([entry for entry in entries if isinstance(entry, Case)], dict(skipped))


def test_a_record_is_read_with_all_its_fields() -> None:
    first, second = attempts(SECOND)
    assert (first.trial, first.question, first.gold) == (2, WHERE, "Bergen, Norway")
    assert second.question == "When was Harrow shot?"
    assert second.reflections == ("Answer.", "Be quick.")
    step = second.steps[0]
    assert (step.thought, step.action, step.observation) == (
        "I think.",
        "Finish[1971 in]",
        "First line.\nSecond: line.",
    )


def test_a_truncated_record_keeps_its_complete_parts() -> None:
    log = trial(1, "\nQuestion: Why?\nThought 1: So.\nAction 1: Search[x]\nThought 2: And\nCorrect answer: y\n")
    (only,) = attempts(log)
    assert [(step.action, step.observation) for step in only.steps] == [("Search[x]", "")]
    assert attempts(trial(1, "\nQuestion: Why?\nThought 1: So.\n")) == []


def test_reflections_are_rated_by_the_trials_around_them(tmp_path: Path) -> None:
    path = write(tmp_path, log=FIRST + SECOND + THIRD + FOURTH)
    logs = recorded(path, "f1")
    rows = [(case.task.id, case.trial, case.advice and case.advice.text, case.gain) for case in logs.rated]
    where, when = question_id(WHERE), question_id(WHEN)
    assert rows == [
        (where, 0, "Look for the town.", pytest.approx(2 / 3)),  # Oslo earns 0; Bergen 2 * 1 / (1 + 2).
        (where, 1, "Look for the town.", pytest.approx(1 / 3)),
        (when, 0, "Answer.\nBe quick.", 1.0),  # No answer earns 0; "in" is a stop word.
        (when, 1, "Do not say in.", 0.0),
    ]
    assert logs.signs == (3, 0, 1)
    # All words count: "1971 in" earns 1 against "in 1971", and "1971" 2 * 1 / (1 + 2).
    assert recorded(path).signs == (3, 1, 0)
    assert recorded(path, "em").signs == (1, 0, 3)
    assert {case.advice and case.advice.model for case in logs.rated} == {"text-davinci-003"}
    assert logs.skipped == {
        "failures that were tried again without a new reflection": 1,
        "records of questions that were solved before": 1,
    }


def test_attempts_say_how_they_ended_and_what_they_carried(tmp_path: Path) -> None:
    logs = recorded(write(tmp_path, log=FIRST + SECOND + THIRD + FOURTH), "f1")
    first, second = [case for case in logs.cases if case.task.id == question_id(WHERE)]
    assert (first.attempt.ending, second.attempt.ending) == (Ending.TERMINATED, Ending.TERMINATED)
    assert second.retry is not None
    assert (second.retry.ending, second.retry.outcome) == (Ending.SOLVED, Outcome.SUCCESS)
    assert second.retry.memory == ("Look for the town.",) * 2
    assert [first.attempt.score, second.attempt.score, second.retry.score] == pytest.approx([0, 2 / 3, 1])
    assert first.task.input == f"Question: {WHERE}"
    when = next(case for case in logs.cases if case.task.id == question_id(WHEN))
    assert (when.attempt.outcome, when.attempt.ending) == (Outcome.FAILURE, Ending.STEP_LIMIT)
    assert when.task.split == "recorded"
    assert {key.arm for key in logs.keys} == {"recorded"}


def test_no_thinking_is_imported_from_a_log(tmp_path: Path) -> None:
    thinking = "<think>Finish[Bergen]</think>"
    first = FIRST.replace("Finish[Oslo]", f"{thinking}Finish[Oslo]").replace("I think.", f"{thinking}I think.")
    second = SECOND.replace("Look for the town.", f"{thinking}Look for the town.")
    experiment = Experiment(run="logs", environment=Hotpotqa(name="hotpotqa"), store=f"sqlite:///{tmp_path}/logs.db")
    said = import_cases(experiment, write(tmp_path, log=first + second), "reflexion")
    assert "6 of their facts new: 2 are rated" in said
    with closing(open_store(experiment)) as store:
        attempts = [attempt for _, attempt in store.stream_trajectories("recorded")]
        advice = [stored.reflection for stored in store.stream_reflections("recorded")]
        assert store.conditions("recorded") == {
            "recorded": {
                "return": "f1_with_stop_words",
                "source": "reflexion",
                "view": "full",
                "prompts_sha256": prompts_sha256(experiment),
            }
        }
    assert "Look for the town." in [each.text for each in advice]
    shown = [each.model_dump_json() for each in [*attempts, *advice]]
    assert not [text for text in shown if "<think>" in text.replace(EARLIER, "")]


def test_an_unknown_return_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--score rouge: there is no such return; choose one of f1, f1_with_stop"):
        recorded(write(tmp_path, log=FIRST), "rouge")


def test_overlapping_and_continued_logs_count_once(tmp_path: Path) -> None:
    parts = {"start": FIRST + SECOND, "whole": FIRST + SECOND + THIRD, "end": THIRD}
    logs = recorded(write(tmp_path, **parts))
    assert len(logs.rated) == 4
    assert logs.skipped["records that another log has too"] == 6
    assert {key.arm for key in logs.keys} == {"recorded"}


def test_a_log_of_another_run_gets_a_separate_arm(tmp_path: Path) -> None:
    other = FIRST.replace("Finish[Oslo]", "Finish[Paris]") + SECOND
    logs = recorded(write(tmp_path, a=FIRST + SECOND, b=other))
    assert len(logs.rated) == 4
    assert {key.arm for key in logs.keys} == {"recorded", "recorded 2"}
    assert len(logs.keys) == 8


def test_a_trial_that_is_missing_leaves_the_reflection_unrated(tmp_path: Path) -> None:
    logs = recorded(write(tmp_path, log=FIRST + THIRD))
    assert not logs.rated
    assert logs.skipped["failures without a next trial in the log"] == 3


def test_logs_that_cannot_be_rated_are_counted_by_reason(tmp_path: Path) -> None:
    alone = trial(1, record(WHERE, "Bergen", "Finish[Bergen]"))
    thought = alone.replace("Thought 1", "Thought").replace("Action 1", "Action")
    logs = recorded(write(tmp_path, plain=alone, thought=thought, note="No trials here."))
    assert logs.cases == []
    assert logs.skipped == {
        "logs: chain of thought without Search and Lookup": 1,
        "logs: retries without reflections": 1,
        "logs: text without numbered trials": 1,
    }


def test_a_file_with_one_log_per_line_reads_like_the_files(tmp_path: Path) -> None:
    packed = tmp_path / "logs.jsonl.xz"
    with lzma.open(packed, "wt") as lines:
        lines.write(json.dumps({"path": "a/log.txt", "text": FIRST + SECOND}) + "\n")
    single = write(tmp_path, log=FIRST + SECOND) / "log.txt"
    assert recorded(packed) == recorded(single)


@pytest.mark.parametrize("name", ["absent.jsonl.xz", "empty", "broken.jsonl", "other.jsonl"])
def test_a_path_without_logs_is_named_in_the_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jsonl").write_text("{")
    (tmp_path / "other.jsonl").write_text('{"question": "Why?"}')
    with pytest.raises(MissingInput, match=name):
        recorded(tmp_path / name)


@needs_data("recorded/reflexion_logs.jsonl.xz")
def test_the_real_logs_give_261_rated_reflections() -> None:
    logs = recorded(REAL)
    # F1 as in ReAct. The paper's F1 ignores stop words: two gains from a shared "of" become ties, and one gain from a
    # shared "and" becomes a loss.
    assert logs.signs == (35, 13, 213)
    assert recorded(REAL, "f1").signs == (32, 14, 215)
    assert recorded(REAL, "em").signs == (19, 0, 242)
    assert len({case.advice and case.advice.text for case in logs.rated}) == 259
    assert len({key.task_id for key in logs.keys}) == 100
    solved = {
        (attempt.task_id, attempt.trial)
        for case in logs.cases
        if case.origin is not None
        for attempt, record in ((case.origin.attempt, case.attempt), (case.origin.retry, case.retry))
        if attempt is not None and record is not None and record.outcome is Outcome.SUCCESS
    }
    assert [sum(trial <= last for _, trial in solved) for last in range(7)] == [32, 42, 48, 50, 51, 53, 53]


@needs_data("recorded/reflexion_logs.jsonl.xz")
def test_success_in_the_real_logs_agrees_with_their_environment() -> None:
    for case in recorded(REAL).cases:
        for attempt in (case.attempt, case.retry):
            if attempt is not None and attempt.steps:
                output = attempt.steps[-1].observation == "Answer is CORRECT"
                assert output == (attempt.outcome is Outcome.SUCCESS)


@pytest.mark.parametrize(
    ("row", "output"),
    [
        (
            '{"path": "b.txt", "te',
            r"Line 2 of .*logs\.jsonl is not JSON \(Unterminated string starting at column \d+\)",
        ),
        ('{"path": "b.txt"}', r"Line 2 of .*logs\.jsonl is JSON of another shape \(no 'text'\): a line is"),
        ('{"path": 1, "text": "x"}', r"Line 2 of .*logs\.jsonl is JSON of another shape"),
        ('{"path": "b.txt", "text": null}', r"Line 2 of .*logs\.jsonl is JSON of another shape"),
        ('["b.txt"]', r"Line 2 of .*logs\.jsonl is JSON of another shape"),
        ('{"path": "b.txt", "text": "\\udc80"}', r"Line 2 of .*logs\.jsonl holds half of a surrogate pair"),
        ("[" * 900 + "]" * 900, r"Line 2 of .*logs\.jsonl is nested deeper than 50 levels"),
        ("naïve", r"Line 2 of .*logs\.jsonl is not UTF-8"),
    ],
)
def test_a_damaged_row_of_logs_is_one_sentence_with_its_line(tmp_path: Path, row: str, output: str) -> None:
    good = json.dumps({"path": "a.txt", "text": FIRST + SECOND})
    (tmp_path / "logs.jsonl").write_bytes(f"{good}\n{row}\n".encode("latin-1"))
    with pytest.raises(MissingInput, match=output) as refused:
        recorded(tmp_path / "logs.jsonl")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lost", [1, 30, 60])
def test_truncated_logs_give_one_sentence_with_the_line(tmp_path: Path, lost: int) -> None:
    rows = "".join(json.dumps({"path": f"{number}.txt", "text": FIRST + SECOND}) + "\n" for number in range(9))
    (tmp_path / "logs.jsonl.xz").write_bytes(lzma.compress(rows.encode())[:-lost])
    with pytest.raises(MissingInput, match=r"logs\.jsonl\.xz is damaged \(.+\): get a fresh copy\."):
        recorded(tmp_path / "logs.jsonl.xz")


def test_a_log_of_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    (write(tmp_path, good=FIRST) / "latin.txt").write_bytes("fine\nnaïve".encode("latin-1"))
    with pytest.raises(MissingInput, match=r"Line 2 of .*latin\.txt is not UTF-8"):
        recorded(tmp_path)


@pytest.mark.parametrize("number", ["0", "10000", "9" * 5000])
def test_an_impossible_trial_number_counts_as_damage(tmp_path: Path, number: str) -> None:
    log = FIRST + SECOND.replace("BEGIN TRIAL 2", f"BEGIN TRIAL {number}")
    line = log[: log.index(f"BEGIN TRIAL {number}")].count("\n") + 1
    with pytest.raises(MissingInput, match=f"Line {line} of 'log.txt' begins trial {number[:20]}, but trials count"):
        recorded(write(tmp_path, log=log))


def test_a_fifo_among_the_logs_is_named_in_the_error(tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path, log=FIRST) / "fifo.txt")
    with pytest.raises(MissingInput, match=r"fifo\.txt' is a FIFO"):
        recorded(tmp_path)


def test_a_folder_named_like_a_log_is_searched(tmp_path: Path) -> None:
    (tmp_path / "logs.txt").mkdir()
    write(tmp_path / "logs.txt", log=FIRST + SECOND)
    assert len(recorded(tmp_path).rated) == 2


@pytest.mark.parametrize("name", ["first.txt", "logs.jsonl"])
def test_a_log_that_windows_has_written_holds_the_same_cases(tmp_path: Path, name: str) -> None:
    log = FIRST + SECOND
    of_windows = log.replace("\n", "\r\n")
    (tmp_path / "plain.txt").write_text(log)
    text = json.dumps({"path": "a", "text": of_windows}) if name.endswith("jsonl") else of_windows
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    assert recorded(tmp_path / name) == recorded(tmp_path / "plain.txt")
