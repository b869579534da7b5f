"""The household experiment with arms of a test's choice: its config, its report, and what an arm wrote."""

import asyncio
from pathlib import Path
from typing import Any

from eval.report.report import compare_arms
from retroformer.config.file import Config
from retroformer.method.records import Outcome, Trajectory
from tests.support.runs import HOUSEHOLD, facts, open_config, write_config

NOWHERE = "http://127.0.0.1:1/v1"
Arms = dict[str, dict[str, Any]]
POOLED: Arms = {
    "nothing": {"kind": "none"},
    "trained": {"kind": "model", "model": ["tuned-1", "tuned-2", "tuned-3"]},
    "placebo": {"kind": "placebo", "of": "trained"},
}


def config_with(folder: Path, url: str, arms: Arms, *overrides: str) -> Config:
    """Return the household config with these arms and two trials."""
    config = HOUSEHOLD | {"eval": HOUSEHOLD["eval"] | {"arms": arms}}
    return open_config(write_config(folder, url, config), "loop.trials=2", *overrides)


def compare(config: Config) -> str:
    """Run the evaluation; return the report in Markdown."""
    asyncio.run(compare_arms(config))
    return (config.experiment.folder / "eval" / "report.md").read_text()


def texts(config: Config, arm: str) -> dict[str, str]:
    """Return what an arm wrote after trial 0, by task."""
    return {stored.key.task_id: stored.reflection.text for stored in facts(config, f"eval/{arm}").reflections}


def solved(attempt: Trajectory) -> bool:
    return attempt.outcome is Outcome.SUCCESS
