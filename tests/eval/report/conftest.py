"""The report of the riddles, with one training seed and with two."""

from pathlib import Path

import pytest

from tests.support.evaluations import CONFIG, POOLED, VERIFIED, WINS, write_evaluation


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a report on ten riddles: 2 solved at once, trained solves 6 of 8 retries, others none."""
    monkeypatch.chdir(tmp_path)
    return write_evaluation(CONFIG, {"eval/no reflection": 0, "eval/trained": 6, "eval/hopeless": 0}, VERIFIED)


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the Markdown of the same report with two training seeds of trained, which solve 6 and 3 of 8."""
    monkeypatch.chdir(tmp_path)
    wins = WINS | {"eval/trained/ppo-1": 6, "eval/trained/ppo-2": 3}
    return (write_evaluation(POOLED, wins, VERIFIED) / "report.md").read_text()
