"""Test that a damaged file of cases is refused in one sentence with line or row and field, and nothing is stored."""

import gzip
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import retroformer as rf
from retroformer.cases.import_cases import import_cases
from retroformer.config.experiment import Experiment
from retroformer.errors import DamagedFile, MissingInput
from retroformer.run.store import open_store

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
GOOD: dict[str, Any] = {
    "task": {"id": "refund-1", "input": "Refund it.", "split": "train"},
    "attempt": {
        "score": 0.0,
        "steps": [{"thought": "t", "action": "a", "observation": "o", "reward": 0.0}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Refund it."}]},
            {"role": "assistant", "content": "No.", "tool_calls": [CALL]},
        ],
        "usage": {"calls": 1, "prompt_tokens": 5, "completion_tokens": 5, "dollars": 0.5},
    },
    "advice": {"text": "Search.", "model": "sft"},
    "retry": {"score": 1.0, "output": "Done."},
    "rating": 1.0,
}
ABSENT = object()

# The path of a field, what stands there, and what the sentence says.
WRONG: list[tuple[str, Any, str]] = [
    ("task", ABSENT, "task: the field is missing"),
    ("attempt", ABSENT, "attempt: the field is missing"),
    ("task", "refund-1", "task: Input should be"),
    ("task.id", ABSENT, "task.id: the field is missing"),
    ("task.id", 7, "task.id: Input should be a valid string, not 7"),
    ("task.id", "", "task.id: it is empty"),
    ("task.id", "a\0b", "task.id: it holds NUL or half a character"),
    ("task.input", ABSENT, "task.input: the field is missing"),
    ("trial", -1, "trial: Input should be greater than or equal to 0"),
    ("trial", 2**31, "trial: Input should be less than"),
    ("trial", "1", "trial: Input should be a valid integer, not '1'"),
    ("candidate", 1024, "candidate: Input should be less than or equal to 1023"),
    ("repeat", 0.5, "repeat: Input should be a valid integer"),
    ("attempt.score", ABSENT, "attempt.score: the field is missing"),
    ("attempt.score", 1.5, "attempt.score is 1.5: it must be from 0 to 1"),
    ("attempt.score", "1", "attempt.score: Input should be a valid number, not '1'"),
    ("attempt.score", True, "attempt.score: Input should be a valid number, not True"),
    ("retry.score", -0.5, "retry.score is -0.5: it must be from 0 to 1"),
    ("retry.output", ABSENT, "retry: it has no steps, messages or output"),
    ("retry.outptu", "Done.", "retry.outptu: there is no such field (did you mean 'output'?)"),
    ("attempt.steps", "a", "attempt.steps: Input should be a valid"),
    ("attempt.steps.0.action", ABSENT, "attempt.steps.0.action: the field is missing"),
    ("attempt.steps.0.observation", 7, "attempt.steps.0.observation: Input should be a valid string, not 7"),
    ("attempt.messages.0.role", "robot", "attempt.messages.0.role: String should match pattern '^(system|"),
    ("attempt.messages.0.role", ABSENT, "attempt.messages[0] has no role"),
    ("attempt.messages.1.content", 7, "attempt.messages.1.content: Input should be a valid string, not 7"),
    ("attempt.messages.1.tool_calls.0.function.name", ABSENT, "tool_calls.0.function.name: the field is missing"),
    ("attempt.messages.1.tool_calls.0.function.arguments", 7, "function.arguments: Input should be a valid string"),
    ("attempt.messages.1.speaker", "Ann", "attempt.messages.1.speaker: there is no such field"),
    ("attempt.usage.prompt_tokens", -1, "attempt.usage.prompt_tokens: Input should be greater than or equal to 0"),
    ("attempt.usage.dollars", -0.5, "attempt.usage.dollars: Input should be greater than or equal to 0"),
    ("advice.text", ABSENT, "advice.text: the field is missing"),
    ("advice.text", 7, "advice.text: Input should be a valid string, not 7"),
    ("rating", 0.25, "rating is 0.25, but the scores gain 1.0: correct it or leave it out"),
    ("score", 1.0, "score: there is no such field"),
    ("my field", 1, "my field: there is no such field;"),
    ("my\nfield", 1, r", 'my\nfield': there is no such field"),
    ("", 1, ", '': there is no such field"),
    ("x" * 5000, 1, f", {'x' * 60}…: there is no such field"),
    ("str", 1, "str: there is no such field"),
    ("attempt.my output", "a", "attempt.my output: there is no such field (did you mean 'output'?)"),
    ("attempt.stored_at", "9999-12-31T23:59:59-12:00", "stored_at: '9999-12-31T23:59:59-12:00' is not written as 20"),
]
OF_JSON: list[tuple[str, Any, str]] = [
    ("attempt.messages.0.content.0.type", 7, "attempt.messages.0.content.0.type: Input should be a valid string"),
    ("attempt.score", float("nan"), "attempt.score: Input should be"),
    ("task.input", float("inf"), "task.input: Out of range float values are not JSON compliant"),
]


def spoilt(path: str, value: Any) -> dict[str, Any]:
    """Return the good case with another value at this path."""
    row = json.loads(json.dumps(GOOD))
    *parents, last = path.split(".")
    place = row
    for name in parents:
        place = place[int(name)] if isinstance(place, list) else place[name]
    if value is ABSENT:
        del place[last]
    else:
        place[last] = value
    return dict(row)


def refused(experiment: Experiment, path: Path, kind: type[Exception] = DamagedFile) -> str:
    """Import the file, which must fail without storing anything; return the sentence."""
    with pytest.raises(kind) as error:
        import_cases(experiment, path)
    with closing(open_store(experiment)) as store:
        assert store.arms() == []
    assert "\n" not in str(error.value)
    return str(error.value)


# A column of messages holds either text or parts.
OF_COLUMNS = [wrong for wrong in WRONG if wrong[0] != "attempt.messages.1.content"]


@pytest.mark.parametrize(
    ("place", "path", "value", "sentence"),
    [("Line 2", *wrong) for wrong in (*WRONG, *OF_JSON)] + [("Row 1", *wrong) for wrong in OF_COLUMNS],
)
def test_a_wrong_field_is_named(
    experiment: Experiment, tmp_path: Path, place: str, path: str, value: Any, sentence: str
) -> None:
    text = json.dumps(spoilt(path, value))
    if place == "Line 2":
        file = tmp_path / "cases.jsonl"
        file.write_text("\n".join((json.dumps(GOOD), text, json.dumps(GOOD))))
    else:
        file = tmp_path / "cases.parquet"
        row = json.loads(text.replace('[{"type": "text", "text": "Refund it."}]', '"Refund it."'))
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    said = refused(experiment, file)
    assert said.startswith(f"{place} of {file}")
    assert sentence in said


LINES: dict[str, tuple[bytes, str]] = {
    "cut off": (json.dumps(GOOD).encode()[:-20], "it is not JSON (EOF while parsing"),
    "a list": (b"[]", "Input should be an object, not []"),
    "a number": (b"7", "Input should be an object, not 7"),
    "not JSON": (b"task: refund", "it is not JSON (expected"),
    "two on a line": (json.dumps(GOOD).encode() * 2, "it is not JSON (trailing characters"),
    "Latin-1": ("{“}".encode("utf-16"), "is not UTF-8: save the file in that encoding"),
    "half a character": (json.dumps(GOOD).replace("Search.", "\\ud800").encode(), "it is not JSON"),
    "too deep": (b'{"task": {"id": "1", "input": ' + b"[" * 10**5 + b"]" * 10**5 + b"}}", "recursion limit exceeded"),
    "too long": (b'"' + b"a" * (16 << 20) + b'"', "is longer than 16 MiB, the limit for a line"),
    "two scores": (
        json.dumps(GOOD).replace('"score": 1.0', '"score": 0.0, "score": 1.0').encode(),
        "'score' appears twice",
    ),
    "a field twice in the input": (
        b'{"task": {"id": "1", "input": {"a": 1, "a": 2}}, "attempt": {"score": 0.0, "output": "a"}}',
        "'a' appears twice in one object",
    ),
    "two roles, as Gemini writes them": (
        b'{"task": {"id": "1", "input": ""}, "attempt": {"score": 0.0, "messages": [{"role": "user", "role": "model",'
        b' "parts": [{"text": "a"}]}]}}',
        "'role' appears twice in one object",
    ),
    "a huge number": (b'{"trial": 1' + b"0" * 10**4 + b"}", "it is not JSON (number out of range"),
}


@pytest.mark.parametrize("damage", LINES)
def test_a_damaged_line_is_named(experiment: Experiment, tmp_path: Path, damage: str) -> None:
    line, sentence = LINES[damage]
    file = tmp_path / "cases.jsonl"
    file.write_bytes(json.dumps(GOOD).encode() + b"\n\n" + line + b"\n" + json.dumps(GOOD).encode())
    kind = MissingInput if "limit for a line" in sentence or "UTF-8" in sentence else DamagedFile
    said = refused(experiment, file, kind)
    assert said.startswith(f"Line 3 of {file}")
    assert sentence in said


def test_a_damaged_compressed_file_is_named(experiment: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 100)[:-30])
    assert str(file) in refused(experiment, file, MissingInput)


def cut_short(content: bytes) -> bytes:
    return content[: len(content) // 2]


def overwritten(content: bytes) -> bytes:
    return content[:20] + b"\xff" * 200 + content[220:]


@pytest.mark.parametrize("damage", [cut_short, overwritten, lambda content: b"not Parquet", lambda content: b""])
def test_a_damaged_parquet_file_is_one_sentence(
    experiment: Experiment, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "cases.parquet"
    rf.write_cases(file, [rf.Case.model_validate(GOOD)] * 50)
    file.write_bytes(damage(file.read_bytes()))
    assert refused(experiment, file).startswith(f"{file} cannot be read as Parquet after row 0")


def test_columns_of_json_that_hold_none_are_named(experiment: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "cases.parquet"
    row = {"task": {"id": "1", "input_json": "{"}, "attempt": {"score": 1.0, "output": "a"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert refused(experiment, file).startswith(f"Row 1 of {file}, task.input_json: it is not JSON")
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([row | {"task": {"id": "1", "input_json": '{"a": 1, "a": 2}'}}]), file
    )
    assert "task.input_json: it is not JSON ('a' appears twice in one object)" in refused(experiment, file)
    message = {"role": "user", "parts": [{"type": "image", "data": "]"}]}
    row = {"task": {"id": "1", "input": "a"}, "attempt": {"score": 1.0, "messages": [message]}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert ", attempt.messages.0.parts.0.data: it is not JSON" in refused(experiment, file)


def test_a_column_of_bytes_is_named(experiment: Experiment, tmp_path: Path) -> None:
    file = tmp_path / "cases.parquet"
    row = {"task": {"id": "1", "input": b"\xff"}, "attempt": {"score": 1.0, "output": "a"}}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), file)
    assert refused(experiment, file).startswith(f"Row 1 of {file} holds a value that is not JSON")


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.parquet"])
def test_a_folder_is_not_a_file_of_cases(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(MissingInput, match="is a folder, not a regular file"):
        list(rf.read_cases(tmp_path / name))
