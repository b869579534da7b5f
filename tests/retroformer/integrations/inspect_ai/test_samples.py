"""Tests of Inspect's logs, written by the real `inspect_ai` with its scripted model."""

import json
import math
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("inspect_ai")

from retroformer.__main__ import main
from retroformer.cases.traced import Omission, TracedAttempt, cases_of
from retroformer.errors import MissingInput
from retroformer.integrations.inspect_ai import samples

ROOT = Path(__file__).parents[4]
QUESTION = "What is 1+1?"
Json = dict[str, Any]


def evaluate(*evaluations: tuple[Path, int, int, str, str]) -> list[Path]:
    """Run evaluations in a process of their own and return their logs."""
    words = json.dumps([[str(folder), *rest] for folder, *rest in evaluations])
    command = [sys.executable, "-m", "tests.support.inspect_task", words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line.removeprefix("file://")) for line in done.stdout.splitlines()[-len(evaluations) :]]


class Logs(NamedTuple):
    """Logs in the order in which they were written."""

    first: Path
    both: Path
    json: Path
    crashed: Path


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    folder = tmp_path_factory.mktemp("logs")
    return Logs(
        *evaluate(
            (folder / "first", 1, 1, QUESTION, "eval"),
            (folder / "both", 2, 2, QUESTION, "eval"),
            (folder / "json", 1, 2, QUESTION, "json"),
            (folder / "crashed", 1, 2, "Please crash.", "eval"),
        )
    )


@pytest.fixture
def log(logs: Logs) -> Path:
    return logs.both


def changed(log: Path, folder: Path, change: Callable[[Json], None], sample: str = "sum-1_epoch_2") -> Path:
    """Return a copy of a log in which one sample is changed."""
    copy = folder / "changed.eval"
    with zipfile.ZipFile(log) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == f"samples/{sample}.json":
                value = json.loads(content)
                change(value)
                content = json.dumps(value).encode()
            new.writestr(name, content)
    return copy


def attempts_of(path: Path, score: str | None = None) -> Iterator[TracedAttempt]:
    return (entry for entry in samples.read(path, score) if isinstance(entry, TracedAttempt))


def test_the_epochs_of_a_sample_are_attempts_at_one_task(log: Path) -> None:
    cases = list(cases_of(attempts_of(log)))
    assert [case.task.id for case in cases] == ["sums/sum-0", "sums/sum-1"]
    for case in cases:
        assert case.advice is not None
        assert (case.advice.text, case.rating, case.task.input) == ("Look it up.", 1.0, "What is 1+1?")
        assert case.retry is not None
        asked, called, answered, said = (case.retry.messages or ())[1:]
        assert [asked.role, called.content, answered.content, said.content] == ["user", "I look.", "sum is 2", "2"]
        [call] = called.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("lookup", {"key": "sum"})
        assert answered.tool_call_id == call.id
        usage = case.retry.usage
        assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (2, 20, 4)


def test_a_log_as_json_is_read_too(logs: Logs) -> None:
    assert logs.json.suffix == ".json"
    [case] = cases_of(attempts_of(logs.json))
    assert case.rating == 1.0


def test_attempts_of_several_logs_are_in_the_order_of_the_logs(logs: Logs) -> None:
    attempts = [*attempts_of(logs.both), *attempts_of(logs.first)]
    # The first log has one failure of sum-0, to which the second adds a failure and a success with advice.
    cases = [case for case in cases_of(attempts) if case.task.id == "sums/sum-0"]
    assert [(case.trial, case.rating) for case in cases] == [(0, None), (1, 1.0)]


def test_a_crash_is_counted_and_never_a_failure(logs: Logs) -> None:
    entries = list(samples.read(logs.crashed))
    assert [entry.reason for entry in entries if isinstance(entry, Omission)] == ["samples that ended in an error"] * 2
    assert len(entries) == 2


def set_scores(**scores: Any) -> Callable[[Json], None]:
    def change(sample: Json) -> None:
        sample["scores"] = {name: {"value": value} for name, value in scores.items()}

    return change


@pytest.mark.parametrize(
    ("value", "number"), [("P", 0.5), ("N", 0.0), (0.25, 0.25), (True, 1.0), ("0.75", 0.75), ("no", 0.0)]
)
def test_scores_of_all_forms_are_numbers(log: Path, tmp_path: Path, value: Any, number: float) -> None:
    assert list(attempts_of(changed(log, tmp_path, set_scores(right=value))))[-1].attempt.score == number


def test_a_scorer_or_a_part_of_it_is_chosen_by_name(log: Path, tmp_path: Path) -> None:
    path = changed(log, tmp_path, set_scores(right={"style": 0.5, "facts": 0.25}, other=1))
    assert [attempt.attempt.score for attempt in attempts_of(path, "right.facts")] == [0.25]
    with pytest.raises(
        MissingInput, match=r"epoch 2 of .* has the scores other, right\.facts, right\.style: choose one"
    ):
        list(attempts_of(path))


@pytest.mark.parametrize("value", [math.nan, None])
def test_a_sample_without_a_score_is_counted(log: Path, tmp_path: Path, value: float | None) -> None:
    path = changed(log, tmp_path, set_scores(**({} if value is None else {"right": value})))
    assert [entry.reason for entry in samples.read(path) if isinstance(entry, Omission)] == ["samples without a score"]


def broken(field: str, value: Any) -> Callable[[Json], None]:
    return lambda sample: sample.update({field: value})


MALFORMED: dict[str, tuple[Callable[[Json], None], str]] = {
    "messages": (broken("messages", 7), "messages"),
    "a message of another role": (broken("messages", [{"role": "judge", "content": "Hi."}]), "messages.0"),
    "scores": (broken("scores", {"right": {"value": [[["?"]]]}}), "scores"),
    "a score above 1": (set_scores(right=7), "scores['right'].value is 7"),
    "a score of words": (set_scores(right="nice"), "scores['right'].value is 'nice'"),
    "metadata": (broken("metadata", "none"), "metadata"),
    "advice": (broken("metadata", {"advice": 7}), "metadata['advice'] is 7"),
    "usage": (broken("model_usage", {"m": {"input_tokens": -3}}), "model_usage"),
    "input": (broken("input", 5), "input"),
}


@pytest.mark.parametrize("fault", MALFORMED)
def test_a_malformed_sample_is_refused_with_its_field(log: Path, tmp_path: Path, fault: str) -> None:
    change, field = MALFORMED[fault]
    with pytest.raises(MissingInput) as refused:
        list(samples.read(changed(log, tmp_path, change)))
    sentence = str(refused.value)
    assert sentence.startswith("Sample 'sum-1', epoch 2 of ")
    assert field in sentence
    assert "\n" not in sentence


def test_a_damaged_log_is_refused_in_one_sentence(log: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "log.eval"
    for content in (b"", b"no archive", log.read_bytes()[:-60]):
        damaged.write_bytes(content)
        with pytest.raises(MissingInput, match=r"log\.eval") as refused:
            list(samples.read(damaged))
        assert "\n" not in str(refused.value)
    with pytest.raises(MissingInput, match="There is no Inspect log"):
        list(samples.read(tmp_path / "none"))


def test_logs_become_facts_of_a_run(log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(f"run: mine\nstore: sqlite:///{tmp_path}/mine.db\nenvironment: {{name: agent}}\n")
    main(["import", str(config), str(log.parent), "--format", "inspect", "--json"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rated"] == 2


@pytest.mark.slow
def test_a_thousand_samples_become_ratings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(f"run: mine\nstore: sqlite:///{tmp_path}/mine.db\nenvironment: {{name: agent}}\n")
    evaluate((tmp_path / "logs", 500, 2, QUESTION, "eval"))
    main(["import", str(config), str(tmp_path / "logs"), "--format", "inspect", "--json"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["cases"], summary["rated"], summary["failures"]) == (500, 500, 0)


def test_a_sample_that_several_logs_hold_is_one_attempt(logs: Logs, tmp_path: Path) -> None:
    for name in ("first.eval", "second.eval"):
        shutil.copy(logs.both, tmp_path / name)
    entries = list(samples.read(tmp_path))
    assert sum(isinstance(entry, TracedAttempt) for entry in entries) == 4
    assert [entry.reason for entry in entries if isinstance(entry, Omission)] == [
        "samples that another log has too"
    ] * 4


def test_a_log_that_is_a_bomb_is_refused_before_it_is_unpacked(log: Path, tmp_path: Path) -> None:
    path = changed(log, tmp_path, lambda sample: sample["metadata"].update(padding="a" * (80 << 20)))
    packed = tmp_path / "packed.eval"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    assert packed.stat().st_size < 1 << 18
    with pytest.raises(MissingInput, match="holds more than 64 MiB, the limit for a log of its size"):
        list(samples.read(packed))
    with zipfile.ZipFile(packed) as archive:
        real = max(entry.file_size for entry in archive.infolist())
    packed.write_bytes(packed.read_bytes().replace(struct.pack("<I", real), struct.pack("<I", 1000)))
    with pytest.raises(MissingInput, match="is damaged"):
        list(samples.read(packed))
