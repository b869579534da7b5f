"""Test that cases are equal after they were written and read again, in both formats, and the types of the columns."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import retroformer as rf
from retroformer.errors import ConfigError, MissingInput
from retroformer.files.text import REPLACEMENT

CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"name": "Ann"}'}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/order.png", "detail": "low"}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "Refund this."}, IMAGE]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "No such order.", "name": "find"},
    {"role": "assistant", "content": "I cannot find the order."},
]
ROWS: list[dict[str, Any]] = [
    {"task": {"id": "1", "input": "Refund."}, "attempt": {"score": 0.25, "output": "No “order”.\nNone."}},
    {
        "task": {"id": "2", "input": {"order": 4711, "items": [None, "a", 0.5]}, "split": "held_out"},
        "trial": 1,
        "candidate": 2,
        "repeat": 3,
        "attempt": {"score": 0, "messages": MESSAGES, "usage": {"calls": 2, "prompt_tokens": 9, "dollars": 0.5}},
        "advice": {"text": "Ask for the name.", "model": "sft", "is_cut": True},
        "retry": {"score": 1, "steps": [{"thought": "t", "action": "a", "observation": "o", "reward": 1.0}]},
        "rating": 1,
    },
    {"task": {"id": "3", "input": []}, "attempt": {"score": 1, "steps": [], "output": ""}},
    {"task": {"id": "4", "input": ""}, "attempt": {"score": 1, "messages": []}, "advice": {"text": ""}},
]
CASES = [rf.Case.model_validate(row) for row in ROWS]


@pytest.mark.parametrize("name", ["cases.jsonl", "cases.parquet"])
def test_cases_are_unchanged_after_writing_and_reading(tmp_path: Path, name: str) -> None:
    assert rf.write_cases(tmp_path / "new" / name, iter(CASES)) == 4
    assert list(rf.read_cases(str(tmp_path / "new" / name))) == CASES


def test_a_line_holds_no_empty_fields(tmp_path: Path) -> None:
    rf.write_cases(tmp_path / "cases.jsonl", CASES[:1])
    assert json.loads((tmp_path / "cases.jsonl").read_text()) == {
        "task": {"id": "1", "input": "Refund.", "split": "train"},
        "trial": 0,
        "candidate": 0,
        "repeat": 0,
        "attempt": {"score": 0.25, "output": "No “order”.\nNone."},
    }


def test_a_compressed_file_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl.gz"
    path.write_bytes(gzip.compress(b"\n".join(json.dumps(row).encode() for row in (*ROWS[:2], *ROWS[2:])) + b"\n\n"))
    assert list(rf.read_cases(path)) == CASES


def test_parquet_has_typed_columns(tmp_path: Path) -> None:
    rf.write_cases(tmp_path / "cases.parquet", CASES)
    schema = pyarrow.parquet.read_schema(tmp_path / "cases.parquet")
    assert schema.names == list(rf.Case.model_fields)
    assert schema.field("rating").type == pyarrow.float64()
    attempt = schema.field("attempt").type
    assert attempt.field("score").type == pyarrow.float64()
    assert attempt.field("usage").type.field("prompt_tokens").type == pyarrow.int64()
    message = attempt.field("messages").type.value_type
    assert message.field("role").type == pyarrow.string()
    assert message.field("tool_calls").type.value_type.field("function").type.field("name").type == pyarrow.string()
    row = pyarrow.parquet.read_table(tmp_path / "cases.parquet").to_pylist()[1]
    assert json.loads(row["task"]["input_json"]) == {"order": 4711, "items": [None, "a", 0.5]}
    assert json.loads(row["attempt"]["messages"][1]["parts"][1]["data"]) == {"image_url": IMAGE["image_url"]}


def test_a_table_of_another_program_is_read(tmp_path: Path) -> None:
    rows = [{"task": {"id": "1", "input": {"order": 7}}, "attempt": {"score": 1, "output": "Done."}}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "cases.parquet")
    (case,) = rf.read_cases(tmp_path / "cases.parquet")
    assert (case.task.input, case.attempt.score) == ({"order": 7}, 1.0)


def test_a_file_that_cannot_be_finished_does_not_replace_the_last_one(tmp_path: Path) -> None:
    def cases() -> Any:
        yield CASES[0]
        raise ConfigError("The source has ended.")

    for name in ("cases.jsonl", "cases.parquet"):
        rf.write_cases(tmp_path / name, CASES)
        with pytest.raises(ConfigError):
            rf.write_cases(tmp_path / name, cases())
        assert list(rf.read_cases(tmp_path / name)) == CASES
    assert len(list(tmp_path.iterdir())) == 2


def test_characters_that_no_file_holds_are_replaced(tmp_path: Path) -> None:
    advised = rf.Case.model_validate({**ROWS[0], "advice": {"text": "half \ud800 a character"}})
    for name in ("cases.jsonl", "cases.parquet"):
        rf.write_cases(tmp_path / name, [advised])
        (read,) = rf.read_cases(tmp_path / name)
        assert read.advice is not None
        assert read.advice.text == f"half {REPLACEMENT} a character"


def test_a_wrong_name_gets_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="There is no file"):
        rf.read_cases(tmp_path / "cases.jsonl")
    (tmp_path / "cases.csv").write_text("")
    with pytest.raises(ConfigError, match=r"end it with \.jsonl or \.parquet"):
        rf.read_cases(tmp_path / "cases.csv")
    with pytest.raises(ConfigError, match=r"end it with \.jsonl or \.parquet"):
        rf.write_cases(tmp_path / "cases.csv", [])
