"""Tests of docs/traces.md: its own format reads, and its table names every attribute."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from retroformer.traces.attempt import TracedAttempt

PAGE = (Path(__file__).parents[3] / "docs/traces.md").read_text()


def test_the_format_of_the_guide_reads_attempts(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    [code] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def read" in block]
    exec(code.replace("path.open()", "path.read_text().splitlines()"), names)
    row = {"task": "a", "question": "Why?", "right": 0.5, "answer": "So.", "advice": "Think."}
    (tmp_path / "diary.jsonl").write_text(json.dumps(row) + "\n")
    [attempt] = names["read"](tmp_path / "diary.jsonl", "right")
    assert isinstance(attempt, TracedAttempt)
    assert (attempt.attempt.score, attempt.advice, attempt.started_ns) == (0.5, ("Think.",), 1)


def test_the_table_of_the_guide_has_every_attribute() -> None:
    facts = pytest.importorskip("retroformer.integrations.otlp.facts")
    rows = re.findall(r"^\| `(retroformer\.[a-z.]+)` \| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    assert dict(rows) == {attribute: key for attribute, key, _ in facts.FACTS.values()}
