"""`make evidence` in small: its configs on generated games with the packaged actor, killed on the way and not."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from retroformer.run.store import Store
from tests.support.runs import ROOT, Facts, facts_of, stored

SEED_CONFIG, REPORT_CONFIG = (ROOT / "configs" / "evidence" / name for name in ("seed.yaml", "report.yaml"))
SMALLER = (
    *("environment.source=generated", "environment.receptacles=8", "loop.trials=2"),
    *("collect.tasks=16", "collect.written=160", "collect.candidates=3"),
    *("train.batch_size=2", "train.checkpoint_steps=1"),
    # In bf16 an answer depends on the others of its batch, and a killed run has other batches.
    *("train.dtype=float32", "serve.dtype=float32"),
)
STAGES = ("collect warm", "train warm", "collect", "train sft")
PATIENCE_SECONDS = 900

Moment = Callable[[Path], bool]


def run_stages(folder: Path, killed_at: Mapping[str, Moment]) -> None:
    """Run all stages of one seed and the report; a stage in `killed_at` is killed at its moment, then run again."""
    for stage in STAGES:
        command = [*stage.split(), str(SEED_CONFIG), *SMALLER]
        if stage in killed_at:
            kill(folder, command, killed_at[stage])
        finish(folder, command)
    command = ["eval", str(report_config(folder))]
    if "eval" in killed_at:
        kill(folder, command, killed_at["eval"])
    finish(folder, command)


def report_config(folder: Path) -> Path:
    """Return the config of the evidence's report with one training seed, on a few generated games."""
    config: dict[str, Any] = yaml.safe_load(REPORT_CONFIG.read_text())
    config["environment"] = {"name": "alfworld", "source": "generated", "split": "held_out", "receptacles": 8}
    config["loop"]["trials"] = 2
    config["eval"]["tasks"] = 12
    config["eval"]["comparisons"] = [planned | {"trial": 1} for planned in config["eval"]["comparisons"]]
    served = {"actor"}
    for arm in config["eval"]["arms"].values():
        if isinstance(arm.get("model"), list):
            arm["model"] = arm["model"][:1]
            served.update(arm["model"])
    config["serve"]["adapters"] = {name: path for name, path in config["serve"]["adapters"].items() if name in served}
    config["serve"]["dtype"] = "float32"
    path = folder / "report.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def start(folder: Path, command: list[str]) -> "subprocess.Popen[bytes]":
    log = (folder / "log").open("ab")
    with log:
        return subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
            stdout=log,
            stderr=log,
        )


def finish(folder: Path, command: list[str]) -> None:
    assert start(folder, command).wait(PATIENCE_SECONDS) == 0, (folder / "log").read_text()


def kill(folder: Path, command: list[str], moment: Moment) -> None:
    process, deadline = start(folder, command), time.monotonic() + PATIENCE_SECONDS
    while not moment(folder):
        assert process.poll() is None, (folder / "log").read_text()
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.01)
    process.kill()
    process.wait()


def all_facts(folder: Path, run: str) -> dict[str, Facts]:
    store = Store(f"sqlite:///{folder / 'runs' / run / 'experience.db'}", run)
    try:
        return {arm: facts_of(store, arm) for arm in store.arms()}
    finally:
        store.close()


def adapters(folder: Path) -> dict[str, str]:
    stages = [stage.split()[1] for stage in STAGES if stage.startswith("train")]
    files = {stage: folder / "runs" / "evidence-9" / stage / "metrics.json" for stage in stages}
    return {stage: json.loads(file.read_text())["adapter_sha256"] for stage, file in files.items()}


def tables(folder: Path) -> list[str]:
    """Return the rows of the report without versions and without the seconds and bytes of training."""
    text = (folder / "runs" / "evidence" / "eval" / "report.md").read_text()
    sections = text.partition("## Where this comes from")[0].split("\n## ")
    kept = [section for section in sections if not section.startswith("How the models were trained")]
    rows = list[str]()
    for section in kept:
        lines = [line.split("|") for line in section.splitlines() if line.startswith("|")]
        if section.startswith("What the arms cost"):
            timed = lines[0].index(" CPU-s of training ")
            lines = [line[:timed] + line[timed + 1 :] for line in lines]
        rows += ["|".join(line) for line in lines]
    return rows


@pytest.mark.slow
def test_evidence_killed_twice_equals_that_of_an_unbroken_run(tmp_path: Path) -> None:
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    for folder in (unbroken, broken):
        folder.mkdir()
    run_stages(unbroken, {})
    run_stages(
        broken,
        {
            "collect": lambda folder: stored(folder / "runs" / "evidence-9" / "experience.db") >= 200,
            "train sft": lambda folder: bool(list(folder.glob("runs/*/checkpoints/sft-*/checkpoint-*"))),
            "eval": lambda folder: stored(folder / "runs" / "evidence" / "experience.db") >= 20,
        },
    )
    for run in ("evidence-9", "evidence"):
        facts = [all_facts(folder, run) for folder in (unbroken, broken)]
        assert facts[0].keys() == facts[1].keys()
        assert all(facts[0][arm].same_as(facts[1][arm]) for arm in facts[0])
    assert adapters(broken) == adapters(unbroken)
    assert tables(broken) == tables(unbroken)
    assert len(tables(broken)) > 30
