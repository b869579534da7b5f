"""`make gpu` without a card: every piece runs on the CPU with tiny shapes, and is not repeated."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import ROOT

pytestmark = pytest.mark.slow


def kit(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(folder), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500)


def test_kernels_and_gradients_pass_and_are_not_repeated(tmp_path: Path) -> None:
    for only in ("kernels", "gradients/sft", "gradients/ppo"):
        done = kit(tmp_path, "--only", only)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "0 pieces are left" in done.stdout
    again = kit(tmp_path, "--only", "kernels")
    assert again.stdout.count("\n") == 1, "finished pieces are not run again"
    report = (tmp_path / "report.md").read_text()
    assert "No card: a CPU with tiny shapes" in report
    assert "| ppo, base nf4 |" in report


def test_after_its_time_no_piece_is_begun(tmp_path: Path) -> None:
    done = kit(tmp_path, "--only", "kernels", "--seconds", "-1")
    assert "6 pieces are left: run the same command again" in done.stdout


def test_the_whole_kit_runs_without_a_card(tmp_path: Path) -> None:
    done = kit(tmp_path, "--seconds", "1400")
    assert done.returncode == 0, done.stdout + done.stderr
    report = (tmp_path / "report.md").read_text()
    for title in ("4-bit kernels", "Gradients", "Memory of a step", "Beside TRL", "Serving", "The demo"):
        assert f"## {title}" in report
    assert "not finished" not in report
