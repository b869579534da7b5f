"""An environment of another package whose actions set the duration of each step."""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from retroformer.environments.section import EnvironmentSection
from retroformer.method.records import Task, Transition

ENTRY_POINT = "napping = tests.support.napping"


class Section(EnvironmentSection):
    name: str = "napping"
    split: str = "all"
    max_steps: int = 100


class Napping:
    """`nap SECONDS` sleeps, `hang` never returns, `crash` ends the process; every answer lists the actions so far.

    `note` writes a temporary file, and its answer is the path.
    """

    def __init__(self) -> None:
        self._task, self._actions = "", list[str]()

    def reset(self, task: Task) -> Transition:
        self._task, self._actions = task.id, []
        return self._answer()

    def step(self, action: str) -> Transition:
        self._actions.append(action)
        verb, _, seconds = action.partition(" ")
        if verb == "crash":
            raise SystemExit
        if verb in ("nap", "hang"):
            time.sleep(float(seconds or 10**6))
        if verb == "note":
            return Transition(observation=tempfile.mkstemp()[1])
        return self._answer()

    def _answer(self) -> Transition:
        return Transition(observation=f"{self._task}: {', '.join(self._actions)}")


class NappingTaskset:
    def tasks(self) -> tuple[Task, ...]:
        return tuple(Task(id=f"bed {number}", environment="napping", split="all") for number in range(24))

    def environment(self) -> Napping:
        return Napping()


def taskset(section: EnvironmentSection, seed: int = 0) -> NappingTaskset:
    return NappingTaskset()


def installed(folder: Path, environment: Mapping[str, str]) -> str:
    """Write the package's metadata to the folder, and return a PYTHONPATH with which processes find the environment."""
    metadata = folder / "napping-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: napping\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[retroformer.environments]\n{ENTRY_POINT}\n")
    return f"{folder}:{environment.get('PYTHONPATH', '')}"
