"""An environment of an outside package, small enough to be learned by a tiny model: take the key, then open the door.

The same two actions solve every task; at random, one attempt in seven solves it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from retroformer.environments.extras import Extras
from retroformer.environments.section import EnvironmentSection
from retroformer.errors import UnknownTask
from retroformer.method.records import Memory, Message, Task, Trajectory, Transition

ACTIONS = ("open", "sing", "take", "wait")
_ANSWERS: Mapping[str, str] = {"open": "Locked.", "sing": "La.", "take": "You have it.", "wait": "Time goes by."}


class Section(EnvironmentSection):
    name: Literal["locked_door"] = "locked_door"
    split: Literal["train", "held_out"] = "train"
    max_steps: Annotated[int, Field(ge=1)] = 3
    silent: bool = False
    """If true, the environment does not list the possible actions."""
    broken_file: str = ""
    """A task cannot be started while there is a file at this path."""


class LockedDoor:
    def __init__(self, section: Section) -> None:
        self._section = section

    def tasks(self) -> tuple[Task, ...]:
        split = self._section.split
        return tuple(Task(id=f"{split}/{number}", environment="locked_door", split=split) for number in range(8))

    def environment(self) -> "LockedDoorEnvironment":
        return LockedDoorEnvironment(self._section)


class LockedDoorEnvironment:
    def __init__(self, section: Section) -> None:
        self._section = section
        self._choices = () if section.silent else ACTIONS
        self._steps, self._has_key = 0, False

    def reset(self, task: Task) -> Transition:
        if self._section.broken_file and Path(self._section.broken_file).exists():
            raise UnknownTask(f"The room of {task.id} is being painted.")
        self._steps, self._has_key = 0, False
        return Transition(observation=f"Room {task.id}. A key. A locked door.", choices=self._choices)

    def step(self, action: str) -> Transition:
        self._steps += 1
        if action == "open" and self._has_key:
            return Transition(observation="It opens.", reward=1.0, terminated=True, success=True)
        self._has_key |= action == "take"
        last = self._steps >= self._section.max_steps
        return Transition(observation=_ANSWERS.get(action, "What?"), truncated=last, choices=self._choices)


def _last_words(failure: Trajectory, memory: Memory) -> tuple[Message, ...]:
    return (Message(role="user", content=f"{failure.opening} What was wrong?"),)


def taskset(section: Section, seed: int) -> LockedDoor:
    return LockedDoor(section)


extras = Extras(choices=lambda scene: scene.choices, views={"short": _last_words})


def install(site: Path) -> None:
    """Write what pip would write for a package that names this module as an environment."""
    record = site / "locked_door-1.0.dist-info"
    record.mkdir(parents=True)
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: locked-door\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[retroformer.environments]\nlocked_door = {__name__}\n")
