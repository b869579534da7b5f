"""Experiments small enough for a test: a config, commands that run it, and the facts in its store."""

import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from retroformer.config.file import Config, load
from retroformer.method.records import Key, Trajectory
from retroformer.run.store import Store, StoredReflection, open_store

ROOT = Path(__file__).parents[2]

HOUSEHOLD: dict[str, Any] = {
    "run": "toy",
    "environment": {"name": "alfworld", "source": "generated", "split": "train", "receptacles": 8, "max_steps": 20},
    "loop": {"trials": 3, "actions": 9, "memory": 2, "concurrency": 8, "retries": 0},
    "reflector": {"view": "compact", "endpoint": {"model": "big", "timeout_seconds": 20.0}},
    "collect": {"tasks": 6, "candidates": 2},
    "eval": {
        "split": "held_out",
        "tasks": 6,
        "arms": {
            "no reflection": {"kind": "none"},
            "remote reflector": {"kind": "model", "model": "big"},
            "placebo": {"kind": "placebo", "of": "remote reflector"},
        },
    },
}


def write_config(folder: Path, url: str, config: dict[str, Any] | None = None) -> Path:
    """Write the config of the household experiment with its reflector at this address, and return its path."""
    path = folder / "toy.yaml"
    text = yaml.safe_dump(config or HOUSEHOLD, sort_keys=False)
    path.write_text(text.replace("model: big\n    timeout", f"model: big\n    base_url: {url}\n    timeout"))
    assert url in path.read_text()
    return path


def open_config(path: Path, *overrides: str) -> Config:
    return Config(path, overrides, load(path, overrides))


class Facts(NamedTuple):
    """Facts of an arm, without fields that differ from server to server."""

    trajectories: dict[Key, Trajectory]
    reflections: list[StoredReflection]
    invalid: int

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.trajectories), len(self.reflections)

    def same_as(self, other: "Facts") -> bool:
        """Return True if keys, attempts and texts are equal; the numbers of invalid attempts may differ."""
        mine, theirs = (
            [(r.key, r.previous_candidate, r.reflection.text) for r in f.reflections] for f in (self, other)
        )
        return self.trajectories == other.trajectories and mine == theirs


def facts(config: Config, arm: str = "collect") -> Facts:
    store = open_store(config.experiment)
    try:
        return facts_of(store, arm)
    finally:
        store.close()


def facts_of(store: Store, arm: str) -> Facts:
    return Facts(
        dict(store.stream_trajectories(arm)), list(store.stream_reflections(arm)), store.arm_counts()[arm].invalid
    )


def stored(database: Path) -> int:
    """Return the number of facts in a SQLite store, by a cheap query."""
    if not database.exists():
        return 0
    connection = sqlite3.connect(database, timeout=30)
    try:
        counts = (connection.execute(f"select count(*) from {name}") for name in ("trajectories", "reflections"))
        return sum(int(count.fetchone()[0]) for count in counts)
    except sqlite3.OperationalError:
        return 0  # The tables do not exist yet.
    finally:
        connection.close()


def start(folder: Path, room: str, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a command of a stage in a separate process in `folder`."""
    command = [sys.executable, "-m", room, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(folder: Path, room: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", room, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
