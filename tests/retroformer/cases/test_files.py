"""Test that cases are equal after they were written and read again, in both formats, and the types of the columns."""

import gzip
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

import retroformer as rf
from retroformer.agents.messages import steps_of
from retroformer.errors import ConfigError, DamagedFile, MissingInput
from retroformer.files.text import REPLACEMENT
from retroformer.method.records import Step

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


def test_nulls_are_absent_fields_as_tables_write_them(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [json.loads(case.model_dump_json()) for case in CASES[:1]]
    rows[0]["advice"] = None
    rows[0]["attempt"] |= {"messages": [{"role": "assistant", "content": "No.", "name": None, "tool_calls": None}]}
    rows += [{**rows[0], "advice": {"text": "Ask.", "model": "sft"}}]
    datasets.Dataset.from_list(rows).to_json(tmp_path / "cases.jsonl")
    assert '"advice":null' in (tmp_path / "cases.jsonl").read_text()
    first, second = rf.read_cases(tmp_path / "cases.jsonl")
    assert first.advice is None
    assert second.advice is not None
    free = {"task": {"id": "1", "input": {"order": None}}, "attempt": {"score": 0, "output": "x", "usage": None}}
    (tmp_path / "free.jsonl").write_bytes(json.dumps(free).encode("utf-8-sig"))
    (case,) = rf.read_cases(tmp_path / "free.jsonl")
    assert case.task.input == {"order": None}


@pytest.mark.parametrize("rows", [1, 40])
def test_a_parquet_dictionary_that_grows_is_refused_and_takes_no_memory(tmp_path: Path, rows: int) -> None:
    # One value of 17 or 10 MiB, compressed to a few KiB, stands in every row.
    value = "a" * ((17 if rows == 1 else 10) << 20)
    inputs = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), pyarrow.array([value]))
    ids = pyarrow.array([f"t{number}" for number in range(rows)])
    table = {
        "task": pyarrow.StructArray.from_arrays([ids, inputs], ["id", "input"]),
        "attempt": pyarrow.array([{"score": 0.0, "output": "x"}] * rows),
    }
    path = tmp_path / "bomb.parquet"
    pyarrow.parquet.write_table(pyarrow.table(table), path, compression="zstd")
    assert path.stat().st_size < 1 << 14
    tracemalloc.start()
    try:
        if rows == 1:
            with pytest.raises(DamagedFile, match=r"Row 1 of .* holds more than 16 MiB, the limit for a case"):
                list(rf.read_cases(path))
        else:
            assert sum(1 for _ in rf.read_cases(path)) == rows
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()


def test_parquet_pages_that_grow_are_refused(tmp_path: Path) -> None:
    rows = [
        {"task": {"id": "1", "input": "a" * (9 << 20)}, "attempt": {"score": 1, "output": str(n)}} for n in range(9)
    ]
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, tmp_path / "cases.parquet", compression="zstd", use_dictionary=False)
    with pytest.raises(DamagedFile, match="holds more than 64 MiB, the limit for a file of its size"):
        list(rf.read_cases(tmp_path / "cases.parquet"))


def test_messages_of_other_apis_are_read_in_a_case(tmp_path: Path) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "find", "input": {"order": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "It is paid."}]}
    of_anthropic = [
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, use]},
        {"role": "user", "content": [result]},
    ]
    of_bedrock = [
        {"role": "assistant", "content": [{"toolUse": {"toolUseId": "t1", "name": "find", "input": {"order": 1}}}]},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "t1", "content": [{"text": "It is paid."}]}}]},
    ]
    of_gemini = [
        {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {"order": 1}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": {"result": "It is paid."}}}]},
    ]
    of_responses = [
        {"type": "function_call", "call_id": "t1", "name": "find", "arguments": '{"order": 1}'},
        {"type": "function_call_output", "call_id": "t1", "output": "It is paid."},
    ]
    path = tmp_path / "cases.jsonl"
    for messages in (of_anthropic, of_bedrock, of_gemini, of_responses):
        path.write_text(json.dumps({"task": {"id": "1", "input": "x"}, "attempt": {"score": 0, "messages": messages}}))
        (case,) = rf.read_cases(path)
        assert steps_of(case.attempt.messages or ()) == (Step(action='find({"order": 1})', observation="It is paid."),)
    path.write_text(path.read_text().replace("function_call_output", "item_reference"))
    with pytest.raises(DamagedFile, match=r"attempt\.messages"):
        list(rf.read_cases(path))


def test_parquet_with_more_values_than_its_file_can_hold_is_refused(tmp_path: Path) -> None:
    count = 20 << 20
    steps = pyarrow.DictionaryArray.from_arrays(
        pyarrow.nulls(count, pyarrow.int32()).fill_null(0), pyarrow.array(["a"])
    )
    actions = pyarrow.ListArray.from_arrays(pyarrow.array([0, count], pyarrow.int32()), steps)
    pyarrow.parquet.write_table(pyarrow.table({"task": actions}), tmp_path / "cases.parquet")
    assert (tmp_path / "cases.parquet").stat().st_size < 1 << 14
    with pytest.raises(DamagedFile, match="the limit for a file of its size"):
        list(rf.read_cases(tmp_path / "cases.parquet"))
