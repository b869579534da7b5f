"""Tests of docs/cases.md: its examples are cases, its tables have every field, and its Python runs."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

import retroformer as rf
from retroformer.cases.case import CaseAdvice, CaseAttempt, CaseTask
from retroformer.method.records import ChatMessage
from tests.support.runs import ROOT

PAGE = (ROOT / "docs/cases.md").read_text()
JSON = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def rows_of(*headings: str) -> list[set[str]]:
    """Return the fields in the first column of the page's tables."""
    tables = re.findall(r"^\| field \|.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    return [
        {field for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for field in re.findall(r"`(.*?)`", row)}
        for table in tables
    ]


def test_the_examples_are_cases() -> None:
    cases = [rf.Case.model_validate_json(text, strict=True) for text in JSON]
    assert [case.gain for case in cases] == [1.0, None, 0.0]
    assert cases[1].attempt.messages is not None


def test_the_tables_have_every_field() -> None:
    of_case, of_attempt, of_message = rows_of()
    nested = {"task": CaseTask, "advice": CaseAdvice}
    expected = {name for name in rf.Case.model_fields if name not in nested}
    expected |= {f"{part}.{name}" for part, model in nested.items() for name in model.model_fields}
    assert of_case == expected
    for fields, model in ((of_attempt, CaseAttempt), (of_message, ChatMessage)):
        assert issubclass(model, BaseModel)
        assert fields == set(model.model_fields)


def test_the_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rf.write_cases("cases.jsonl", [rf.Case.model_validate_json(text) for text in JSON])
    exchange, with_pandas, with_datasets = PYTHON
    exec(exchange, {})
    assert [case.task.id for case in rf.read_cases("train.parquet")] == ["refund-1", "door-1"]
    pandas = pytest.importorskip("pandas")
    names: dict[str, object] = {}
    exec(with_pandas, names)
    gains = names["gains"]
    assert isinstance(gains, pandas.Series)
    assert gains["refund-1"] == 1.0
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path))
    names = {}
    exec(with_datasets, names)
    assert len(names["advised"]) == 1  # type: ignore[arg-type]  # A data set.
