"""Tests of docs/traces.md: its own format reads, and its table names every attribute."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from retroformer.__main__ import main
from tests.support.runs import ROOT

PAGE = (ROOT / "docs/traces.md").read_text()


def test_the_format_of_the_guide_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [code] = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def read" in block]
    (tmp_path / "diary_of_mine.py").write_text(code)
    [point] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    record = tmp_path / "diaries-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: diaries\nVersion: 1.0\n")
    group = tomllib.loads(point)["project"]["entry-points"]["retroformer.importers"]
    (record / "entry_points.txt").write_text(f"[retroformer.importers]\ndiary = {group['diary']}\n")
    rows = [
        {"task": "a", "question": "Why?", "right": 0.5, "answer": "So.", "advice": ""},
        {"task": "a", "question": "Why?", "right": 1.0, "answer": "Thus.", "advice": "Think."},
    ]
    (tmp_path / "diary.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    main(["import", str(ROOT / "configs/agent.yaml"), "diary.jsonl", "--format", "diary", "--score", "right"])
    assert (
        "1 cases are in sqlite:///runs/agent/experience.db, 3 of their facts new: 1 are rated"
        in capsys.readouterr().out
    )


def test_the_table_of_the_guide_has_every_attribute() -> None:
    facts = pytest.importorskip("retroformer.integrations.otlp.attempts")
    rows = re.findall(r"^\| `(retroformer\.[a-z.]+)` \| `([a-z_]+)` \|", PAGE, re.MULTILINE)
    assert dict(rows) == {attribute: name for name, (attribute, _) in facts.FACTS.items()}
