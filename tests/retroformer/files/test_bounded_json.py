"""Test that a user's JSON is refused, with its line, if it is too deep, not text, or of another shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from retroformer.environments.tasksets import read_tasks
from retroformer.errors import MissingInput
from retroformer.files.bounded import MOST_LEVELS, json_rows, parse_json


def rows(path: Path, line_bytes: int = 100, most_bytes: int = 1000) -> list[Any]:
    rows = json_rows(path, lambda row: row, "wanted is a number", line_bytes=line_bytes, most_bytes=most_bytes)
    return [row for _, row in rows]


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def test_levels_of_nesting_are_limited_exactly() -> None:
    assert parse_json(nested(MOST_LEVELS), "x") is not None
    for text in (nested(MOST_LEVELS + 1), nested(5000), '{"a":' * 60 + "1" + "}" * 60):
        with pytest.raises(MissingInput, match="Line 7 is nested deeper than 50 levels: correct it"):
            parse_json(text, "Line 7")


def test_brackets_side_by_side_do_not_count_as_nesting() -> None:
    assert len(parse_json(f"[{','.join('[]' for _ in range(1000))}]", "x")) == 1000
    assert parse_json(json.dumps("[" * 1000), "x") == "[" * 1000


@pytest.mark.parametrize("text", ['"\\ud800"', '{"\\udfff": 1}', '[{"a": ["x\\uDC80y"]}]', '"\\udc00\\ud800"'])
def test_an_unpaired_surrogate_is_refused_in_keys_and_values(text: str) -> None:
    with pytest.raises(MissingInput, match="x holds half of a surrogate pair"):
        parse_json(text, "x")


def test_a_surrogate_pair_is_accepted() -> None:
    assert parse_json('"\\ud83d\\udd25"', "x") == "\U0001f525"


@pytest.mark.parametrize("text", ["{", "", "[1,]", "1" * 5000, "nothing", "\ufeff1", '[{"a": 1, "b": 2, "a": 1}]'])
def test_a_line_that_is_not_json_is_refused_with_its_number(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"1\n2\n{text or '}'}\n")
    with pytest.raises(MissingInput, match=r"Line 3 of .*rows\.jsonl is not JSON \(.*\): correct it, or get"):
        rows(path, line_bytes=10_000, most_bytes=10_000)


def test_the_field_that_an_object_has_twice_is_found_in_one_pass() -> None:
    fields = ",".join(f'"{number}":0' for number in (*range(300_000), 299_999))
    with pytest.raises(MissingInput, match=r"x is not JSON \('299999' appears twice in one object\)"):
        parse_json(f"{{{fields}}}", "x")


def test_a_field_that_is_null_is_absent_as_tables_write_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "a", "split": null, "input": {"b": null}}\n')
    assert rows(path) == [{"id": "a", "input": {"b": None}}]
    assert list(read_tasks(path, "train")) == ["a"]


def test_a_row_of_another_shape_is_refused_with_its_line_and_the_expected_shape(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"b": 2}\n')
    rows = json_rows(path, lambda row: row["a"], "a line has `a`", line_bytes=100, most_bytes=100)
    assert next(rows) == (f"Line 1 of {path}", 1)
    with pytest.raises(MissingInput, match=r"Line 3 of .* is JSON of another shape \(no 'a'\): a line has `a`\."):
        next(rows)
